"""Producers as they will be once what this leader appended is committed: the batches on their way count, too."""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.base.types import Position
from tinymq.broker.state.producers import Producer, Producers, RememberedBatch, extend
from tinymq.format.batch import BatchHeader
from tinymq.format.entry import Entry


@dataclass(slots=True)
class _Ahead:
    """One that has batches on their way."""

    producer: Producer
    uncommitted: list[tuple[int, RememberedBatch]]  # (index, batch), oldest first; the producer's newest epoch only
    last_index: int


class UncommittedProducers:
    """Over the applied producers of one partition, for one term."""

    __slots__ = ("_ahead",)

    def __init__(self) -> None:
        self._ahead: dict[int, _Ahead] = {}

    def __len__(self) -> int:
        return len(self._ahead)

    def projected(self, applied: Producers, producer_id: int) -> Producer | None:
        """What the next batch is judged by."""
        ahead = self._ahead.get(producer_id)
        return ahead.producer if ahead is not None else applied.get(producer_id)

    def appended(self, header: BatchHeader, known: Producer | None, position: Position) -> None:
        """A batch of the producer that was `known` so is at `position`."""
        producer = extend(known, header, position.base_offset, position.append_time_us)
        ahead = self._ahead.get(header.producer_id)
        batch = (position.index, producer.batches[-1])
        if ahead is None or ahead.producer.epoch != producer.epoch:
            self._ahead[header.producer_id] = _Ahead(producer, [batch], position.index)
        else:
            ahead.producer, ahead.last_index = producer, position.index
            ahead.uncommitted.append(batch)

    def index_of(self, producer_id: int, found: RememberedBatch) -> int:
        """Where this very batch lies, if it is not applied; else 0."""
        ahead = self._ahead.get(producer_id)
        for index, batch in ahead.uncommitted if ahead is not None else ():
            if batch is found:
                return index
        return 0

    def settle(self, entry: Entry) -> None:
        """A batch of this leader's is applied: drop what the overlay no longer adds."""
        producer_id = int.from_bytes(entry.payload[8:16], "little")  # drawn in tinymq/format/batch.py
        ahead = self._ahead.get(producer_id)
        if ahead is None:
            return
        if ahead.last_index <= entry.index:
            del self._ahead[producer_id]
        elif ahead.uncommitted[0][0] == entry.index:
            ahead.uncommitted.pop(0)

    def clear(self) -> None:
        self._ahead.clear()

"""Producers as they will be once this leader's entries are committed: uncommitted batches count, too."""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.base.types import Position
from tinymq.broker.state.producers import Producers, ProducerState, RememberedBatch, extend
from tinymq.format.batch import BatchHeader, read_producer_id


@dataclass(slots=True)
class _Ahead:
    """A producer with uncommitted batches."""

    producer: ProducerState
    uncommitted: list[tuple[int, RememberedBatch]]  # (index, batch), oldest first; the producer's newest epoch only
    last_index: int


class UncommittedProducers:
    """The uncommitted batches of producers, which overlay the applied producers of one partition, for one term."""

    __slots__ = ("_ahead", "_skipped")

    def __init__(self) -> None:
        self._ahead: dict[int, _Ahead] = {}
        self._skipped: dict[int, int] = {}  # by index of a command: the producer whose duplicate it skips

    def __len__(self) -> int:
        return len(self._ahead)

    def projected(self, applied: Producers, producer_id: int) -> ProducerState | None:
        """The producer against which its next batch is judged."""
        ahead = self._ahead.get(producer_id)
        return ahead.producer if ahead is not None else applied.get(producer_id)

    def appended(self, header: BatchHeader, before: ProducerState | None, position: Position) -> None:
        """Note a batch at `position`. `before` is its producer as `projected` returned it."""
        producer = extend(before, header, position.base_offset, position.append_time_us)
        ahead = self._ahead.get(header.producer_id)
        batch = (position.index, producer.batches[-1])
        # A new epoch starts over: batches of the old one can no longer be duplicates.
        if ahead is None or ahead.producer.epoch != producer.epoch:
            self._ahead[header.producer_id] = _Ahead(producer, [batch], position.index)
        else:
            ahead.producer, ahead.last_index = producer, position.index
            ahead.uncommitted.append(batch)

    def skipped(self, header: BatchHeader, before: ProducerState | None, position: Position, place: int) -> None:
        """Note the command at `position` that skips a batch: its record is stored already, at `place`."""
        at = Position(position.index, position.term, place, position.append_time_us)
        self._skipped[position.index] = header.producer_id
        self.appended(header, before, at)

    def index_of(self, producer_id: int, remembered: RememberedBatch) -> int:
        """The index of this very batch if it is not applied yet, otherwise 0."""
        ahead = self._ahead.get(producer_id)
        for index, batch in ahead.uncommitted if ahead is not None else ():
            if batch is remembered:
                return index
        return 0

    def settle(self, batch: bytes | memoryview, index: int) -> None:
        """Forget a batch that is applied, with the entry at `index`."""
        self._settle(read_producer_id(batch), index)

    def settle_skipped(self, index: int) -> None:
        """Forget the duplicate that the command at `index` has skipped, because that command is applied."""
        producer_id = self._skipped.pop(index, None)
        if producer_id is not None:
            self._settle(producer_id, index)

    def _settle(self, producer_id: int, index: int) -> None:
        ahead = self._ahead.get(producer_id)
        if ahead is None:
            return
        if ahead.last_index <= index:
            del self._ahead[producer_id]
        elif ahead.uncommitted[0][0] == index:
            ahead.uncommitted.pop(0)

    def clear(self) -> None:
        self._ahead.clear()
        self._skipped.clear()

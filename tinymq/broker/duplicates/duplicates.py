"""How a leader recognises a batch that its partition has already: by the producer's numbers, or by its message id.

Both are judged against the applied state and what this leader has appended since.
"""

from __future__ import annotations

from typing import NamedTuple

from tinymq.base.types import Position
from tinymq.broker.duplicates.message_ids import CopyId, RecordId, UncommittedIds, record_id
from tinymq.broker.duplicates.uncommitted_producers import UncommittedProducers
from tinymq.broker.state.producers import ProducerState, judge
from tinymq.broker.state.state import PartitionState
from tinymq.format.batch import BatchHeader
from tinymq.format.delayed import STAGED_HEAD_SIZE
from tinymq.format.entry import Entry, Kind, takes_producer_numbers


class Original(NamedTuple):
    """The first copy of a batch."""

    place: int  # tinymq/broker/state/delayed.py
    append_time_us: int
    entry_index: int  # of the entry on which its answer depends, while that is not applied; 0: it is applied


class Duplicates:
    """The batches that a leader has appended and not applied yet, for the judgement of later batches."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        # Invariant: both are empty on a follower.
        self._producers = UncommittedProducers()
        self._ids = UncommittedIds()

    @property
    def has_ids(self) -> bool:
        """Whether records with ids are appended and not applied yet."""
        return len(self._ids) > 0

    @property
    def is_empty(self) -> bool:
        return not len(self._producers) and not len(self._ids)

    def latest_producer(self, producer_id: int) -> ProducerState | None:
        """The producer as of its newest batch, committed or not."""
        return self._producers.projected(self._state.producers, producer_id)

    def find_batch(self, producer: ProducerState | None, header: BatchHeader) -> Original | None:
        """The first copy of a producer's batch; None: the batch is new. Raises Fenced, OutOfOrderSequence,
        UnknownProducer."""
        known = judge(producer, header)
        if known is None:
            return None
        return Original(known.place, known.append_time_us, self._producers.index_of(header.producer_id, known))

    def find_message(
        self, message_id: bytes | CopyId, records: int, window_ms: int | None, now_us: int
    ) -> tuple[RecordId, Original | None]:
        """The id as it is stored, and the first record of it. Raises InvalidRequest, as `record_id`."""
        found = record_id(message_id, records, window_ms)
        first = self._ids.find(found.remembered(self._state), found.stored, found.since_us(now_us))
        return found, None if first is None else Original(*first)

    def appended(
        self,
        header: BatchHeader,
        producer: ProducerState | None,
        identity: RecordId | None,
        position: Position,
        place: int,
    ) -> None:
        """Note a batch that is appended at `position`. `producer` is as before it."""
        at = Position(position.index, position.term, place, position.append_time_us)
        if header.producer_id:
            # The producer's next batch is judged against this one, whether or not it is committed by then.
            self._producers.appended(header, producer, at)
        if identity is not None:
            self._ids.appended(identity.stored, at)

    def skipped(self, header: BatchHeader, producer: ProducerState | None, position: Position, first: Original) -> None:
        """Note the command at `position` that skips a batch, because its record is stored already."""
        self._producers.skipped(header, producer, position, first.place)

    def settle(self, entry: Entry) -> None:
        """Forget what described this entry: the applied state has it now."""
        if len(self._producers):
            if entry.header.kind == Kind.COMMAND:
                self._producers.settle_skipped(entry.index)
            elif takes_producer_numbers(entry.header):
                staged = entry.header.kind == Kind.STAGED
                batch = memoryview(entry.payload)[STAGED_HEAD_SIZE:] if staged else entry.batch
                self._producers.settle(batch, entry.index)
        self._ids.settle(entry.index)

    def clear(self) -> None:
        self._producers.clear()
        self._ids.clear()

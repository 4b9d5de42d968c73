"""The newest batches of idempotent producers: the pure half of deduplication.

A producer numbers its records from 0 in each epoch. A batch is identified by (producer id, epoch, first sequence). The
state is replicated: it changes only in `apply`, by the entries of the log, and is the same on every replica.
Semantics: Kafka's idempotent producer (KIP-98), with the bounds below.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from tinymq.base.errors import CorruptData, Fenced, InvalidRequest, OutOfOrderSequence, UnknownProducer
from tinymq.format.batch import BATCH_VERSION, BatchHeader, Codec
from tinymq.proto import partition_pb2 as pb

# Part of the replicated behaviour, not settings: replicas with different values would compute different states.
PRODUCERS_MAX = 10_000
BATCHES_MAX = 5  # of one producer: a duplicate of an older batch is refused as out of order

_PRODUCER = struct.Struct("<QIIq")  # producer_id, epoch, batches, append_time_us
_BATCH = struct.Struct("<qIQq")  # the fields of RememberedBatch


class RememberedBatch(NamedTuple):
    """A batch that a producer wrote, and its place in the log."""

    first_sequence: int
    record_count: int
    place: int  # tinymq/broker/state/delayed.py
    append_time_us: int


@dataclass(slots=True)
class ProducerState:
    """One producer's newest epoch, as of some point of the log."""

    epoch: int
    append_time_us: int  # of its newest batch
    batches: list[RememberedBatch]  # invariant: 1 to BATCHES_MAX, oldest first, consecutive sequences

    @property
    def next_sequence(self) -> int:
        last = self.batches[-1]
        return last.first_sequence + last.record_count


def judge(producer: ProducerState | None, header: BatchHeader) -> RememberedBatch | None:
    """Judge a batch: None means append it, and a RememberedBatch means that it is a duplicate of that batch.

    `producer` is None if the partition does not remember it. Raises Fenced, OutOfOrderSequence, UnknownProducer.
    """
    sequence = header.first_sequence
    if producer is None:
        if sequence != 0:
            raise UnknownProducer(f"producer {header.producer_id} is not known here, and its sequence is {sequence}")
        return None
    if header.producer_epoch < producer.epoch:
        raise Fenced(f"epoch {header.producer_epoch} of producer {header.producer_id}: the newest is {producer.epoch}")
    expected = 0 if header.producer_epoch > producer.epoch else producer.next_sequence
    if sequence == expected:
        return None
    if header.producer_epoch == producer.epoch:
        for batch in producer.batches:
            if batch.first_sequence == sequence and batch.record_count == header.record_count:
                return batch
    raise OutOfOrderSequence(
        f"producer {header.producer_id} sent sequence {sequence}; {expected} comes next",
        hint="what came before is missing: send it first, or take a new epoch",
        expected_sequence=expected,
    )


def extend(producer: ProducerState | None, header: BatchHeader, place: int, append_time_us: int) -> ProducerState:
    """The producer after one more batch. Every batch of the log counts, whether or not it is in sequence."""
    batch = RememberedBatch(header.first_sequence, header.record_count, place, append_time_us)
    if producer is None or producer.epoch != header.producer_epoch:
        return ProducerState(header.producer_epoch, append_time_us, [batch])
    return ProducerState(producer.epoch, append_time_us, [*producer.batches[1 - BATCHES_MAX :], batch])


def skipped_header(skip: pb.SkipDuplicate) -> BatchHeader:
    """The header of a batch that was not stored, because its record's message id was there already. Raises
    InvalidRequest."""
    if not skip.producer_id or not 0 <= skip.first_sequence < (1 << 63) - 1:
        raise InvalidRequest("a skipped batch has a producer and a sequence")
    return BatchHeader(
        version=BATCH_VERSION,
        codec=Codec.NONE,
        record_count=1,
        producer_id=skip.producer_id,
        producer_epoch=skip.producer_epoch,
        first_sequence=skip.first_sequence,
    )


class Producers:
    """The producers that a partition remembers, by the time of their newest append."""

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self._max = producers_max
        self._producers: OrderedDict[int, ProducerState] = OrderedDict()  # by id; the least recent append first

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> ProducerState | None:
        return self._producers.get(producer_id)

    def add(self, header: BatchHeader, place: int, append_time_us: int) -> None:
        """Note a committed idempotent batch. Above the bound, forget the producer with the least recent append."""
        producers = self._producers
        producers[header.producer_id] = extend(producers.get(header.producer_id), header, place, append_time_us)
        producers.move_to_end(header.producer_id)
        if len(producers) > self._max:
            producers.popitem(last=False)

    def dump(self) -> bytes:
        """Pack all producers. Equal producers give equal bytes."""
        parts = []
        for producer_id, producer in self._producers.items():
            parts.append(_PRODUCER.pack(producer_id, producer.epoch, len(producer.batches), producer.append_time_us))
            parts.extend([_BATCH.pack(*batch) for batch in producer.batches])
        return b"".join(parts)

    def load(self, data: bytes) -> None:
        """The inverse of `dump`. Raises CorruptData for anything that `dump` cannot write, and changes nothing then."""
        producers: OrderedDict[int, ProducerState] = OrderedDict()
        position = 0
        try:
            while position < len(data):
                producer_id, epoch, count, time_us = _PRODUCER.unpack_from(data, position)
                position += _PRODUCER.size
                end = position + count * _BATCH.size
                batches = [RememberedBatch(*fields) for fields in _BATCH.iter_unpack(data[position:end])]
                if not 1 <= count <= BATCHES_MAX or len(batches) != count or producer_id in producers:
                    raise CorruptData("the applied state's producers are out of range")
                producers[producer_id] = ProducerState(epoch, time_us, batches)
                position = end
            if len(producers) > self._max:
                raise CorruptData("the applied state's producers are more than it remembers")
        except struct.error as error:
            raise CorruptData(f"the applied state's producers do not parse: {error}") from None
        self._producers = producers

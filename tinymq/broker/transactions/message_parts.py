"""The common parts of messages about transactions: a transaction's name, partitions, and counts by partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId
from tinymq.proto import transaction_pb2 as pb

Counts = Mapping[PartitionId, int]


def pack_ref(transaction: TransactionId) -> pb.TransactionRef:
    producer_id, epoch, number = transaction
    return pb.TransactionRef(producer_id=producer_id, epoch=epoch, number=number)


def parse_ref(ref: pb.TransactionRef) -> TransactionId:
    return TransactionId(ref.producer_id, ref.epoch, ref.number)


def pack_places(places: Iterable[PartitionId]) -> list[pb.TopicPartitions]:
    return [
        pb.TopicPartitions(topic_id=topic_id, partitions=[place.partition for place in some])
        for topic_id, some in groupby(sorted(places), lambda place: place.topic_id)
    ]


def parse_places(topics: Iterable[pb.TopicPartitions]) -> frozenset[PartitionId]:
    return frozenset(PartitionId(topic.topic_id, partition) for topic in topics for partition in topic.partitions)


def pack_counts(expected: Counts, held: Counts) -> list[pb.StagedCount]:
    return [
        pb.StagedCount(
            topic_id=place.topic_id, partition=place.partition, expected=expected.get(place), held=held.get(place)
        )
        for place in sorted({*expected, *held})
    ]


def parse_counts(counts: Iterable[pb.StagedCount]) -> tuple[Counts, Counts]:
    """(expected, held)."""
    by_place = {PartitionId(count.topic_id, count.partition): count for count in counts}
    return (
        {place: count.expected for place, count in by_place.items() if count.HasField("expected")},
        {place: count.held for place, count in by_place.items() if count.HasField("held")},
    )

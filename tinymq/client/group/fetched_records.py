"""The interface of a store of fetched records, as the fetchers and the membership of a group use it. Two stores
implement it: one for an application that takes records in turn (assigned_buffer.py), one for handlers
(parallel_buffer.py)."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from tinymq.client.consume.records import Chunk


class TopicPartition(NamedTuple):
    """A partition of a topic, by the topic's name.

    with mq.consumer("orders", group="billing") as consumer:
        print([(place.topic, place.partition) for place in consumer.assignment()])
    """

    topic: str
    partition: int


class FetchedRecords(Protocol):
    """The records of the partitions that are read. All calls on the client's loop."""

    leaving: set[TopicPartition]
    """Partitions that are given up when nothing of them is in hand."""

    def begin(self, place: TopicPartition, offset: int) -> None:
        """Read a partition from an offset on."""
        ...

    def offer(self, place: TopicPartition, chunk: Chunk) -> None:
        """Add fetched records of a partition that is read."""
        ...

    def release(self, place: TopicPartition) -> int | None:
        """Give a partition up, and return the offset behind its last record that is done. None: a record of it is in
        hand, so the partition leaves later."""
        ...

    def leave(self, place: TopicPartition) -> int:
        """Give up a partition that was leaving. Returns as `release`."""
        ...

    def drop(self, places: Collection[TopicPartition]) -> None:
        """Give partitions up that belong to another member by now. No further record of them is handed out."""
        ...

    def positions(self) -> dict[TopicPartition, int]:
        """The offset behind the last record that is done, by partition."""
        ...

"""Fetches the partitions of a consumer, each by a task, into one store of bounded bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Topic
from tinymq.client.common.config import ReaderConfig
from tinymq.client.consume.fetch_policy import FollowPolicy
from tinymq.client.consume.partition_fetcher import FetchPosition, PartitionFetcher
from tinymq.client.consume.records import Chunk
from tinymq.client.group.fetched_records import FetchedRecords, TopicPartition


class PartitionTasks:
    """The fetchers of the partitions that a consumer reads now. All calls on the loop."""

    def __init__(
        self,
        cluster: Cluster,
        config: ReaderConfig,
        records: FetchedRecords,
        failed: Callable[[TopicPartition, Exception], None],
    ) -> None:
        """`records` gets the fetched records. `failed` gets the error that ended a partition."""
        self.records = records
        self.arrived = asyncio.Event()
        self._cluster = cluster
        self._config = config
        self._failed = failed
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._buffered_bytes = 0

    def start(self, place: TopicPartition, topic: Topic, offset: int) -> None:
        """Read a partition from an offset on, and no more from where it was read before."""
        self.stop(place)
        self.records.begin(place, offset)
        fetcher = PartitionFetcher(
            cluster=self._cluster,
            config=self._config,
            policy=FollowPolicy(self._cluster, self._config),
            topic=topic,
            cursor=FetchPosition(place.partition, offset, end=None, end_seen=offset, history=None),
            deliver=lambda chunk: self._deliver(place, chunk),
            has_room=self._has_room,
            turn=self._cluster.rng.randrange(1 << 16),
        )
        self._tasks[place] = asyncio.create_task(self._fetch(place, fetcher))

    def stop(self, place: TopicPartition) -> None:
        """Stop fetching from a partition. Records that were fetched stay in the buffer."""
        task = self._tasks.pop(place, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.arrived.set()

    async def _fetch(self, place: TopicPartition, fetcher: PartitionFetcher) -> None:
        try:
            await fetcher.run()
        except Exception as error:  # the application's next call raises it: a consumer never stops silently
            self._failed(place, error)

    def _deliver(self, place: TopicPartition, chunk: Chunk) -> None:
        if place not in self._tasks:  # it was stopped in the middle of an answer
            return
        self._buffered_bytes += chunk.bytes
        if self._buffered_bytes >= self._config.buffer_bytes_max:
            self._has_room.clear()
        self.records.offer(place, chunk)
        self.arrived.set()

    def freed(self, size: int) -> None:
        """Records of so many bytes have left the store."""
        self._buffered_bytes -= size
        if self._buffered_bytes < self._config.buffer_bytes_max:
            self._has_room.set()

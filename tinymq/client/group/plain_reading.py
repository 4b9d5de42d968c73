"""A consumer without a group: it reads all partitions of its topics, and follows those that are added."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tinymq.base.errors import TinymqError
from tinymq.base.group_config import topic_matches
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.offsets import list_offsets
from tinymq.client.common.start_positions import KnownOffset, Place, read_place
from tinymq.client.group.fetched_records import TopicPartition
from tinymq.client.group.partition_tasks import PartitionTasks
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

LOOK_S = 1.0  # between two looks for partitions that were added


class PlainReading:
    """Reads everything, and saves nothing."""

    def __init__(
        self,
        cluster: Cluster,
        tasks: PartitionTasks,
        topics: Sequence[str],
        start: Place,
        tell: Callable[[str, Sequence[TopicPartition]], None],
    ) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._topics = topics
        self._start = start
        self._tell = tell
        self._timeout_s = cluster.config.request_timeout_ms / 1000
        self._begun = False  # partitions that are found from now on were added

    async def follow(self) -> None:
        while True:
            await self._cluster.clock.sleep(LOOK_S)
            try:
                await self.look()
            except TinymqError as error:
                LOG.debug("no look for added partitions: %s", error)

    async def look(self) -> None:
        """Read the partitions that are not read yet: at first from `start`, and added ones from their beginning."""
        patterns = any("*" in topic or "?" in topic for topic in self._topics)
        names: list[str] = list(self._topics)
        if patterns:
            reply = await self._cluster.ask(pb.MetadataRequest(all=True), timeout_s=self._timeout_s)
            names = [info.name for info in reply.topics if any(topic_matches(p, info.name) for p in self._topics)]
        elif self._begun:
            await self._cluster.refresh(names, timeout_s=self._timeout_s)
        known = self._tasks.records.positions()
        for name in names:
            topic = await self._cluster.topic(name, self._timeout_s)
            added = [number for number in topic.numbers if TopicPartition(name, number) not in known]
            place = read_place("earliest" if self._begun else self._start)
            offsets = dict.fromkeys(added, place.offset if isinstance(place, KnownOffset) else 0)
            if added and not isinstance(place, KnownOffset):
                asked = dict.fromkeys(added, place.timestamp_us)
                answers = await list_offsets(self._cluster, topic, asked, timeout_s=self._timeout_s, leader_only=True)
                offsets = {number: int(answers[number].offset) for number in added}
            for number, offset in offsets.items():
                self._tasks.start(TopicPartition(name, number), topic, offset)
            if added:
                self._tell("assigned", [TopicPartition(name, number) for number in added])
        self._begun = True

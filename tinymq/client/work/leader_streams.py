"""The streams of one worker: attaches its partitions to their leaders, and keeps its sessions alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tinymq.base.errors import NotLeader, TinymqError
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Topic
from tinymq.client.work.broker_work import BrokerWork
from tinymq.client.work.partition_work import PartitionWork

LOOK_S = 0.1  # between looks at leaders that are not attached
BEATS = 3  # signs of life within the time after which a silent session ends
EXTENSIONS = 3  # of a lease, within its time
EARLY = 0.8  # share of the time for which a sign of the leader counts, after which it is asked for the next one
SILENCE_S = 10.0  # of a broker that has not told yet how long its sessions last
ENDINGS = ("OutcomeUnknown", "SessionEnded", "Closed")  # errors that end an attachment, and not the worker

NewWork = Callable[[Topic, int], PartitionWork]


class LeaderStreams:
    """One stream for each broker that leads some of the partitions. All on the client's loop."""

    def __init__(
        self,
        cluster: Cluster,
        arrived: Callable[[PartitionWork], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`arrived`: a partition may have new jobs, or answers. `failed`: no partition will have any more."""
        self.works: dict[int, PartitionWork] = {}  # by partition
        self._cluster = cluster
        self._arrived = arrived
        self._failed = failed
        self._brokers: dict[str, BrokerWork] = {}  # by address
        self._attaching: set[PartitionWork] = set()  # or attached
        self._topic: Topic | None = None
        self._new_work: NewWork | None = None

    def follow(self, topic: Topic, new_work: NewWork) -> None:
        """Work on the partitions of a topic, and on those that are added."""
        self._topic, self._new_work = topic, new_work
        self._look(topic)

    async def attach(self) -> None:
        """Attach partitions to their leaders, now and after each change of leader; never returns."""
        while True:
            if self._topic is not None:
                known = self._cluster.view.topics.get(self._topic.name)
                if known is not None and known.topic_id == self._topic.topic_id:
                    self._look(known)
            for work in self.works.values():
                if work not in self._attaching:
                    broker = self._leader(work)
                    if broker is None:
                        self._cluster.refresh_soon()
                    else:
                        self._attaching.add(work)
                        broker.attach(work)
            await self._cluster.clock.sleep(LOOK_S)

    async def live(self) -> None:
        """Show signs of life, and extend the leases of held jobs, until cancelled."""
        extended_s = self._cluster.clock.monotonic()
        while True:
            told = [work.confirmation for work in self.works.values()]
            session_s = min((each.session_s for each in told), default=SILENCE_S)
            lease_s = min((each.lease_s for each in told), default=SILENCE_S)
            valid_s = min((each.valid_s for each in told), default=SILENCE_S)
            await self._cluster.clock.sleep(min(session_s / BEATS, lease_s / EXTENSIONS, valid_s * EARLY))
            now_s = self._cluster.clock.monotonic()
            if now_s - extended_s >= lease_s / EXTENSIONS:
                extended_s = now_s
                for work in self.works.values():
                    work.keep(now_s)
            sessions_s = (work.confirmation.session_s for work in self.works.values() if work.attached)
            silence_s = min(sessions_s, default=SILENCE_S)
            for broker in self._brokers.values():
                broker.look(now_s, silence_s)

    def send(self) -> None:
        """Send what the partitions have to say."""
        for broker in self._brokers.values():
            broker.send()

    async def close(self) -> None:
        """Leave all partitions: the sessions end, and other workers get the jobs that were not started at once."""
        await asyncio.gather(*(broker.close() for broker in self._brokers.values()))

    def _look(self, topic: Topic) -> None:
        assert self._new_work is not None, "set by `follow`"
        for partition in topic.numbers:
            if partition not in self.works:
                self.works[partition] = self._new_work(topic, partition)

    def _leader(self, work: PartitionWork) -> BrokerWork | None:
        """The stream to the broker that leads the partition; None: no leader is known."""
        view = self._cluster.view
        known = view.topics.get(work.topic.name)
        at = known.partition(work.partition) if known is not None else None
        leader = view.brokers.get(at.leader) if at is not None else None
        if leader is None:
            return None
        broker = self._brokers.get(leader.address)
        if broker is None or broker.broken:
            link, timeout_ms = self._cluster.connections.link(leader.address), self._cluster.config.request_timeout_ms
            broker = self._brokers[leader.address] = BrokerWork(
                link,
                self._cluster.clock,
                timeout_ms / 1000,
                arrived=self._arrived,
                ended=self._left,
                failed=self._failed,
            )
            broker.start()
        return broker

    def _left(self, work: PartitionWork, error: TinymqError) -> None:
        """Note that a partition was detached: it is attached again to its present leader."""
        self._attaching.discard(work)
        if isinstance(error, NotLeader):
            self._cluster.learn(work.topic.name, work.partition, error)
        elif not error.retriable and error.code not in ENDINGS:
            self._failed(error)
        self._cluster.refresh_soon()
        self._arrived(work)

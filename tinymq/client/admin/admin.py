"""Topics and the state of the cluster, asynchronous. Answers are frozen values."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinymq.base.errors import TinymqError, Unavailable, UnknownTopic, UnsupportedVersion
from tinymq.client.admin import cluster_status, scans
from tinymq.client.admin.channel_admin import AsyncChannelAdmin
from tinymq.client.admin.cluster_status import ClusterStatus, TopicDescription
from tinymq.client.admin.feature_level import FeatureLevel
from tinymq.client.admin.feature_level import read as read_level
from tinymq.client.admin.leadership_transfer import transfer_leader
from tinymq.client.admin.scans import ScanDescription, ScanSummary
from tinymq.client.cluster import routing
from tinymq.client.cluster.offsets import list_offsets
from tinymq.client.cluster.routing import Broker, Partition, Topic
from tinymq.client.common.argument_checks import check_count, check_scan, check_topic
from tinymq.client.common.start_positions import END, OffsetQuestion, Place, by_partition
from tinymq.client.common.topic_settings import write_settings
from tinymq.client.common.values import as_datetime
from tinymq.proto import tinymq_pb2 as pb

STATUS_TIMEOUT_S = 2.0
LEADERS_WAIT_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Where a partition begins and ends: offsets from log_start up to, and not including, high_watermark."""

    log_start: int
    high_watermark: int


class AsyncAdmin(AsyncChannelAdmin):
    """What `client.admin` can do. `timeout` is in seconds; request_timeout_ms if not given."""

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        *,
        settings: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> TopicDescription:
        """Create a topic, and wait until its partitions have leaders.

        `replication_factor`: by default 3, or the number of brokers if there are fewer. The default needs as many
        registered brokers as the metadata has voters, or 3. Until then the call waits; at its deadline it raises
        NotReady, which names the missing brokers. An explicit number is used as given.

        `settings`: by name, such as {"retention_ms": 86_400_000, "max_bytes": None}; docs/topics.md has them all.
        Raises InvalidName, TopicExists, InvalidRequest (more replicas than brokers), InvalidConfig (settings),
        OutcomeUnknown.
        """
        check_topic(name)
        written = write_settings(settings or {})
        check_count("partitions", partitions, 1)
        if replication_factor is not None:
            check_count("replication_factor", replication_factor, 1)
        timeout_s = self._timeout_s(timeout)
        left = self._cluster.countdown(timeout_s)
        by_default = replication_factor is None
        if replication_factor is None:  # for brokers of earlier builds, which do not choose the default themselves
            view = await self._cluster.refresh(timeout_s=timeout_s)
            replication_factor = min(3, max(1, sum(b.alive for b in view.brokers.values())))
        wait_s = min(LEADERS_WAIT_S_MAX, left())
        request = pb.CreateTopicRequest(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            timeout_ms=int(wait_s * 1000),
            command_id=self._cluster.rng.randbytes(16),  # however often it is asked: done once
            settings=written,
            default_factor=by_default,
        )
        reply = await self._cluster.ask(request, timeout_s=left(), attempt_s=wait_s + 1.0, changes=True)
        topic = routing.read_topic(reply.topic)
        self._cluster.update(routing.with_topic(self._cluster.view, topic))
        return _describe(topic)

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic and its records. Raises UnknownTopic, OutcomeUnknown."""
        check_topic(name)
        timeout_s = self._timeout_s(timeout)
        command_id = self._cluster.rng.randbytes(16)
        request = pb.DeleteTopicRequest(name=name, timeout_ms=int(timeout_s * 1000), command_id=command_id)
        await self._cluster.ask(request, timeout_s=timeout_s, changes=True)
        self._cluster.update(routing.without_topic(self._cluster.view, name))

    async def alter_topic(
        self, name: str, settings: Mapping[str, object], *, timeout: float | None = None
    ) -> TopicDescription:
        """Change settings of a topic, all of these or none; what is not named stays. It takes effect on every broker
        as that one hears of it, within moments. Raises UnknownTopic, InvalidConfig, OutcomeUnknown."""
        check_topic(name)
        written = write_settings(settings)
        timeout_s = self._timeout_s(timeout)
        command_id = self._cluster.rng.randbytes(16)
        request = pb.AlterTopicRequest(
            name=name, settings=written, timeout_ms=int(timeout_s * 1000), command_id=command_id
        )
        reply = await self._cluster.ask(request, timeout_s=timeout_s, changes=True)
        topic = routing.read_topic(reply.topic)
        self._cluster.update(routing.with_topic(self._cluster.view, topic))
        return _describe(topic)

    async def add_partition(self, topic: str, *, timeout: float | None = None) -> Partition:
        """One more partition, with a number that the topic never had before; waits until it has a leader. From now on
        keys may belong to other partitions than before: see docs/topics.md.

        Raises UnknownTopic, InvalidRequest (too few brokers, a bound is reached), OutcomeUnknown.
        """
        check_topic(topic)
        left = self._cluster.countdown(self._timeout_s(timeout))
        wait_s = min(LEADERS_WAIT_S_MAX, left())
        command_id = self._cluster.rng.randbytes(16)
        request = pb.AddPartitionRequest(topic=topic, timeout_ms=int(wait_s * 1000), command_id=command_id)
        reply = await self._cluster.ask(request, timeout_s=left(), attempt_s=wait_s + 1.0, changes=True)
        added = routing.read_partition(reply.partition)
        self._cluster.update(routing.with_partition(self._cluster.view, topic, added))
        return added

    async def delete_partition(self, topic: str, partition: int, *, timeout: float | None = None) -> None:
        """Delete a partition and its records; its number is never used again. Keys may belong to other partitions from
        now on. Raises UnknownTopic, UnknownPartition, InvalidRequest (the last one), OutcomeUnknown."""
        check_topic(topic)
        check_count("partition", partition, 0)
        timeout_s = self._timeout_s(timeout)
        request = pb.DeletePartitionRequest(
            topic=topic,
            partition=partition,
            timeout_ms=int(timeout_s * 1000),
            command_id=self._cluster.rng.randbytes(16),
        )
        await self._cluster.ask(request, timeout_s=timeout_s, changes=True)
        self._cluster.update(routing.without_partition(self._cluster.view, topic, partition))

    async def transfer_leader(
        self, topic: str, partition: int, to: int | None = None, *, timeout: float | None = None
    ) -> int:
        """Have another broker lead a partition: `to`, or whoever can at once, the preferred one first; who leads then.
        It stays there: leaders come home by themselves only after a failure or a restart of the preferred broker.

        Raises UnknownTopic, UnknownPartition, InvalidRequest (`to` holds no replica), NotReady (it is not alive, not
        listed or catching up), DeadlineExceeded (led as before), OutcomeUnknown.
        """
        check_topic(topic)
        check_count("partition", partition, 0)
        if to is not None:
            check_count("to", to, 1)
        return await transfer_leader(self._cluster, topic, partition, to or 0, self._timeout_s(timeout))

    async def list_topics(self, *, timeout: float | None = None) -> list[TopicDescription]:
        """All topics, by name, as of a moment during this call."""
        request = pb.MetadataRequest(all=True, fresh=True)
        reply = await self._cluster.ask(request, timeout_s=self._timeout_s(timeout))
        self._cluster.update(routing.merge(self._cluster.view, reply, ()))
        topics = [routing.read_topic(info) for info in reply.topics if not info.HasField("error")]
        return [_describe(topic) for topic in sorted(topics, key=lambda topic: topic.name)]

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """One topic, as of a moment during this call. Raises UnknownTopic."""
        check_topic(name)
        request = pb.MetadataRequest(topics=[name], fresh=True)
        reply = await self._cluster.ask(request, timeout_s=self._timeout_s(timeout))
        self._cluster.update(routing.merge(self._cluster.view, reply, [name]))
        for info in reply.topics:
            if info.name == name and not info.HasField("error"):
                return _describe(routing.read_topic(info))
        raise UnknownTopic(f"there is no topic {name!r}")

    async def brokers(self, *, timeout: float | None = None) -> list[Broker]:
        """The brokers that the registry knows, asked for afresh, by id."""
        view = await self._cluster.refresh(timeout_s=self._timeout_s(timeout))
        return sorted(view.brokers.values(), key=lambda broker: broker.broker_id)

    async def offsets(
        self, name: str, *, partial: bool = False, timeout: float | None = None
    ) -> dict[int, PartitionOffsets]:
        """Where every partition begins and ends. Raises UnknownTopic; DeadlineExceeded where no replica of one answers:
        with `partial`, it is left out instead."""
        answers = await self._list(name, "latest", self._timeout_s(timeout), partial)
        return {p: PartitionOffsets(a.log_start, a.high_watermark) for p, a in answers.items()}

    async def find_offsets(self, name: str, place: Place, *, timeout: float | None = None) -> dict[int, int]:
        """The offset of a place ("earliest", "latest", a datetime) in every partition. Raises UnknownTopic."""
        answers = await self._list(name, place, self._timeout_s(timeout))
        return {p: a.offset for p, a in answers.items()}

    async def cluster_status(self, *, timeout: float | None = None) -> ClusterStatus:
        """Return the state of every broker, as each describes itself. The result also lists brokers that do not answer,
        and metadata voters and replica holders that are not registered."""
        left = self._cluster.countdown(self._timeout_s(timeout))
        view = await self._cluster.refresh(timeout_s=left())
        per_broker_s = min(STATUS_TIMEOUT_S, max(0.001, left()))
        brokers = sorted(view.brokers.values(), key=lambda b: b.broker_id)
        replies, topics = await asyncio.gather(
            self._ask_each(brokers, pb.ClusterStatusRequest(), per_broker_s),
            self._ask_each(brokers, pb.MetadataRequest(all=True), per_broker_s),
        )
        return cluster_status.summarise(view.cluster_id, brokers, replies, _newest_topics(topics))

    async def feature_level(self, *, timeout: float | None = None) -> FeatureLevel:
        """Return the cluster's feature level, and which brokers keep it there: docs/operations.md."""
        return await self._feature_level(pb.FeatureLevelRequest(), timeout)

    async def hold_feature_level(self, level: int = 0, *, timeout: float | None = None) -> FeatureLevel:
        """Make every broker that answers announce at most this level (0: the present one), so that the cluster's level
        does not rise. The hold survives restarts and lasts until `release_feature_level`. One broker that holds the
        level is enough.

        Raises InvalidRequest (the level is below the present one, or above what a broker knows), UnsupportedVersion.
        """
        hold = pb.FeatureLevelRequest(action=pb.FeatureLevelRequest.HOLD, level=level)
        return await self._feature_level(hold, timeout)

    async def release_feature_level(self, *, timeout: float | None = None) -> FeatureLevel:
        """End the hold on every broker that answers. The cluster's level rises once all members announce a higher one,
        and never falls."""
        return await self._feature_level(pb.FeatureLevelRequest(action=pb.FeatureLevelRequest.RELEASE), timeout)

    async def _feature_level(self, request: pb.FeatureLevelRequest, timeout: float | None) -> FeatureLevel:
        left = self._cluster.countdown(self._timeout_s(timeout))
        view = await self._cluster.refresh(timeout_s=left())
        brokers = list(view.brokers.values())
        per_broker_s = min(STATUS_TIMEOUT_S, max(0.001, left()))
        replies = await self._ask_each(brokers, request, per_broker_s)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, Unavailable | UnsupportedVersion):
                raise reply
        return read_level({broker.broker_id: reply for broker, reply in zip(brokers, replies, strict=True)})

    async def describe_scan(self, scan_id: str, *, timeout: float | None = None) -> ScanDescription:
        """Which brokers have sent what to a scan (see Client.scan), each asked itself: of the latest 1,000 scans, until
        a broker stops. Raises InvalidName, BrokerUnreachable (no broker answers)."""
        request = pb.DescribeScanRequest(scan_id=check_scan(scan_id))
        replies, silent = await self._ask_all(request, self._timeout_s(timeout))
        return scans.describe(scan_id, replies, silent)

    async def list_scans(self, *, timeout: float | None = None) -> list[ScanSummary]:
        """The scans that the brokers remember, the latest first. Raises BrokerUnreachable."""
        replies, _ = await self._ask_all(pb.ListScansRequest(), self._timeout_s(timeout))
        return scans.summarise(replies)

    async def _ask_all(self, request: Any, timeout_s: float) -> tuple[dict[int, Any], list[int]]:
        """The answers by broker, and who gave none. Raises the last one's error when that is all of them."""
        left = self._cluster.countdown(timeout_s)
        view = await self._cluster.refresh(timeout_s=left())
        brokers = list(view.brokers.values())
        asked = await self._ask_each(brokers, request, min(STATUS_TIMEOUT_S, max(0.001, left())))
        replies = {b.broker_id: r for b, r in zip(brokers, asked, strict=True) if not isinstance(r, BaseException)}
        failed = [error for error in asked if isinstance(error, BaseException)]
        if (not replies and failed) or any(not isinstance(error, TinymqError) for error in failed):
            raise failed[-1]
        return replies, [b.broker_id for b in brokers if b.broker_id not in replies]

    async def _ask_each(self, brokers: Sequence[Broker], request: Any, timeout_s: float) -> list[Any | BaseException]:
        """What each of them answers, or why it does not."""
        asked = [self._cluster.ask_broker(b.address, request, timeout_s) for b in brokers]
        return await asyncio.gather(*asked, return_exceptions=True)

    async def _list(
        self, name: str, place: Place, timeout_s: float, partial: bool = False
    ) -> Mapping[int, pb.OffsetAnswer]:
        check_topic(name)
        left = self._cluster.countdown(timeout_s)
        await self._cluster.refresh([name], timeout_s=left())  # partitions come and go
        topic = await self._cluster.topic(name, left())
        places = by_partition(place, topic.numbers)
        asks = {p: at.timestamp_us if isinstance(at, OffsetQuestion) else END for p, at in places.items()}
        return await list_offsets(self._cluster, topic, asks, timeout_s=left(), leader_only=False, partial=partial)


def _newest_topics(replies: Iterable[Any]) -> tuple[TopicDescription, ...] | None:
    """All topics, by name, as the answer of the latest version has them: without a quorum none can be asked afresh."""
    answers = [reply for reply in replies if isinstance(reply, pb.MetadataReply)]
    if not answers:
        return None
    newest = max(answers, key=lambda reply: reply.version)
    topics = [routing.read_topic(info) for info in newest.topics if not info.HasField("error")]
    return tuple(_describe(topic) for topic in sorted(topics, key=lambda topic: topic.name))


def _describe(topic: Topic) -> TopicDescription:
    return TopicDescription(
        topic.name,
        topic.topic_id,
        topic.partitions,
        topic.replication_factor,
        as_datetime(topic.created_us),
        dict(topic.settings),
    )

"""The registry's records: brokers, topics, partitions (its *queues*) and their consumers. Frozen values only."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from tinymq.base.topic_config import TopicConfig
from tinymq.base.types import GroupId, TopicId
from tinymq.format.feature_level import FIRST_LEVEL


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """One registration of a broker: it holds until its lease runs out or the broker leaves."""

    broker_id: int
    incarnation: bytes  # of its data directory
    session: int  # random per process start: another start is another registration
    address: str  # where clients dial, host:port
    peer_address: str
    rack: str = ""
    feature_level: int = FIRST_LEVEL  # the level that it announces: the one that it knows, or a lower one while held


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """A broker, and the data directory that it had when the topic was created."""

    broker_id: int
    incarnation: bytes


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """One partition of a topic; *queue* is the registry's word for it."""

    topic: str
    topic_id: TopicId
    partition: int
    replicas: tuple[ReplicaPlace, ...]  # the preferred leader first
    created_us: int

    @property
    def group(self) -> GroupId:
        return GroupId(self.topic_id, self.partition)

    def has_replica(self, broker_id: int) -> bool:
        return any(r.broker_id == broker_id for r in self.replicas)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic with all its partitions. A created topic has a place for every one of them."""

    name: str
    topic_id: TopicId
    replication_factor: int
    created_us: int
    queues: tuple[QueueRecord, ...]  # by partition number, which may have gaps
    config: TopicConfig
    next_partition: int  # the next new partition's number; invariant: above those of `queues`
    config_version: int  # of the registry when the config was last altered

    def queue(self, partition: int) -> QueueRecord | None:
        """The partition of that number."""
        place = bisect_left(self.queues, partition, key=lambda queue: queue.partition)
        candidate = self.queues[place] if place < len(self.queues) else None
        return candidate if candidate is not None and candidate.partition == partition else None


@dataclass(frozen=True, slots=True)
class QueueConsumer:
    """The consumer that reads a partition for a channel."""

    topic: str
    topic_id: TopicId
    partition: int
    channel: str
    consumer: str
    epoch: int  # above that of every earlier assignment in the cluster


@dataclass(frozen=True, slots=True)
class MetadataRecord:
    """A value that another part of a broker stores in the registry, by kind and name."""

    kind: str
    name: str
    value: bytes
    version: int  # the registry's version when it was written; no two writes share one

"""What the registry tells about: brokers, topics, queues. Frozen values; no I/O, no wire."""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.types import GroupId, TopicId


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """One registration of a broker: it holds until its lease runs out or the broker leaves."""

    broker_id: int
    incarnation: bytes  # of its data folder
    session: int  # random per process start: another start is another registration
    address: str  # where clients dial, host:port
    peer_address: str
    rack: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """A broker, and the data folder it had when the topic was made."""

    broker_id: int
    incarnation: bytes


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """One partition of a topic; *queue* is the registry's word for it."""

    topic: str
    topic_id: TopicId
    partition: int
    replicas: tuple[ReplicaPlace, ...]  # the preferred leader first

    @property
    def group(self) -> GroupId:
        return GroupId(self.topic_id, self.partition)

    def has_replica(self, broker_id: int) -> bool:
        return any(r.broker_id == broker_id for r in self.replicas)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic whole: created means that every partition has its place."""

    name: str
    topic_id: TopicId
    replication_factor: int
    created_us: int
    queues: tuple[QueueRecord, ...]  # by partition number

"""The state of a cluster: what its brokers report, compared with the brokers that the cluster needs. Pure.

A broker that died is unregistered after a while, and then it is not asked any more. So this module compares the answers
with the brokers that should exist: every metadata voter, and every broker to which a replica is assigned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tinymq.base.types import TopicId
from tinymq.client.cluster import routing
from tinymq.client.cluster.routing import Broker, Partition, Topic
from tinymq.client.common.values import as_datetime
from tinymq.proto import tinymq_pb2 as pb

UNREACHABLE = "unreachable"
MISSING = "missing"


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with its partitions, by number (numbers may have gaps). A `leader` is 0 while no leader is known.

    for topic in mq.admin.list_topics():
        print(topic.name, len(topic.partitions), topic.settings)
    """

    name: str
    topic_id: bytes
    partitions: tuple[Partition, ...]
    replication_factor: int
    created: datetime
    settings: Mapping[str, str] = field(default_factory=dict)  # all of them, as `alter_topic` takes them


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica, as its broker describes it.

    for broker in mq.admin.cluster_status().brokers:
        for replica in broker.replicas:
            print(replica.topic, replica.partition, replica.role, replica.bytes)
    """

    topic: str  # "" for the metadata group
    partition: int
    role: str
    term: int
    leader: int
    last_index: int
    durable_index: int
    commit_index: int
    high_watermark: int
    log_start: int
    chain_crc: int  # equal on equal logs
    reason: str
    bytes: int
    topic_id: TopicId | None = None  # tells topics of one name apart: an earlier one was deleted. None: not reported


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One broker. `state` is what the broker reports, or "unreachable" (it is registered but does not answer), or
    "missing" (it is not registered, although it votes or holds replicas). `reason` explains the last two.

        for broker in mq.admin.cluster_status().brokers:
            print(broker.broker_id, broker.state, broker.reason)
    """

    broker_id: int
    address: str  # "": unknown, because the broker is missing
    rack: str
    alive: bool  # registered
    state: str
    reason: str
    version: str
    replicas: tuple[ReplicaStatus, ...]
    metrics_address: str = ""  # where the broker serves /metrics and /status; "": nowhere
    votes: bool = False  # on the metadata
    heard_s: float | None = None  # how long ago another broker heard it; None: never since the others started


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The state of all brokers, as each describes itself.

    status = mq.admin.cluster_status()
    print(status.metadata_leader, len(status.brokers))
    """

    cluster_id: bytes
    metadata_leader: int
    feature_level: int
    brokers: tuple[BrokerStatus, ...]
    topics: tuple[TopicDescription, ...] | None  # as the best informed broker has them; None: no broker answered


def summarise(
    cluster_id: bytes,
    brokers: Sequence[Broker],
    replies: Mapping[int, Any],
    topics: tuple[TopicDescription, ...] | None,
) -> ClusterStatus:
    """Combine the replies of the registered `brokers`, by id: a ClusterStatusReply each, or the error that came instead
    of it."""
    answers = [reply for reply in replies.values() if isinstance(reply, pb.ClusterStatusReply)]
    voters = {broker_id for reply in answers for broker_id in reply.metadata_voters}
    heard_s = _last_heard_s(answers)
    statuses = [
        _status(broker, replies[broker.broker_id], broker.broker_id in voters, heard_s.get(broker.broker_id))
        for broker in brokers
    ]
    holders = {b for topic in topics or () for partition in topic.partitions for b in partition.replicas}
    statuses += [
        _missing(broker_id, broker_id in voters, broker_id in holders, heard_s.get(broker_id))
        for broker_id in (voters | holders) - {broker.broker_id for broker in brokers}
    ]
    leaders = [reply.metadata_leader for reply in answers if reply.metadata_leader]
    return ClusterStatus(
        cluster_id,
        max(leaders, default=0),
        max((reply.feature_level for reply in answers), default=0),
        tuple(sorted(statuses, key=lambda status: status.broker_id)),
        topics,
    )


def describe_topic(topic: Topic) -> TopicDescription:
    """A topic of the client's view, as applications get it."""
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        created=as_datetime(topic.created_us),
        settings=dict(topic.settings),
    )


def describe_topics(reply: pb.MetadataReply) -> tuple[TopicDescription, ...]:
    """The topics that a broker describes, by name. Topics that it reports as unknown are left out."""
    topics = [routing.read_topic(info) for info in reply.topics if not info.HasField("error")]
    return tuple(describe_topic(topic) for topic in sorted(topics, key=lambda topic: topic.name))


def newest_topics(replies: Iterable[Any]) -> tuple[TopicDescription, ...] | None:
    """The topics of the reply with the latest version of the metadata. Without a quorum no broker can give a fresher
    answer. None if no broker answered."""
    answers = [reply for reply in replies if isinstance(reply, pb.MetadataReply)]
    return describe_topics(max(answers, key=lambda reply: reply.version)) if answers else None


def _last_heard_s(answers: Iterable[pb.ClusterStatusReply]) -> dict[int, float]:
    heard: dict[int, float] = {}
    for reply in answers:
        for peer in reply.heard:
            heard[peer.id] = min(heard.get(peer.id, float("inf")), peer.age_ms / 1000)
    return heard


def _status(broker: Broker, reply: Any, votes: bool, heard_s: float | None) -> BrokerStatus:
    if isinstance(reply, pb.ClusterStatusReply):
        return BrokerStatus(
            broker_id=broker.broker_id,
            address=broker.address,
            rack=broker.rack,
            alive=broker.alive,
            state=reply.state,
            reason=reply.reason,
            version=reply.version,
            replicas=tuple(map(_replica, reply.replicas)),
            metrics_address=reply.metrics_address,
            votes=votes,
            heard_s=heard_s,
        )
    return BrokerStatus(
        broker_id=broker.broker_id,
        address=broker.address,
        rack=broker.rack,
        alive=broker.alive,
        state=UNREACHABLE,
        reason=reply.message,
        version="",
        replicas=(),
        votes=votes,
        heard_s=heard_s,
    )


def _missing(broker_id: int, votes: bool, holds: bool, heard_s: float | None) -> BrokerStatus:
    why = " and ".join(filter(None, ["votes on the metadata" if votes else "", "has replicas" if holds else ""]))
    return BrokerStatus(
        broker_id=broker_id,
        address="",
        rack="",
        alive=False,
        state=MISSING,
        reason=f"it {why}, and is not registered; {_when(heard_s)}",
        version="",
        replicas=(),
        votes=votes,
        heard_s=heard_s,
    )


def _when(heard_s: float | None) -> str:
    if heard_s is None:
        return "never heard by the brokers that answer"
    return f"last heard {heard_s:.0f} s ago"


def _replica(r: pb.ReplicaStatus) -> ReplicaStatus:
    return ReplicaStatus(
        topic=r.topic,
        partition=r.partition,
        role=r.role,
        term=r.term,
        leader=r.leader,
        last_index=r.last_index,
        durable_index=r.durable_index,
        commit_index=r.commit_index,
        high_watermark=r.high_watermark,
        log_start=r.log_start,
        chain_crc=r.chain_crc,
        reason=r.reason,
        bytes=r.bytes,
        topic_id=TopicId(r.topic_id),
    )

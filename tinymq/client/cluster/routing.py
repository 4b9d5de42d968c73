"""The routes of a client: a frozen view of topics, leaders and brokers, and the pure functions that update it.

Invariant: for one topic id and partition, the leader epoch never goes back, in whatever order answers arrive. No I/O,
no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise

from tinymq.base.errors import CorruptData, NotLeader, UnknownPartition, UnknownTopic
from tinymq.client.common.topic_settings import TopicBounds, read_bounds
from tinymq.proto import tinymq_pb2 as pb

DELETED_MAX = 256

Cost = Callable[[int], tuple[float, float]]
"""Broker id -> (seconds for which the broker is still avoided, its usual latency in seconds)."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker as the registry has it. `alive`: its registration has not expired.

    print([broker.address for broker in mq.admin.brokers() if broker.alive])
    """

    broker_id: int
    address: str
    alive: bool = True
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """The place of a partition. `leader` is 0 while no leader is known."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]  # the preferred leader first


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and its partitions, ordered by number. There may be gaps between the numbers."""

    name: str
    topic_id: bytes
    partitions: tuple[Partition, ...]
    replication_factor: int = 0
    created_us: int = 0
    settings: tuple[tuple[str, str], ...] = ()  # all of them, by name, as text

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(partition.partition for partition in self.partitions)

    @property
    def bounds(self) -> TopicBounds:
        """The bounds of what each partition accepts."""
        return read_bounds(self.settings)

    def partition(self, number: int) -> Partition | None:
        """Return the partition of that number; None if there is none."""
        place = bisect_left(self.partitions, number, key=lambda partition: partition.partition)
        candidate = self.partitions[place] if place < len(self.partitions) else None
        return candidate if candidate is not None and candidate.partition == number else None

    def with_partition(self, partition: Partition) -> Topic:
        """Return the topic with `at` replaced or added."""
        others = [known for known in self.partitions if known.partition != partition.partition]
        return replace(self, partitions=tuple(sorted([*others, partition], key=lambda known: known.partition)))

    def without_partition(self, number: int) -> Topic:
        return replace(
            self, partitions=tuple(partition for partition in self.partitions if partition.partition != number)
        )

    def unknown(self, number: int) -> UnknownPartition:
        """Return the error for a partition that the topic does not have."""
        return UnknownPartition(f"{self.name}/{number}: the topic has partitions {_ranges(self.numbers)}")


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as this client knows it."""

    cluster_id: bytes = b""
    version: int = 0  # of the registry state that the topics and brokers are from
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    deleted: tuple[bytes, ...] = ()  # ids of topics that this client deleted: a broker that lags may still name them

    def partition(self, topic: str, partition: int) -> Partition:
        """Return a partition. Raises UnknownTopic, UnknownPartition."""
        known = self.topics.get(topic)
        if known is None:
            raise UnknownTopic(f"topic {topic!r} is not known")
        at = known.partition(partition)
        if at is None:
            raise known.unknown(partition)
        return at

    def address(self, broker_id: int) -> str | None:
        broker = self.brokers.get(broker_id)
        return broker.address if broker is not None else None


def read_topic(info: pb.TopicInfo) -> Topic:
    """Read a topic off the wire. Raises CorruptData if it has no partition, or one twice."""
    partitions = tuple(sorted(map(read_partition, info.partitions), key=lambda partition: partition.partition))
    if not partitions or any(low.partition == high.partition for low, high in pairwise(partitions)):
        raise CorruptData(f"an answer about topic {info.name[:300]!r} has no partition, or one twice", hint="")
    settings = tuple((setting.name, setting.value) for setting in info.settings)
    return Topic(info.name, info.topic_id, partitions, info.replication_factor, info.created_us, settings)


def read_partition(info: pb.PartitionInfo) -> Partition:
    return Partition(info.partition, info.leader, info.leader_epoch, tuple(info.replicas))


def merge(view: View, reply: pb.MetadataReply, asked: Iterable[str]) -> View:
    """Return the view after a metadata answer. A topic that was asked for and is missing in the answer is removed."""
    # A broker that lags may answer with an older version of the registry's state. Such an answer adds what the view
    # lacks, and its leaders count by their epochs; it replaces and removes nothing.
    stale = reply.version < view.version
    brokers = dict(view.brokers) if stale else {}
    for b in reply.brokers:
        if not stale or b.id not in brokers:
            brokers[b.id] = Broker(b.id, b.address, b.alive, b.rack)
    topics = dict(view.topics)
    for info in reply.topics:
        known = topics.get(info.name)
        if info.HasField("error"):
            if not stale and info.error.code == UnknownTopic.code:  # another error says nothing about the topic
                topics.pop(info.name, None)
            continue
        fresh = read_topic(info)
        if fresh.topic_id in view.deleted:
            continue
        if known is not None and known.topic_id == fresh.topic_id:
            topics[info.name] = _with_leaders(known, fresh) if stale else _newer(known, fresh)
        elif known is None or not stale:
            topics[info.name] = fresh
    candidate = {info.name for info in reply.topics}
    if not stale:
        for name in asked:
            if name not in candidate:
                topics.pop(name, None)
    version = max(view.version, reply.version)
    return View(reply.cluster_id or view.cluster_id, version, brokers, topics, view.deleted)


def _newer(known: Topic, fresh: Topic) -> Topic:
    """Return `fresh` with the leaders of `known` where these have a later epoch."""
    partitions = []
    for now in fresh.partitions:
        old = known.partition(now.partition)
        if old is not None and (old.leader_epoch > now.leader_epoch or (old.leader and not now.leader)):
            now = replace(now, leader=old.leader, leader_epoch=old.leader_epoch)
        partitions.append(now)
    return replace(fresh, partitions=tuple(partitions))


def _with_leaders(known: Topic, stale: Topic) -> Topic:
    """Return `known` with the leaders of `stale` where these have a later epoch.

    A broker that lags behind the registry may still know the newest leader.
    """
    partitions = []
    for partition in known.partitions:
        other = stale.partition(partition.partition)
        if other is not None and other.leader_epoch > partition.leader_epoch:
            partition = replace(partition, leader=other.leader, leader_epoch=other.leader_epoch)
        partitions.append(partition)
    return replace(known, partitions=tuple(partitions))


def with_partition(view: View, topic: str, partition: Partition) -> View:
    """Return the view with a partition that was just added."""
    known = view.topics.get(topic)
    if known is None or known.partition(partition.partition) is not None:
        return view
    return replace(view, topics={**view.topics, topic: known.with_partition(partition)})


def without_partition(view: View, topic: str, partition: int) -> View:
    """Return the view without a deleted partition. The answer of a broker that lags may bring it back for a while."""
    known = view.topics.get(topic)
    if known is None or known.partition(partition) is None:
        return view
    return replace(view, topics={**view.topics, topic: known.without_partition(partition)})


def with_topic(view: View, topic: Topic) -> View:
    """Return the view with a topic that was just created or described."""
    known = view.topics.get(topic.name)
    if known is not None and known.topic_id == topic.topic_id:
        topic = _newer(known, topic)
    return replace(view, topics={**view.topics, topic.name: topic})


def without_topic(view: View, name: str) -> View:
    """Return the view without a topic that this client has deleted."""
    known = view.topics.get(name)
    if known is None:
        return view
    topics = {n: t for n, t in view.topics.items() if n != name}
    return replace(view, topics=topics, deleted=(*view.deleted, known.topic_id)[-DELETED_MAX:])


def learn_leader(view: View, topic: str, partition: int, leader: int, epoch: int, address: str = "") -> View:
    """Return the view with the leader that a broker named, unless the view has a later epoch."""
    known = view.topics.get(topic)
    old = known.partition(partition) if known is not None else None
    if known is None or old is None:
        return view
    if epoch < old.leader_epoch or (epoch == old.leader_epoch and (not leader or old.leader == leader)):
        return view
    led = known.with_partition(replace(old, leader=leader, leader_epoch=epoch))
    brokers = view.brokers
    if leader and address and leader not in brokers:
        brokers = {**brokers, leader: Broker(leader, address)}
    return replace(view, brokers=brokers, topics={**view.topics, topic: led})


def learn_from(view: View, topic: str, partition: int, error: NotLeader) -> View:
    """Return the view after a NotLeader answer. Its detail names the leader, the address and the epoch, if known."""
    detail = error.detail
    try:
        leader, epoch = int(detail.get("leader", 0)), int(detail.get("leader_epoch", 0))
    except ValueError:
        return view
    return learn_leader(view, topic, partition, leader, epoch, detail.get("leader_address", ""))


class Reach(IntEnum):
    """How well a partition's leader can be reached. Higher values are worse."""

    GOOD = 0
    SLOW = 1
    LOST = 2  # the leader's broker fails, is not registered, or denies that it leads
    NOBODY = 3  # no leader is known


def spread(topic: Topic, reach_of: Callable[[Partition], Reach]) -> tuple[list[int], frozenset[int]]:
    """Return (the partitions for records without a key, the partitions that such records leave).

    Records go only to the partitions of the topic with the best reach: a slow leader is used only if none is better.
    Records leave lost leaders if any other leader can be reached.
    """
    reach = {at.partition: reach_of(at) for at in topic.partitions}
    best = min(reach.values(), default=Reach.NOBODY)
    usable = [partition for partition, each in reach.items() if each is best]
    left = frozenset(partition for partition, each in reach.items() if each >= Reach.LOST)
    return usable, left if best < Reach.LOST else frozenset()


def read_order(view: View, partition: Partition, replica: str, *, rack: str, cost: Cost, turn: int) -> list[int]:
    """Return the brokers to read from, best first: all replicas with a known address. `turn` rotates among equals."""
    known = [b for b in partition.replicas if b in view.brokers]
    if not known:
        return []
    spread = known[turn % len(known) :] + known[: turn % len(known)]

    def rank(broker: int) -> tuple[float, ...]:
        avoided_s, latency = cost(broker)
        node = view.brokers[broker]
        gone = 0.0 if node.alive else 1.0
        bad = 1.0 if avoided_s > 0 else 0.0
        if replica == "leader":
            return (0.0 if broker == partition.leader else 1.0, bad, gone)
        if replica == "follower":
            return (bad, gone, 1.0 if broker == partition.leader else 0.0)
        if replica == "nearest":
            return (bad, gone, 0.0 if rack and node.rack == rack else 1.0, latency)
        return (bad, gone)

    return sorted(spread, key=rank)


def tier_order(
    view: View,
    partition: Partition,
    tiers: Sequence[Sequence[int]],
    *,
    cost: Cost,
    turn: int,
    leader_last: bool = False,
) -> list[int]:
    """Return the brokers of `tiers` to read from, tier by tier.

    Avoided and unregistered brokers come behind all others, and with `leader_last`, the current leader behind its tier.
    Within a tier the faster of two brokers comes first, and `turn` chooses the two, so that readers spread. Brokers
    without a replica or a known address are left out. If no broker is left, because the partition has moved since, all
    its replicas are one tier.
    """
    for asked in (tiers, (partition.replicas,)):
        order: list[tuple[tuple[float, ...], int]] = []
        for number, tier in enumerate(asked):
            known = [broker for broker in tier if broker in partition.replicas and broker in view.brokers]
            first = turn % max(1, len(known))
            for place, broker in enumerate(known[first:] + known[:first]):
                avoided_s, latency_s = cost(broker)
                bad, gone = float(avoided_s > 0), float(not view.brokers[broker].alive)
                leads = leader_last and broker == partition.leader
                order.append(((bad, gone, leads, number, place // 2, latency_s), broker))
        if order:
            return [broker for _, broker in sorted(order, key=lambda each: each[0])]
    return []


def _ranges(numbers: Iterable[int]) -> str:
    """Return rising numbers as a person writes them: "0-3, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs[:20])

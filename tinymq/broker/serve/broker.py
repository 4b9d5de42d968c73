"""A running broker as its services see it: finds partitions, creates topics, and knows the leaders."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from tinymq.base.clock import Clock
from tinymq.base.config import Limits, Timing
from tinymq.base.errors import NotLeader, NotReady, TinymqError, TopicExists, UnknownPartition, UnknownTopic
from tinymq.base.quantity import named, quantity
from tinymq.base.topic_config import TopicConfig
from tinymq.base.types import GroupId, TopicId, check_topic_name, check_user_topic
from tinymq.broker.cluster.feature_level import FeatureLevelControl
from tinymq.broker.partition.admission import check_topic_id
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Partition
from tinymq.broker.replicas.replica_host import ReplicaHost
from tinymq.broker.serve.fetch_waits import FetchWaits
from tinymq.broker.serve.makers import Makers
from tinymq.broker.serve.producer_ids import ProducerIds
from tinymq.broker.serve.scans import Scans
from tinymq.broker.serve.unpack_queue import UnpackQueue
from tinymq.broker.state.staged import Totals
from tinymq.log.files.runner import Runner
from tinymq.registry.service import DEFAULT_CONFIG, RegistryService
from tinymq.registry.state.values import QueueRecord, TopicRecord

REFRESH_S = 2.0  # deadline for a question to the registry's leader
UNKNOWN_MAX = 1000  # remembered topics and partitions that do not exist
LOOK_S = 0.01  # between two checks for the leaders of a new topic, or for brokers to hold it
REPLICATION_FACTOR = 3  # the default, or the number of brokers if there are fewer
REGISTERED_S_MAX = 5.0  # wait for live brokers to register, which they usually do a second after their start

logger = structlog.get_logger("tinymq.broker")


class Leaders(Protocol):
    """The part of the Raft host that routing uses (tinymq.raft.Host)."""

    def count_alive(self) -> int: ...

    def leader_of(self, group_id: GroupId) -> tuple[int, int] | None: ...


class LossCounts(NamedTuple):
    """The fate of logs in memory, or synced at intervals, since this process began."""

    memory_bytes: int  # that logs in memory take now
    recovered: int  # partitions that this broker's replica resumed after a majority of the replicas was lost
    lost: int  # those of them whose log was empty


@dataclass(frozen=True, slots=True)
class BrokerEnv:
    """The parts of a process that a broker uses."""

    broker_id: int
    cluster_id: bytes
    registry: RegistryService
    replica_host: ReplicaHost
    leaders: Leaders
    deadlines: Deadlines
    clock: Clock
    runner: Runner
    limits: Limits
    timing: Timing
    loss_counts: Callable[[], LossCounts]
    upgrade: FeatureLevelControl
    voters: Callable[[], Collection[int]]  # of the metadata group
    auto_create_partitions: int  # of a topic that is made when it is first used; 0: topics are not made so
    metadata_known: Callable[[], bool]  # False while the registry here is empty, being filled, or damaged


class Broker:
    """The broker of one process. All calls on the loop."""

    def __init__(self, env: BrokerEnv) -> None:
        self.env = env
        self.registry = env.registry
        self.replica_host = env.replica_host
        self.upgrade = env.upgrade
        self.limits = env.limits
        self.timing = env.timing
        self.deadlines = env.deadlines
        self.producer_ids = ProducerIds(env.registry)
        self.makers = Makers(env.registry, env.clock)
        self.scans = Scans(env.clock)
        self.unpack_queue = UnpackQueue(env.runner)
        self.delayed_totals = Totals()
        self.staged_totals = Totals()  # of transactions
        self.fetch_waits = FetchWaits(env.limits.waiting_fetches_max)
        self._unknown: OrderedDict[GroupId, None] = OrderedDict()  # not in the registry; of a topic, partition 0
        self._refreshing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End the questions to the registry that are under way. Call it when no client's call is left."""
        if self._refreshing is not None:
            refreshing = self._refreshing
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)
        await self.producer_ids.close()

    def check_metadata_known(self) -> None:
        """Raises NotReady while this broker's metadata is empty or damaged, so that it knows nothing of its cluster."""
        if not self.env.metadata_known():
            raise NotReady("this broker's metadata is being filled, or damaged", hint="ask another broker")

    def find(self, topic_id: bytes, partition: int) -> Partition:
        """This broker's replica of a partition.

        Raises InvalidName, UnknownTopic, UnknownPartition, NotLeader (other brokers hold the replicas), NotReady (the
        replica is being opened, or this broker does not know the partition yet).
        """
        replica = self.replica_host.get(topic_id, partition)
        return replica if replica is not None else self._explain(topic_id, partition)

    def _explain(self, topic_id: bytes, partition: int) -> Partition:
        """Raise the reason why this broker has no such replica."""
        check_topic_id(topic_id)
        group = GroupId(TopicId(topic_id), partition)
        topic = self.registry.get_topic_by_id(group.topic_id)
        if topic is not None:
            check_user_topic(topic.name)
        if topic is None:
            # Partition 0 stands for the topic, so that requests for many of its partitions cause one question.
            raise self._missing(group._replace(partition=0), UnknownTopic(f"no topic has the id {topic_id.hex()}"))
        queue = topic.queue(partition)
        if queue is None:
            raise self._missing(group, UnknownPartition(f"topic {topic.name!r} has no partition {partition}"))
        if not queue.has_replica(self.env.broker_id):
            raise self.elsewhere(queue)
        failed = self.replica_host.failure(queue.group)
        why = "is being opened" if failed is None else f"could not be opened: {failed.message}"
        raise NotReady(f"{topic.name}/{partition}: this broker's replica {why}")

    def elsewhere(self, queue: QueueRecord) -> NotLeader:
        """The error that sends a client to the leader, where this broker holds no replica."""
        broker, term = self.leader_of(queue.group)
        return NotLeader(
            f"{queue.topic}/{queue.partition}: broker {self.env.broker_id} holds no replica",
            leader=broker or None,
            leader_address=self.address_of(broker),
            leader_epoch=term or None,
        )

    def _missing(self, group: GroupId, error: TinymqError) -> TinymqError:
        """The error for a group that the local registry does not have.

        A new topic may not have reached this broker yet. The first answer is therefore NotReady while the broker asks
        the registry's leader, and `error` only once the leader does not have the group either.
        """
        if self.registry.is_queue_deleted(group) or group in self._unknown:
            return error
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._look_for(group))
        return NotReady(f"{group} is not known here yet", hint="asking the registry: try again")

    async def _look_for(self, group: GroupId) -> None:
        try:
            await self.registry.refresh(REFRESH_S)
            topic = self.registry.get_topic_by_id(group.topic_id)
            if topic is None or topic.queue(group.partition) is None:
                self._unknown[group] = None
                if len(self._unknown) > UNKNOWN_MAX:
                    self._unknown.popitem(last=False)
        except TinymqError as error:
            logger.info("registry_unreachable", error=error.code, reason=str(error))
        finally:
            self._refreshing = None

    def not_opened(self) -> list[tuple[QueueRecord, TinymqError]]:
        """The replicas that this broker should hold and could not open, with the errors."""
        queues = [queue for topic in self.registry.get_all_topics() for queue in topic.queues]
        failed = [(queue, self.replica_host.failure(queue.group)) for queue in queues]
        return [(queue, error) for queue, error in failed if error is not None]

    # ---- metadata ------------------------------------------------------------------------------------

    def leader_of(self, group: GroupId) -> tuple[int, int]:
        """(broker, term) of the leader as far as this broker knows; (0, 0): none is known."""
        return self.env.leaders.leader_of(group) or (0, 0)

    def address_of(self, broker_id: int) -> str | None:
        """The address at which clients reach a registered broker."""
        broker = self.registry.get_broker(broker_id)
        return broker.address if broker is not None else None

    async def topics(self, names: Sequence[str]) -> Iterator[TopicRecord | TinymqError]:
        """Topics by name, in the order of `names`. For an unknown name, asks the registry's leader first.

        Each topic is looked up when the iterator comes to it: a caller with many names can rest in between.
        """
        refused: TinymqError | None = None
        if any(self.registry.get_topic(name) is None for name in names):
            try:
                await self.registry.refresh(REFRESH_S)
            except TinymqError as error:
                refused = error
        return (self.registry.get_topic(name) or _missing(name, refused) for name in names)

    async def refresh(self) -> None:
        """Bring the local registry up to date with every change acknowledged before the call. Raises NotReady."""
        try:
            await self.registry.refresh(REFRESH_S)
        except TinymqError as error:
            raise NotReady(f"the registry's leader does not answer: {error.message}") from error

    # ---- topics --------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int | None,
        timeout_s: float,
        command_id: bytes = b"",
        config: TopicConfig = DEFAULT_CONFIG,
    ) -> TopicRecord:
        """Create a topic, and wait up to `timeout_s` until every partition has a leader. The topic exists in any case.

        `replication_factor` None means three, or the number of brokers if there are fewer, once that number is known.
        Raises NotReady if it is not known in time, and as `RegistryService.register_topic`.
        """
        check_user_topic(name)
        deadline_s = self.env.clock.monotonic() + timeout_s
        if replication_factor is None:
            replication_factor = await self._default_factor(deadline_s)
        await self._wait_registered(replication_factor, deadline_s)
        left_s = deadline_s - self.env.clock.monotonic()
        topic = await self.registry.register_topic(name, partitions, replication_factor, config, left_s, command_id)
        logger.info("topic_created", topic=name, partitions=partitions, replication_factor=replication_factor)
        await self._wait_leaders(topic.queues, deadline_s)
        return topic

    def would_create(self, name: str) -> bool:
        """Would `create_missing` create the topic, as far as this broker knows?"""
        return bool(self.env.auto_create_partitions) and self.registry.get_topic(name) is None

    async def create_missing(self, name: str, timeout_s: float) -> None:
        """Create a topic that does not exist, if this broker's settings allow that. Raises as `create_topic`."""
        if not self.would_create(name):
            return
        deadline_s = self.env.clock.monotonic() + timeout_s
        check_topic_name(name)
        await self.refresh()
        if self.registry.get_topic(name) is not None:
            return
        try:
            left_s = deadline_s - self.env.clock.monotonic()
            await self.create_topic(name, self.env.auto_create_partitions, None, left_s)
        except TopicExists:  # another broker has just made it
            await self.refresh()

    async def _default_factor(self, deadline_s: float) -> int:
        """Wait until the default number of replicas is known, and return it. In a cluster that has just started, some
        brokers are not registered yet. A topic made then would silently keep fewer replicas for good.

        Raises NotReady at the deadline. The error names the missing brokers (detail: missing).
        """
        while True:
            registered = {broker.broker_id for broker in self.registry.get_all_brokers()}
            voters = set(self.env.voters())
            if len(registered) >= max(1, min(REPLICATION_FACTOR, len(voters))):
                return min(REPLICATION_FACTOR, len(registered))
            if self.env.clock.monotonic() >= deadline_s:
                missing = sorted(voters - registered)
                raise NotReady(
                    f"{quantity(len(registered), 'broker')} registered, too few for the default replication factor:"
                    f" {named('broker', missing)} missing",
                    hint="start the missing brokers, or give the number of replicas",
                    missing=", ".join(map(str, missing)),
                )
            await self.env.clock.sleep(LOOK_S)

    async def _wait_registered(self, count: int, deadline_s: float) -> None:
        """Wait until every broker that is heard is registered, but for REGISTERED_S_MAX at most. In a cluster that has
        just started, some brokers are heard but not registered yet. A topic made then would use only the others, or
        would be refused if they are too few. If fewer than `count` brokers are heard, return at once, because the
        request will be refused."""
        until_s = min(deadline_s, self.env.clock.monotonic() + REGISTERED_S_MAX)
        while count <= self.env.leaders.count_alive() > len(self.registry.get_all_brokers()):
            if self.env.clock.monotonic() >= until_s:
                break
            await self.env.clock.sleep(LOOK_S)

    async def alter_topic(
        self, name: str, settings: Sequence[tuple[str, str]], timeout_s: float, command_id: bytes = b""
    ) -> TopicRecord:
        """Change settings of a topic. Every broker applies them when its registry has them.

        Raises as `RegistryService.alter_topic`.
        """
        check_user_topic(name)
        topic = await self.registry.alter_topic(name, settings, timeout_s, command_id)
        logger.info("topic_altered", topic=name, settings=dict(settings))
        return topic

    async def add_partition(self, topic: str, timeout_s: float, command_id: bytes = b"") -> QueueRecord:
        """Add a partition to a topic, and wait for its leader as `create_topic` does.

        Raises as `RegistryService.register_queue`.
        """
        check_user_topic(topic)
        deadline_s = self.env.clock.monotonic() + timeout_s
        record = self.registry.get_topic(topic)
        await self._wait_registered(1 if record is None else record.replication_factor, deadline_s)
        left_s = deadline_s - self.env.clock.monotonic()
        queue = await self.registry.register_queue(topic, left_s, command_id)
        logger.info("partition_added", topic=topic, partition=queue.partition)
        await self._wait_leaders([queue], deadline_s)
        return queue

    async def delete_partition(
        self,
        topic: str,
        partition: int,
        timeout_s: float,
        command_id: bytes = b"",
        *,
        with_topic: bool = False,
        topic_id: bytes = b"",
    ) -> None:
        """Delete a partition, as `RegistryService.unregister_queue` does. Its data is deleted in the background."""
        check_user_topic(topic)
        await self.registry.unregister_queue(
            topic, partition, timeout_s, command_id, with_topic=with_topic, topic_id=topic_id
        )
        logger.info("partition_removed", topic=topic, partition=partition)

    async def _wait_leaders(self, queues: Sequence[QueueRecord], deadline_s: float) -> None:
        """Return once each partition has a leader or is deleted, or at the deadline."""
        while not all(self.leader_of(q.group)[0] or self.registry.is_queue_deleted(q.group) for q in queues):
            if self.env.clock.monotonic() >= deadline_s:
                break
            await self.env.clock.sleep(LOOK_S)

    async def delete_topic(self, name: str, timeout_s: float, command_id: bytes = b"") -> None:
        """Delete a topic. Its data is deleted in the background. Raises as `RegistryService.unregister_topic`."""
        check_user_topic(name)
        await self.registry.unregister_topic(name, timeout_s, command_id)
        logger.info("topic_deleted", topic=name)


def _missing(name: str, refused: TinymqError | None) -> TinymqError:
    """The error of a name that the registry here does not have. `refused`: its leader could not be asked."""
    if refused is not None:
        return NotReady(
            f"topic {name[:300]!r} is not known here, and the registry's leader does not answer: {refused.message}"
        )
    try:
        check_topic_name(name)
    except TinymqError as error:
        return error
    return UnknownTopic(f"no topic {name!r}")

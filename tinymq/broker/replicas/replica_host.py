"""Opens and deletes this broker's replicas of partitions as the registry places and deletes them.

Only a deletion that the registry recorded removes data. A registry that lags, or that lost its disk, removes nothing.
A registry that lags does not create a replica either: after a restart of all brokers it may show a topic whose deletion
it learns only from the next leader. Effects of the registry are followed in order, and all state belongs to the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import structlog

from tinymq.base.clock import Clock, SystemClock, Timer
from tinymq.base.config import Limits
from tinymq.base.errors import NotReady, TinymqError, UnknownPartition, UnknownTopic
from tinymq.base.retry import Backoff
from tinymq.base.types import METADATA_GROUP, GroupId, is_internal
from tinymq.broker.members.coordinator_replica import CoordinatorGroup, CoordinatorReplica
from tinymq.broker.partition.partition import Partition, RaftGroup
from tinymq.format.entry import Entry
from tinymq.log import LogConfig, log_config
from tinymq.raft import Replica, StateMachine, make_first_entry
from tinymq.registry.service import RegistryService
from tinymq.registry.state.effects import (
    Effect,
    PartitionAdded,
    PartitionDeleted,
    Reloaded,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
)
from tinymq.registry.state.values import QueueRecord, TopicRecord

OPENING_MAX = 16  # groups opened or deleted side by side
BACKOFF = Backoff(1.0, 30.0)  # after retriable failures of one group

logger = structlog.get_logger("tinymq.broker")


class HostedGroup(RaftGroup, CoordinatorGroup, Protocol):
    """The part of a Raft group that the replicas here use."""


class GroupHost(Protocol):
    """The part of the Raft host that the replica host uses (tinymq.raft.Host)."""

    async def open_group(
        self, group_id: GroupId, first_entry: Entry, machine: StateMachine, config: LogConfig
    ) -> HostedGroup: ...
    def configure_group(self, group_id: GroupId, config: LogConfig) -> None: ...
    async def close_group(self, group_id: GroupId) -> None: ...
    async def delete_group(self, group_id: GroupId) -> None: ...


def first_entry_of(queue: QueueRecord) -> Entry:
    """Entry 1 of a partition. It depends on the registry alone, so its bytes are the same on every broker."""
    return make_first_entry(
        queue.group, [Replica(r.broker_id, r.incarnation) for r in queue.replicas], queue.created_us
    )


class ReplicaHost:
    """The open replicas of partitions, by (topic id, partition)."""

    def __init__(
        self,
        broker_id: int,
        registry: RegistryService,
        groups: GroupHost,
        make_partition: Callable[[QueueRecord], Partition],
        limits: Limits | None = None,
        clock: Clock | None = None,
        make_internal: Callable[[QueueRecord], CoordinatorReplica] | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._broker_id = broker_id
        self._registry = registry
        self._groups = groups
        self._on_disk: set[GroupId] = set()  # groups with data in the data directory
        self._make_partition = make_partition
        self._make_internal = make_internal
        self._open: dict[tuple[bytes, int], Partition] = {}
        self._internal: dict[tuple[bytes, int], CoordinatorReplica] = {}  # of the topics that belong to the cluster
        self._failed: dict[GroupId, TinymqError] = {}  # not open, with the newest error
        self._pending: dict[GroupId, QueueRecord | None] = {}  # work that is due: the record to open; None: delete
        self._retries: dict[GroupId, tuple[int, Timer]] = {}  # (failures in a row, the timer of the next attempt)
        self._up_to_date = False  # the registry is up to date, so replicas without data may be created
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.opened = asyncio.Event()  # set while no work is due

    @property
    def partitions(self) -> Mapping[tuple[bytes, int], Partition]:
        """A view of the open partitions."""
        return MappingProxyType(self._open)

    @property
    def internal(self) -> Mapping[tuple[bytes, int], CoordinatorReplica]:
        """A view of the open replicas of topics that belong to the cluster."""
        return MappingProxyType(self._internal)

    def _all_open(self) -> list[Partition | CoordinatorReplica]:
        return [*self._open.values(), *self._internal.values()]

    def _hosted(self, group: GroupId) -> Partition | CoordinatorReplica | None:
        key = (group.topic_id, group.partition)
        return self._open.get(key) or self._internal.get(key)

    def failure(self, group: GroupId) -> TinymqError | None:
        """The error with which this broker's replica of a group could not be opened."""
        return self._failed.get(group)

    def get(self, topic_id: bytes, partition: int) -> Partition | None:
        return self._open.get((topic_id, partition))

    def start(self, on_disk: Sequence[GroupId]) -> asyncio.Task[None]:
        """Open the replicas that the registry places here, now and in the future. `on_disk` are the groups with data.

        The task ends with `stop`, or by a broken invariant.
        """
        self._on_disk = set(on_disk) - {METADATA_GROUP}
        self._registry.watch(self._changed)
        self._check_all()
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    async def stop(self) -> None:
        """Stop following the registry. Partitions stay open and refuse all calls.

        Waits for replicas that are being opened or deleted: their I/O would outlive the lock of the data directory.
        """
        self._stopping = True
        for _, timer in self._retries.values():
            timer.cancel()
        self._wake.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        for partition in self._all_open():
            partition.close(NotReady(f"{partition.name}: the broker stops"))

    def up_to_date(self) -> None:
        """Note that the local registry has every change from before this broker started."""
        self._up_to_date = True
        self._wake.set()

    def group_changed(self, group: GroupId) -> None:
        """Wake the partition of a group whose role, leader or term has changed."""
        partition = self._hosted(group)
        if partition is not None:
            partition.look()

    def _changed(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, TopicCreated):
                self._open_later(effect.topic.queues)
            elif isinstance(effect, PartitionAdded):
                self._open_later([effect.queue])
            elif isinstance(effect, TopicAltered):
                self._configure(effect.topic)
            elif isinstance(effect, TopicDeleted):
                for queue in effect.topic.queues:
                    self._delete_later(queue.group)
            elif isinstance(effect, PartitionDeleted):
                self._delete_later(effect.queue.group)
            elif isinstance(effect, Reloaded):
                self._check_all()

    def _check_all(self) -> None:
        for topic in self._registry.get_all_topics():
            self._open_later(topic.queues)
            self._configure(topic)
        for group in [*sorted(self._on_disk), *(p.group.id for p in self._all_open())]:
            if self._registry.is_queue_deleted(group):
                self._delete_later(group)

    def _open_later(self, queues: Sequence[QueueRecord]) -> None:
        for queue in queues:
            if queue.has_replica(self._broker_id) and self._hosted(queue.group) is None:
                self._pending[queue.group] = queue
                self.opened.clear()
                self._wake.set()

    def _configure(self, topic: TopicRecord) -> None:
        """Apply a topic's present settings to its open partitions."""
        for queue in topic.queues:
            partition = self._hosted(queue.group)
            if partition is not None:
                partition.configure(topic.config)
                self._groups.configure_group(queue.group, log_config(topic.config, self._limits))

    def _delete_later(self, group: GroupId) -> None:
        partition = self._hosted(group)
        self._open.pop((group.topic_id, group.partition), None)
        self._internal.pop((group.topic_id, group.partition), None)
        if partition is not None:
            partition.close(self._gone(group, partition.name))
            self._on_disk.add(group)
        if group in self._on_disk or group in self._pending:
            self._pending[group] = None
            self._wake.set()

    def _gone(self, group: GroupId, name: str) -> TinymqError:
        """The error for calls that wait on a deleted partition."""
        if self._registry.get_topic_by_id(group.topic_id) is None:
            return UnknownTopic(f"{name}: the topic was deleted")
        return UnknownPartition(f"{name}: the partition was deleted")

    async def _run(self) -> None:
        while not self._stopping:
            while (due := self._due()) and not self._stopping:
                while due and not self._stopping:
                    some = [due.pop() for _ in range(min(OPENING_MAX, len(due)))]
                    await asyncio.gather(*(self._do(group, self._pending.pop(group)) for group in some))
            if not self._pending:
                self.opened.set()
            await self._wake.wait()
            self._wake.clear()

    def _due(self) -> list[GroupId]:
        """The groups with work that may be done now. A replica without data waits for an up-to-date registry."""
        return [g for g, queue in self._pending.items() if queue is None or self._up_to_date or g in self._on_disk]

    async def _do(self, group: GroupId, queue: QueueRecord | None) -> None:
        try:
            if queue is None:
                await self._groups.delete_group(group)
                self._on_disk.discard(group)
                self._failed.pop(group, None)
                logger.info("partition_deleted", group=str(group))
            elif not self._registry.is_queue_deleted(group):
                await self._open_one(queue)
        except TinymqError as error:
            self._fail(group, queue, error)
        else:
            self._retries.pop(group, None)

    def _fail(self, group: GroupId, queue: QueueRecord | None, error: TinymqError) -> None:
        """Note the error. Try again later if it is retriable, such as a full disk or no free file descriptor."""
        before = self._failed.get(group)
        self._failed[group] = error
        if before is None or before.code != error.code:
            logger.error("partition_failed", group=str(group), error=error.code, reason=str(error))
        if error.retriable and not self._stopping:
            failures = self._retries[group][0] + 1 if group in self._retries else 1
            pause_s = BACKOFF.pause_s(failures)
            self._retries[group] = failures, self._clock.call_later(pause_s, lambda: self._retry(group, queue))

    def _retry(self, group: GroupId, queue: QueueRecord | None) -> None:
        if group not in self._pending and self._hosted(group) is None:  # no newer work is due
            self._pending[group] = queue
            self.opened.clear()
            self._wake.set()

    async def _open_one(self, queue: QueueRecord) -> None:
        topic = self._registry.get_topic_by_id(queue.topic_id)
        if topic is None:
            return  # deleted so long ago that the registry has forgotten it
        internal = self._make_internal if is_internal(queue.topic) else None
        partition = self._make_partition(queue) if internal is None else internal(queue)
        partition.configure(topic.config)
        kept = log_config(topic.config, self._limits)
        group = await self._groups.open_group(queue.group, first_entry_of(queue), partition, kept)
        partition.attach(group)
        self._on_disk.add(queue.group)
        self._failed.pop(queue.group, None)
        if isinstance(partition, Partition):
            self._open[queue.topic_id, queue.partition] = partition
        else:
            self._internal[queue.topic_id, queue.partition] = partition
        # The topic may have been deleted or altered while the log was being opened. The effects of such changes did not
        # reach this replica, so look at the registry again.
        now = self._registry.get_topic_by_id(queue.topic_id)
        if self._registry.is_queue_deleted(queue.group):
            self._delete_later(queue.group)
        elif now is not None and now.config != topic.config:
            self._configure(now)

"""Makes and drops the cursors of groups in the partitions that this broker leads.

A group's cursors are made in two ways. The broker that makes a group asks each partition's leader, and the group is
ready once all have confirmed. A leader also makes the cursor itself when a partition or topic is added, and the
partition takes no write before (`GroupGate`). It need not ask the registry's leader for that. A replica
is opened from a registry that has its partition, so this registry has every group that was made before the partition.
The maker of a later group finds the partition in its own list.

A leader drops a cursor whose group the registry does not have, but only after it has asked the registry's leader: the
group may be newer than what this broker knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from tinymq.base.clock import Clock
from tinymq.base.errors import AlreadyExists, NotLeader, NotReady, TinymqError, UnknownGroup
from tinymq.base.types import GroupId
from tinymq.broker.groups.definition import GroupDefinition
from tinymq.broker.groups.group_list import GroupList
from tinymq.broker.partition.partition import Partition
from tinymq.broker.replicas.replica_host import ReplicaHost
from tinymq.broker.serve.messages import command
from tinymq.broker.state.cursor import CursorKind
from tinymq.proto import group_pb2 as wire
from tinymq.proto import partition_pb2 as pb
from tinymq.registry.service import RegistryService
from tinymq.registry.state.effects import Effect, PartitionAdded, Reloaded, TopicCreated

METHOD = "cursors"
COMMAND_S = 5.0
REFRESH_S = 2.0
RETRY_S = 0.2
SLICE = 100  # partitions to look at in one turn of the loop
PLACES_MAX = 2000  # partitions in one request

logger = structlog.get_logger("tinymq.broker")

FindStart = Callable[[Partition, int], Awaitable[int]]
"""The offset of a start place in a partition that is led here."""


class CursorKeeper:
    """Keeps the groups' cursors on one broker, from `start` to `stop`."""

    def __init__(
        self, registry: RegistryService, groups: GroupList, replica_host: ReplicaHost, clock: Clock,
        find_start: FindStart,
    ) -> None:  # fmt: skip
        self.leased: Callable[[GroupId, str], int] = lambda partition, group: 0
        """How many records of a group the workers have in a partition that is led here."""
        self._registry = registry
        self._groups = groups
        self._replica_host = replica_host
        self._clock = clock
        self._find_start = find_start
        self._due: dict[GroupId, None] = {}  # partitions to look at, oldest first
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Look after partitions until `stop`."""
        self._registry.watch_records("group", self._check_all)
        self._registry.watch(self._changed)
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._check_all()
        return self._task

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def group_changed(self, group: GroupId) -> None:
        """Note that the leader of a Raft group may have changed."""
        self._due[group] = None
        self._wake.set()

    def expected(self, topic: str) -> tuple[GroupDefinition, ...]:
        """The groups whose cursors a partition of the topic needs before its first record."""
        return self._groups.of_topic(topic)

    def _changed(self, effects: Sequence[Effect]) -> None:
        if any(isinstance(effect, TopicCreated | PartitionAdded | Reloaded) for effect in effects):
            self._check_all()

    def _check_all(self) -> None:
        for partition in self._replica_host.partitions.values():
            if partition.leading:
                self._due[partition.group.id] = None
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            count = 0
            while self._due:
                group = next(iter(self._due))
                del self._due[group]
                count += 1
                if count % SLICE == 0:
                    await asyncio.sleep(0)
                try:
                    await self._check(group)
                except TinymqError as error:
                    logger.info("group_cursors_wait", group=str(group), error=error.code, reason=str(error))
                    self._clock.call_later(RETRY_S, lambda: self.group_changed(group))  # noqa: B023 (called once)

    async def _check(self, group: GroupId) -> None:
        """Make the missing cursors of one partition, and drop those of deleted groups."""
        partition = self._replica_host.get(group.topic_id, group.partition)
        if partition is None or not partition.leading:
            return
        for expected in partition.group_gate.missing():
            await self._make(partition, expected.name, expected.cursor_kind, expected.group_id, expected.start_us)
        stale = [name for name in partition.state.cursors if self._is_stale(partition, name)]
        if stale:
            # The registry here may lag behind a group that was just made: only its leader knows that a group is gone.
            await self._registry.refresh(REFRESH_S)
        for name in stale:
            cursor = partition.state.cursors.get(name)
            if cursor is not None and self._is_stale(partition, name):
                await _one(partition, pb.Command(drop=pb.DropCursor(name=name, group_id=cursor.group_id)))

    def _is_stale(self, partition: Partition, name: str) -> bool:
        """Whether a cursor belongs to a group that is not in the registry.

        False for a group that is being deleted: the deletion itself asks for the cursor to be dropped.
        """
        cursor = partition.state.cursors.get(name)
        if cursor is None or cursor.kind == CursorKind.CHANNEL:
            return False
        group = self._groups.get(name)
        return group is None or group.group_id > cursor.group_id

    async def _make(self, partition: Partition, name: str, kind: int, group_id: int, start_us: int) -> None:
        """Make a cursor, unless a channel has the name."""
        start = await self._find_start(partition, start_us)
        made = pb.MakeCursor(name=name, kind=pb.CursorKind.ValueType(kind), group_id=group_id, start=start)
        try:
            await _one(partition, pb.Command(make=made))
        except AlreadyExists:
            logger.info("group_name_taken", partition=partition.name, group=name)

    # ---- asked by the broker that makes or deletes a group ----------------------------------------------------

    async def serve(self, body: bytes) -> bytes:
        """Answer a CursorRequest of another broker, or of this one."""
        request = wire.CursorRequest.FromString(body)
        outcomes = await asyncio.gather(*(self._serve_one(request, place) for place in request.places[:PLACES_MAX]))
        return wire.CursorReply(outcomes=outcomes).SerializeToString()

    async def _serve_one(self, request: wire.CursorRequest, place: wire.Place) -> wire.Outcome:
        try:
            partition = self._replica_host.get(place.topic_id, place.partition)
            if partition is None:
                raise NotLeader("no replica of the partition is open here")
            partition.check_leading()
            if request.count:
                await self._know(request.group, request.version)
                return wire.Outcome(leased=self.leased(partition.group.id, request.group))
            if request.drop:
                dropped = pb.DropCursor(name=request.group, group_id=request.group_id)
                ending = partition.state.queue_groups.by_name.get(request.group)
                burials = len(ending.burials) if ending is not None else 0
                await _one(partition, pb.Command(drop=dropped))
                return wire.Outcome(burials=burials)
            group = self._groups.get(request.group)
            if group is None or group.group_id != request.group_id or not group.lists:
                # A late request must not bring back the cursor of a group that was deleted.
                await self._registry.refresh(REFRESH_S)
                group = self._groups.get(request.group)
            if group is None or group.group_id != request.group_id or not group.lists:
                raise UnknownGroup(f"group {request.group!r} of id {request.group_id} is not being made")
            start = await self._find_start(partition, request.start_us)
            kind = pb.CursorKind.ValueType(request.kind)
            made = pb.MakeCursor(name=request.group, kind=kind, group_id=request.group_id, start=start)
            await _one(partition, pb.Command(make=made))
        except TinymqError as error:
            return wire.Outcome(error_code=error.code, error_message=error.message)
        return wire.Outcome()

    async def _know(self, name: str, version: int) -> None:
        """Return once the registry here has this version of a group's record, or a later one. Raises NotReady."""
        known = self._groups.get(name)
        if known is None or known.version < version:
            await self._registry.refresh(REFRESH_S)
            known = self._groups.get(name)
        if known is None or known.version < version:
            raise NotReady(f"this broker has no version {version} of group {name!r} yet")


async def _one(partition: Partition, wanted: pb.Command) -> Any:
    (outcome,) = await command(partition, [wanted], COMMAND_S)
    if outcome.error is not None:
        raise outcome.error
    return outcome

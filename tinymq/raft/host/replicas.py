"""The replicas of one broker: it opens, fails, repairs and closes them.

A `Group` stays the same object when another log takes the place of its log, so the rooms above keep their references.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import structlog

from tinymq.base.config import Limits
from tinymq.base.errors import BrokenInvariant, CorruptData, NotReady, OutOfDescriptors, TinymqError
from tinymq.base.types import GroupId
from tinymq.base.value import value
from tinymq.format.entry import Entry
from tinymq.log.engine.store import OpenedLog, Store
from tinymq.log.replica_log.log_config import LogConfig
from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.raft.host.repair import Repairs
from tinymq.raft.host.replica_env import HostReplicaEnv
from tinymq.raft.host.tick_schedule import TickSchedule
from tinymq.raft.replica.group import Group, Role
from tinymq.raft.replica.opening import open_replica
from tinymq.raft.replica.snapshot_receiver import SnapshotReceiver
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.messages import Append, InstallSnapshot
from tinymq.raft.state.env import StateMachine

logger = structlog.get_logger("tinymq.raft")

REOPEN_S = 1.0  # between attempts to reopen a log after the file descriptors ran out

Job = Callable[[], Coroutine[Any, Any, None]]


@value
class _Origin:
    """The arguments for opening a replica, also after its log was replaced."""

    first_entry: Entry
    env: HostReplicaEnv
    blank: bytes  # the state machine's state before entry 1
    config: LogConfig


def other_count(membership: Membership, me: Replica) -> int | None:
    """Return the count that a replica has to take because no leader would list its present identity.

    That identity was replaced before, and came back with an old disk, or with a count that was lost. None: the identity
    is listed, or can be.
    """
    if membership.has(me) or membership.replica(me.broker_id) is None or membership.may_list(me):
        return None
    known = (*membership.replicas, *membership.retired)
    return 1 + max(r.count for r in (me, *known) if (r.broker_id, r.incarnation) == (me.broker_id, me.incarnation))


class Replicas:
    """Opens, fails, repairs and closes the replicas in `groups`. `changed` is called when a role may have changed."""

    def __init__(
        self, broker_id: int, store: Store, schedule: TickSchedule, limits: Limits, repairs: Repairs,
        groups: dict[GroupId, Group], changed: Callable[[Group], None],
    ) -> None:  # fmt: skip
        self.installs = SnapshotReceiver(limits.state_bytes_max, self._install)
        self._broker_id = broker_id
        self._store = store
        self._schedule = schedule
        self._repairs = repairs
        self._groups = groups
        self._changed = changed
        self._origins: dict[GroupId, _Origin] = {}
        self._failures: dict[GroupId, TinymqError] = {}  # by group: the last failure that this object has acted on
        self._jobs: dict[GroupId, list[Job]] = {}
        self._works: dict[GroupId, asyncio.Task[None]] = {}  # the tasks that do these jobs, one for each group
        self._remade: dict[GroupId, asyncio.Task[None]] = {}  # the part of a job that must not end half way

    # ---- open and closed -------------------------------------------------------------------------------

    async def open(
        self, group_id: GroupId, first_entry: Entry, machine: StateMachine, env: HostReplicaEnv, config: LogConfig
    ) -> Group:
        """Open or create this broker's replica and apply the entries that are known to be committed to `machine`.

        Raises StorageError. A damaged replica is QUARANTINED, takes part in nothing, and repairs itself.
        """
        assert group_id not in self._groups, f"{group_id} is open already"
        self._origins[group_id] = _Origin(first_entry, env, machine.dump(), config)
        opened = await self._store.open_log(group_id, first_entry, config)
        try:
            opened, group = await self._make(opened, machine)
        except Exception:
            await self._store.close_log(group_id)  # the caller may try again
            raise
        self._groups[group_id] = group
        if self._store.has_quarantined(group_id):
            group.repairing = "its damaged log is in quarantine"
        self._attach(group, opened)
        return group

    def configure(self, group: Group, config: LogConfig) -> None:
        """Apply this configuration to the replica's log from now on, and to every log that takes its place."""
        self._origins[group.id] = replace(self._origins[group.id], config=config)
        self._store.configure(group.id, config)

    async def _open_log(self, group: Group) -> OpenedLog:
        origin = self._origins[group.id]
        return await self._store.open_log(group.id, origin.first_entry, origin.config)

    async def _make(self, opened: OpenedLog, machine: StateMachine) -> tuple[OpenedLog, Group]:
        """Open a replica around a log. Damage that a read finds counts as damage that opening found."""
        origin = self._origins[opened.log.group]
        try:
            made = await open_replica(self._store, opened, origin.first_entry, machine, origin.env, self._broker_id)
        except CorruptData as error:
            opened = replace(opened, damage=error.message)
            made = await open_replica(self._store, opened, origin.first_entry, machine, origin.env, self._broker_id)
        return opened, made

    def _attach(self, group: Group, opened: OpenedLog) -> None:
        log = group.log
        log.on_durable = lambda: self.guarded(group, group.replica.durable)
        log.on_failed = lambda error: self.fail(group, error)
        log.reader.on_damage = lambda error: self.fail(group, error)
        if opened.damage is not None:
            self.fail(group, CorruptData(opened.damage))
        self._schedule.wake(group.id)

    async def close(self, group: Group) -> None:
        """Take no further part. No task opens the replica again after this returns."""
        log = group.log
        log.on_durable = log.on_failed = log.reader.on_damage = None
        self.installs.forget(group.id)
        self._repairs.forget(group.id)
        self._jobs.pop(group.id, None)
        self._failures.pop(group.id, None)
        for tasks, cancel in ((self._works, True), (self._remade, False)):
            if (task := tasks.pop(group.id, None)) is not None:
                if cancel:
                    task.cancel()
                await asyncio.wait([task])
                if not task.cancelled() and (error := task.exception()) is not None:
                    logger.warning("replica_not_made", group=str(group.id), reason=repr(error))
        self._origins.pop(group.id, None)

    # ---- failing ---------------------------------------------------------------------------------------

    def guarded(self, group: Group, call: Callable[[], None]) -> None:
        """Call into a replica. An exception ends that replica alone.

        To continue after an exception might skip an entry or apply it twice. The caller (the loop, the writer) serves
        all other groups, too.
        """
        try:
            call()
        except Exception as error:
            self.fail(group, error)

    def fail(self, group: Group, error: Exception, *, making: bool = False) -> None:
        """Stop this replica. The broker and its other groups continue.

        `making`: the error ended an attempt to open the replica again. Then it replaces the earlier failure.
        """
        reason = error if isinstance(error, TinymqError) else BrokenInvariant(repr(error))
        if group.replica.state.failure is None or making:
            trace = error if isinstance(reason, BrokenInvariant) else None
            logger.error("replica_failed", group=str(group.id), error=reason.code, reason=str(reason), exc_info=trace)
            group.replica.fail(reason)
        self._changed(group)

    def look(self, group: Group) -> None:
        """Act on a changed role: repair a damaged replica, and drop its quarantined log once it is listed again.

        Only damage is repaired. A bug that every replica meets in turn must not make each of them give up its log.
        """
        failure = group.replica.state.failure
        if isinstance(failure, CorruptData) and self._failures.get(group.id) is not failure:
            self._failures[group.id] = failure
            group.repairing = failure.message
            self._begin(group, lambda: self._repair(group, failure))
        elif isinstance(failure, OutOfDescriptors) and self._failures.get(group.id) is not failure:
            self._failures[group.id] = failure
            self._begin(group, lambda: self._reopen(group))
        elif failure is None and group.repairing and group.role is not Role.LEARNER:
            group.repairing = ""
            self._begin(group, lambda: self._finish(group))
        elif (
            failure is None
            and group.role is Role.LEARNER
            and (count := other_count(group.membership, group.replica.state.me))
        ):
            leader, term = group.leader, group.term
            group.replica.fail(NotReady("it takes another identity, because no leader lists its present one"))
            self._begin(group, lambda: self._whole(group, self._rename(group, count, leader, term)))

    # ---- opened in place -------------------------------------------------------------------------------

    def _begin(self, group: Group, job: Job) -> None:
        """Do a job beside the loop's events, after the group's earlier jobs."""
        self._jobs.setdefault(group.id, []).append(job)
        if group.id not in self._works:
            self._works[group.id] = self._schedule.spawn(self._work(group))

    async def _work(self, group: Group) -> None:
        try:
            while jobs := self._jobs.get(group.id):
                try:
                    await jobs.pop(0)()
                except Exception as error:
                    self.fail(group, error, making=True)
        finally:
            if self._groups.get(group.id) is group:
                self._works.pop(group.id, None)

    async def _repair(self, group: Group, failure: CorruptData) -> None:
        """Quarantine the log, and begin an empty one, once the leader says that the group does without this replica."""
        log = group.log
        if log.failed is None:  # otherwise opening the log found the damage, and will find it again
            await self._store.mark_damaged(log, failure)
        await self._repairs.may_begin(group)
        await self._whole(group, self._begin_anew(group))

    async def _reopen(self, group: Group) -> None:
        """Open the log again from the disk, as when the broker starts, after the file descriptors ran out."""
        while True:
            await self._schedule.sleep(REOPEN_S)
            try:
                await self._whole(group, self._open_again(group))
            except OutOfDescriptors:
                continue
            logger.info("replica_reopened", group=str(group.id))
            return

    async def _open_again(self, group: Group) -> None:
        await self._store.close_log(group.id)
        await self._remake(group, await self._open_log(group))

    async def _finish(self, group: Group) -> None:
        """Remove the quarantined log.

        After a recovery that accepted loss, it may never be removed. So the replica's other jobs do not wait for it.
        """
        if not await self._repairs.finish(group):
            self._schedule.spawn(self._finish_later(group))

    async def _finish_later(self, group: Group) -> None:
        await self._repairs.pause()
        if self._groups.get(group.id) is group and not group.repairing:
            self._begin(group, lambda: self._finish(group))

    async def _begin_anew(self, group: Group) -> None:
        logger.warning("replica_repairs", group=str(group.id), reason=group.repairing)
        await self._store.quarantine(group.id)
        await self._remake(group, await self._open_log(group))

    async def _rename(self, group: Group, count: int, leader: int | None, term: int) -> None:
        logger.warning("replica_renamed", group=str(group.id), count=count)
        await self._store.raise_count(group.id, count)
        await self._remake(group, await self._open_log(group))
        if leader is not None:  # as if the leader asked: a resting group would not notice the new identity
            self.guarded(group, lambda: group.replica.receive(leader, Append(term, 0, 0, 0)))

    def _install(self, group: Group, peer: int, offer: InstallSnapshot, applied: Snapshot) -> None:
        """Install the leader's snapshot. Until that is done, the replica takes part in nothing."""
        group.replica.fail(NotReady("it installs the snapshot of its leader"))
        self._begin(group, lambda: self._whole(group, self._install_whole(group, peer, offer, applied)))

    async def _install_whole(self, group: Group, peer: int, offer: InstallSnapshot, applied: Snapshot) -> None:
        logger.info(
            "replica_installs_snapshot", group=str(group.id), leader=peer, index=applied.index, bytes=offer.size
        )
        await self._remake(group, await self._store.install(group.id, applied))
        self.guarded(
            group, lambda: group.replica.receive(peer, offer)
        )  # the replica answers that it holds the snapshot now

    async def _remake(self, group: Group, opened: OpenedLog) -> None:
        """Open the replica again, around another log."""
        self._store.configure(group.id, self._origins[group.id].config)  # it may have changed meanwhile
        if opened.snapshot is None:
            group.machine.load(self._origins[group.id].blank)
        opened, made = await self._make(opened, group.machine)
        group.become(made)
        if self._groups.get(group.id) is group:
            self._attach(group, opened)
            self._changed(group)

    async def _whole(self, group: Group, part: Coroutine[Any, Any, None]) -> None:
        """Do `part` to its end, even if the group is closed meanwhile: otherwise two tasks could use one directory."""
        self._remade[group.id] = task = self._schedule.spawn(part)
        await asyncio.shield(task)
        self._remade.pop(group.id, None)

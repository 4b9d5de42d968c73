"""Observe queue groups: the leases in the memory of leaders, and the replicated state as the first replica applies it.

The leases of a leader are a dict, in whose place stands one that reports each change: the rules that change it need not
be known here. The replicated state is compared before and after each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from tinymq.base.errors import TinymqError
from tinymq.base.types import GroupId
from tinymq.broker.groups.lease_values import Lease
from tinymq.broker.groups.queue_leases import QueueLeases
from tinymq.broker.partition.partition import Partition
from tinymq.broker.state.cursor import CursorKind
from tinymq.broker.state.state import PartitionState
from tinymq.broker.work.group_leader import GroupLeader
from tinymq.format.entry import Entry
from tinymq_chaos.group_changes import ATTACHED, CONFIRMED, ENDED, GRANTED, LEADS, LeaseChange, QueueChange
from tinymq_chaos.history import Log
from tinymq_chaos.sim.virtual.event_loop import running_process
from tinymq_chaos.sim.world.world import World

LeaseListener = Callable[..., None]


class WatchedLeases(dict[int, Lease]):
    """The leases of one leader, by offset. `on_change(what, lease)` is called after each change."""

    def __init__(self, on_change: LeaseListener) -> None:
        super().__init__()
        self.on_change = on_change

    def __setitem__(self, offset: int, lease: Lease) -> None:
        before = self.get(offset)
        super().__setitem__(offset, lease)
        if before is not None:
            self.on_change(ENDED, before)
        self.on_change(GRANTED, lease)

    def __delitem__(self, offset: int) -> None:
        lease = self[offset]
        super().__delitem__(offset)
        self.on_change(ENDED, lease)

    def pop(self, offset: int, *default: Any) -> Any:
        if offset not in self:
            return super().pop(offset, *default)
        lease = self[offset]
        del self[offset]
        return lease

    def clear(self) -> None:
        for offset in list(self):
            del self[offset]


class QueueWatcher:
    """Turns what is observed into parts of the history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.applying: GroupId | None = None  # the partition whose replica applies an entry now
        self._applied: dict[GroupId, int] = {}  # the newest entry that any replica has applied
        self._settled: dict[tuple[Log, str], set[int]] = {}  # what each of them has settled above its position
        self._known: dict[tuple[Log, str], QueueChange] = {}  # the newest of each group in a partition

    # ---- leases

    def leads(self, leader: GroupLeader) -> None:
        """A broker leads a group in a partition, from now on."""
        group = leader.partition.group.id
        if running_process() is None or self._world.seen.is_deleted(group):
            return
        on_change = partial(self._leased, leader)
        leader.leases.leases = WatchedLeases(on_change)
        on_change(LEADS, None)

    def _leased(self, leader: GroupLeader, what: str, lease: Lease | None, session: bytes = b"") -> None:
        process = running_process()
        if process is None:
            return  # what it held goes with it
        partition, grant = leader.partition, lease.grant if lease is not None else None
        try:
            now_us = partition.group.append_time_now_us() if what == GRANTED else 0
        except TinymqError:  # it leads no more
            now_us = 0
        change = LeaseChange(
            at_s=self._world.history.now(),
            log=self._world.seen.log_of(partition.group.id),
            group=leader.name,
            group_id=leader.group_id,
            term=leader.term,
            broker=process.broker_id,
            what=CONFIRMED if what == GRANTED and grant is not None and grant.term != leader.term else what,
            session=(lease.session if lease is not None else session).hex(),
            rejoin_s=leader.settings.rejoin_s if what == LEADS else 0.0,
            now_us=now_us,
        )
        if grant is not None:
            change = replace(
                change,
                offset=grant.offset,
                number=(grant.term, grant.number),
                delivery=grant.delivery,
                generation=grant.era.generation,
                alone=grant.started,
            )
        self._world.history.leases.append(change)

    # ---- the replicated state

    def applied(self, group: GroupId, state: PartitionState, entry: Entry) -> None:
        """A replica has applied an entry."""
        if entry.index <= self._applied.get(group, 0) or self._world.seen.is_deleted(group):
            return
        self._applied[group] = entry.index
        log = self._world.seen.log_of(group)
        names = [name for name, cursor in state.cursors.items() if cursor.kind == CursorKind.QUEUE]
        for name in names:
            before = self._known.get((log, name))
            now = self._change(log, state, name, before)
            if before is None or _differs(before, now):
                self._known[log, name] = now
                self._world.history.queues.append(now)

    def _change(self, log: Log, state: PartitionState, name: str, before: QueueChange | None) -> QueueChange:
        cursor, queue = state.cursors[name], state.queue_groups.by_name[name]
        position = max(cursor.position, state.log_start)
        settled = {offset for span in queue.settled for offset in range(*span)}
        newly = settled.copy()
        if before is not None and (before.group_id, before.generation) == (cursor.group_id, queue.generation):
            newly |= set(range(before.position, position))
            newly -= self._settled[log, name]
        self._settled[log, name] = settled
        return QueueChange(
            at_s=self._world.history.now(),
            log=log,
            group=name,
            group_id=cursor.group_id,
            generation=queue.generation,
            position=position,
            log_start=state.log_start,
            settled=tuple(sorted(newly)),
            failures=tuple((offset, *failure) for offset, failure in sorted(queue.failures.items())),
            burials=tuple(queue.burials),
            staged=tuple(sorted(queue.staged)),
        )


def _differs(before: QueueChange, now: QueueChange) -> bool:
    parts = ("group_id", "generation", "position", "log_start", "failures", "burials", "staged")
    return bool(now.settled) or any(getattr(before, part) != getattr(now, part) for part in parts)


@contextmanager
def watched_queues(world: World) -> Iterator[None]:
    """Report what queue groups do, from the first attached worker on."""
    watcher = QueueWatcher(world)
    begin, attach, apply, change = GroupLeader.__init__, QueueLeases.attach, Partition.apply, PartitionState.apply

    def begin_watched(self: GroupLeader, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        watcher.leads(self)

    def attach_watched(self: QueueLeases, session: bytes, connection: int, held: Any, now_s: float) -> Any:
        lost = attach(self, session, connection, held, now_s)
        if isinstance(self.leases, WatchedLeases):
            self.leases.on_change(ATTACHED, None, session)
        return lost

    def apply_watched(self: Partition, entry: Entry) -> None:
        watcher.applying = self._group.id if self._group is not None and running_process() is not None else None
        apply(self, entry)
        watcher.applying = None

    def change_watched(self: PartitionState, entry: Entry) -> Any:
        outcomes = change(self, entry)
        if watcher.applying is not None:  # before anything is done because of it
            watcher.applied(watcher.applying, self, entry)
        return outcomes

    GroupLeader.__init__, QueueLeases.attach = begin_watched, attach_watched  # type: ignore[method-assign]
    Partition.apply, PartitionState.apply = apply_watched, change_watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        GroupLeader.__init__, QueueLeases.attach = begin, attach  # type: ignore[method-assign]
        Partition.apply, PartitionState.apply = apply, change  # type: ignore[method-assign]

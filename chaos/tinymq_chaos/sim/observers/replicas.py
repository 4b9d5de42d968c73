"""Observe what replicas do, by wrapping calls of the product. The wrappers change nothing.

The observations go to the ledger (../checkers/ledger.py), together with what only a simulator knows: whether the disk
of a replica has stored what the replica claims.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tinymq.base.errors import TinymqError
from tinymq.base.types import GroupId
from tinymq.format.batch import parse_batch_header
from tinymq.format.delayed import unpack_staged
from tinymq.format.entry import Entry, Kind, takes_producer_numbers
from tinymq.log import LogConfig
from tinymq.log.broker_files.durability_marks import load_marks
from tinymq.log.broker_files.vote_store import NO_HARD_STATE, load_votes
from tinymq.log.files.layout import group_of
from tinymq.log.replica_log.log import Log
from tinymq.log.replica_log.operations import Operation, Remove, Truncate
from tinymq.log.writer.disk import LogDisk
from tinymq.raft import Group, Host
from tinymq.raft.host.replica_env import HostReplicaEnv
from tinymq.raft.host.replicas import Replicas
from tinymq.raft.peers.peers import Peers
from tinymq.raft.roles.replication import Replication
from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.messages import Message, RequestVote, Vote
from tinymq_chaos.broker_changes import TwinSpan
from tinymq_chaos.checkers.cluster.ledger import HardState, Identity
from tinymq_chaos.sim.virtual.event_loop import running_process
from tinymq_chaos.sim.virtual.synced_files import SyncedFiles
from tinymq_chaos.sim.world.brokers import SimBroker
from tinymq_chaos.sim.world.world import World


def identity_of(replica: Replica) -> Identity:
    return replica.incarnation, replica.count


class Watcher:
    """Turns observed calls into reports to the ledger."""

    def __init__(self, world: World) -> None:
        self._world, self._seen = world, world.seen
        self._entries: dict[tuple[GroupId, int], Entry] = {}  # entries that a leader committed
        self._disks: dict[int, tuple[object, SyncedFiles]] = {}  # by broker
        self._durable: dict[tuple[object, GroupId], HardState] = {}  # as found on a disk

    # ---- entries -------------------------------------------------------------------------------------------

    def applied(self, group: GroupId, entry: Entry) -> None:
        """A replica applies an entry."""
        data = _numbered(entry)
        if data is not None and not self._seen.is_deleted(group):
            batch = parse_batch_header(data)
            if batch.producer_id:
                self._world.ledger.numbered(
                    self._seen.log_of(group), entry.index, batch.producer_id, batch.producer_epoch,
                    batch.first_sequence, batch.record_count,
                )  # fmt: skip

    def commits(self, replication: Replication, configs: Configs, me: Replica, known: int, commit: int) -> None:
        """A leader has advanced its commit index."""
        log, group = replication.log, replication.log.group
        broker = self._judged(group)
        if broker is None or commit <= known or configs.forced is not None:
            return  # members that an operator or an automatic recovery forces are not listed yet
        for index in range(known + 1, commit + 1):
            if (entry := _entry_of(log, index)) is not None:
                self._entries[group, index] = entry
        who = {n: identity_of(p.replica) for n, p in replication.progress.items() if p.match >= commit and p.replica}
        if log.durable_index >= commit:
            who[me.broker_id] = identity_of(me)
        name, ledger = self._seen.log_of(group), self._world.ledger
        for voter, identity in who.items():
            self._look_at_disk(group, voter, ledger.vouched(name, voter, identity), commit, broker.number)
        listed = _listed_by_both(configs.membership, configs.newest)
        ledger.counted(name, broker.number, commit, log.term_at(commit) or 0, who, listed)

    def _look_at_disk(self, group: GroupId, voter: int, looked: int, commit: int, leader: int) -> None:
        """Check that a broker's disk has stored the entries that count on it, as far as it is not checked yet."""
        if self._world.brokers[voter].damaged or self._seen.is_weak(group):
            return  # a damaged disk breaks no promise of its replica, and unsynced bytes are not looked for
        disk = self._disk(self._world.brokers[voter])
        for index in range(looked + 1, commit + 1):
            entry = self._entries.get((group, index))
            if entry is not None and not disk.holds(group, entry):
                self._world.ledger.lacks(self._seen.log_of(group), voter, index, leader)
                return

    # ---- replicas ------------------------------------------------------------------------------------------

    def revives(self, group: GroupId) -> None:
        """A group recovers without its quorum: what it committed before is void."""
        for key in [key for key in self._entries if key[0] == group]:
            del self._entries[key]

    def opens(self, group: Group) -> None:
        """A replica was opened, with a log that is not damaged."""
        broker = self._judged(group.id)
        if broker is None or group.failure is not None:
            return
        disk, log = self._disk(broker), group.log
        unsynced = [segment.path for segment in log.segments if not disk.holds_segment(segment)]
        mark = load_marks(disk).marks.get(group.id)  # type: ignore[arg-type]
        if mark is None or (mark.count, mark.first_index) != (log.count, log.first_index):
            unsynced.append(f"the mark of a log that begins with entry {log.first_index}, count {log.count}")
        self._world.ledger.opened(
            self._seen.log_of(group.id),
            broker.number,
            identity_of(group.replica.state.me),
            hard_state=(group.term, group.replica.state.voted_for),
            term_at=log.term_at,
            last_index=log.last_index,
            unsynced=() if self._seen.is_weak(group.id) else unsynced,
        )

    def sends(self, group: GroupId, message: Message, peer: int) -> None:
        """A message leaves: everything that it claims has to be on the disk."""
        broker = self._judged(group)
        if broker is None or (isinstance(message, Vote | RequestVote) and message.pre):
            return
        me = broker.app.host.groups[group].replica.state.me
        vote = None
        if isinstance(message, RequestVote):
            vote = me.broker_id
        elif isinstance(message, Vote) and message.granted:
            vote = peer
        hard_state = (message.term, vote)
        durable = self._is_durable(broker, group, hard_state)
        self._world.ledger.rests_on(
            self._seen.log_of(group), broker.number, identity_of(me), hard_state, durable=durable
        )

    def _is_durable(self, broker: SimBroker, group: GroupId, hard_state: HardState) -> bool:
        found = self._durable.get((broker.files, group), NO_HARD_STATE)
        if not _covers(found, hard_state):
            found = load_votes(self._disk(broker)).hard_states.get(group, NO_HARD_STATE)  # type: ignore[arg-type]
            self._durable[broker.files, group] = found
        return _covers(found, hard_state)

    def carries_out(self, operation: Operation) -> None:
        """The writer changes a log on the disk."""
        if not isinstance(operation, Truncate | Remove):
            return
        group = group_of(*operation.directory.split("/")[1:])
        broker = self._judged(group) if group is not None else None
        if group is None or broker is None or self._seen.is_weak(group):
            return
        mark = load_marks(self._disk(broker)).marks.get(group)  # type: ignore[arg-type]
        if mark is not None:
            last = operation.mark.index if isinstance(operation, Truncate) else mark.index
            first = operation.first_index if isinstance(operation, Remove) else mark.first_index
            marked = mark.first_index, mark.index
            self._world.ledger.cuts(self._seen.log_of(group), broker.number, (first, last), marked)

    def dumps(self, log: Log, index: int, data: bytes) -> None:
        broker = self._judged(log.group)
        if broker is not None:
            self._world.ledger.state(self._seen.log_of(log.group), broker.number, index, zlib.crc32(data))

    # ---- second brokers ------------------------------------------------------------------------------------

    def reaches(self, peer: int) -> None:
        """A broker's control connection to another one is open."""
        if (twin := self._twin()) is not None and peer not in twin.let_in:
            twin.let_in.append(peer)

    def is_refused(self, error: TinymqError) -> None:
        """A broker could not connect."""
        if (twin := self._twin()) is not None and error.message not in twin.told:
            twin.told.append(error.message)

    def _twin(self) -> TwinSpan | None:
        """Return the second broker in whose process this call is made."""
        process = running_process()
        return self._world.machines[process.broker_id].span if process is not None else None

    # ---- reads ---------------------------------------------------------------------------------------------

    def due(self, group: GroupId) -> int:
        """Return the offset that a read which begins now has to see."""
        return self._world.ledger.end(self._seen.log_of(group))

    def reads(self, group: Group, due: int) -> None:
        broker = self._judged(group.id)
        if broker is not None:
            self._world.ledger.read(self._seen.log_of(group.id), broker.number, due, group.applied_index)

    def _judged(self, group: GroupId) -> SimBroker | None:
        """Return the broker in whose process this call is made. None: the replica is not judged."""
        process = running_process()
        if process is None or self._seen.is_deleted(group):
            return None
        return self._world.machines[process.broker_id]

    def _disk(self, broker: SimBroker) -> SyncedFiles:
        files, disk = self._disks.get(broker.number, (None, None))
        if disk is None or files is not broker.files:
            disk = SyncedFiles(broker.files)
            self._disks[broker.number] = broker.files, disk
        return disk


def _entry_of(log: Log, index: int) -> Entry | None:
    """Read an entry of a log without a trace in the log's own state."""
    reader = log.reader
    window = reader._window, reader._window_cuts
    try:
        return reader.entry(index)
    except TinymqError:
        return None
    finally:
        reader._window, reader._window_cuts = window


def _numbered(entry: Entry) -> bytes | None:
    """The batch of an entry that uses up its producer's numbers. A delayed batch does so where it is stored first."""
    if not takes_producer_numbers(entry.header):
        return None
    if entry.header.kind == Kind.STAGED:
        head, batch = unpack_staged(entry.payload)
        return None if head.schedule_id else batch
    return entry.batch


def _listed_by_both(applied: Membership, newest: Membership) -> dict[int, Identity]:
    """Return the brokers of the group that both configurations list alike."""
    other = {r.broker_id: identity_of(r) for r in newest.replicas}
    mine = {r.broker_id: identity_of(r) for r in applied.replicas}
    return {broker: identity if other.get(broker) == identity else (None, -1) for broker, identity in mine.items()}


def _covers(durable: HardState, hard_state: HardState) -> bool:
    return durable[0] > hard_state[0] or (durable[0] == hard_state[0] and hard_state[1] in (None, durable[1]))


@contextmanager
def watched(world: World) -> Iterator[None]:
    """Report what the replicas do, from the moment they open."""
    watcher = Watcher(world)
    with ExitStack() as stack:
        for owner, name, wrap in _WRAPPED:
            before = getattr(owner, name)
            stack.callback(setattr, owner, name, before)
            setattr(owner, name, wrap(before, watcher, world))
        yield


def _open_group(real: Any, watcher: Watcher, world: World) -> Any:
    async def open_group(self: Host, group_id: GroupId, first_entry: Entry, machine: Any, *config: LogConfig) -> Group:
        apply = machine.apply

        def apply_watched(entry: Entry) -> None:
            world.seen.applied(group_id, entry)
            watcher.applied(group_id, entry)
            apply(entry)

        if "apply" not in vars(machine):
            machine.apply = apply_watched
        world.seen.opened(group_id, *config)
        group: Group = await real(self, group_id, first_entry, machine, *config)
        return group

    return open_group


def _delete_group(real: Any, watcher: Watcher, world: World) -> Any:
    async def delete_group(self: Host, group_id: GroupId) -> None:
        world.seen.deleted(group_id)
        await real(self, group_id)

    return delete_group


def _close_group(real: Any, watcher: Watcher, world: World) -> Any:
    async def close_group(self: Host, group_id: GroupId) -> None:
        world.seen.closed(group_id)
        await real(self, group_id)

    return close_group


def _take_over(real: Any, watcher: Watcher, world: World) -> Any:
    def take_over(self: Group, term: int, replicas: Any) -> None:
        real(self, term, replicas)
        watcher.revives(self.id)
        world.seen.revived(self.id, self.log.next_offset)

    return take_over


def _make(real: Any, watcher: Watcher, world: World) -> Any:
    async def make(self: Replicas, opened: Any, machine: Any) -> Any:
        opened, group = await real(self, opened, machine)
        if opened.damage is None:
            watcher.opens(group)
        return opened, group

    return make


def _commit(real: Any, watcher: Watcher, world: World) -> Any:
    def commit(self: Replication, configs: Configs, me: Replica, known: int) -> int:
        found: int = real(self, configs, me, known)
        watcher.commits(self, configs, me, known, found)
        return found

    return commit


def _send(real: Any, watcher: Watcher, world: World) -> Any:
    def send(self: HostReplicaEnv, peer: int, message: Message) -> bool:
        watcher.sends(self._group, message, peer)
        return bool(real(self, peer, message))

    return send


def _save_snapshot(real: Any, watcher: Watcher, world: World) -> Any:
    def save_snapshot(self: Log, applied_index: int, data: bytes) -> None:
        watcher.dumps(self, applied_index, data)
        real(self, applied_index, data)

    return save_snapshot


def _carry_out(real: Any, watcher: Watcher, world: World) -> Any:
    def carry_out(self: LogDisk, operation: Operation) -> None:
        watcher.carries_out(operation)
        real(self, operation)

    return carry_out


def _read_index(real: Any, watcher: Watcher, world: World) -> Any:
    async def read_index(self: Group, timeout_s: float) -> int:
        due = watcher.due(self.id)
        index: int = await real(self, timeout_s)
        watcher.reads(self, due)
        return index

    return read_index


def _reached(real: Any, watcher: Watcher, world: World) -> Any:
    def reached(self: Peers, peer: int, led: Any) -> None:
        watcher.reaches(peer)
        real(self, peer, led)

    return reached


def _refused(real: Any, watcher: Watcher, world: World) -> Any:
    def refused(self: Peers, peer: int, error: TinymqError) -> None:
        watcher.is_refused(error)
        real(self, peer, error)

    return refused


_WRAPPED: tuple[tuple[Any, str, Callable[[Any, Watcher, World], Any]], ...] = (
    (Host, "open_group", _open_group),
    (Host, "delete_group", _delete_group),
    (Host, "close_group", _close_group),
    (Replicas, "_make", _make),
    (Group, "force_leadership", _take_over),
    (Replication, "commit", _commit),
    (HostReplicaEnv, "send", _send),
    (Log, "save_snapshot", _save_snapshot),
    (LogDisk, "carry_out", _carry_out),
    (Group, "read_index", _read_index),
    (Peers, "reached", _reached),
    (Peers, "refused", _refused),
)

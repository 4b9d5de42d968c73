"""Observe how replicas are elected, commit and send, and report it to `checkers.elections` at once.

The observers wrap the running code, mutants included. They change one bound only, which is too wide for small disks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tinymq.base.config import KIB
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry, Kind
from tinymq.raft import Role
from tinymq.raft.host import cold_reads
from tinymq.raft.host.replica_env import HostReplicaEnv
from tinymq.raft.net.transport import Channel
from tinymq.raft.replica.applier import Applier
from tinymq.raft.replica.current_role import CurrentRole
from tinymq.raft.replica.group import Group
from tinymq.raft.roles import replication
from tinymq.raft.roles.replication import Replication
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.membership import Membership, Replica, parse_membership
from tinymq.raft.rules.messages import Append, AppendAck, Message, Vote
from tinymq.raft.state.replica_state import ReplicaState
from tinymq_chaos.checkers.cluster.elections import Elections, HealthyReplica, Identity, ListedMembers
from tinymq_chaos.history import Log
from tinymq_chaos.sim.virtual.event_loop import running_process
from tinymq_chaos.sim.world.brokers import DISK_S, SimBroker
from tinymq_chaos.sim.world.world import World

APPEND_BYTES = 16 * KIB  # of the product's bounds: here a backlog of seconds is no larger
WINDOWS_MAX = 8  # on one connection: for this term, and for earlier terms of the leader whose messages a cut holds back
LOOK_S = 0.1
_ABSENT = object()


@contextlib.contextmanager
def electing(world: World) -> Iterator[None]:
    """Observe until the block ends. Call it inside the running loop."""
    watch = _Watch(world)
    before = [(owner, name, vars(owner).get(name, _ABSENT)) for owner, name, _ in watch.wrapped]
    for owner, name, wrapper in watch.wrapped:
        setattr(owner, name, wrapper(getattr(owner, name)))
    looking = asyncio.get_running_loop().create_task(watch.look())
    try:
        yield
    finally:
        looking.cancel()
        for owner, name, real in before:
            delattr(owner, name) if real is _ABSENT else setattr(owner, name, real)


def _identity(replica: Replica) -> Identity:
    return replica.broker_id, replica.incarnation, replica.count


def _identities(membership: Membership) -> list[Identity]:
    return [_identity(replica) for replica in membership.replicas]


def _listing(membership: Membership) -> ListedMembers:
    return ListedMembers(membership.epoch, frozenset(_identities(membership)))


class _Watch:
    """The wrappers, and a periodic look at all replicas."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._elections = Elections(world.ledger.anomalies, world.clock.monotonic)
        self.wrapped: list[tuple[Any, str, Callable[[Any], Any]]] = [
            (CurrentRole, "become_leader", self._elected),
            (ReplicaState, "advance_commit", self._committed),
            (Applier, "apply", self._applied),
            (ReplicaState, "post", self._posted),
            (Replication, "acknowledged", self._answered),
            (HostReplicaEnv, "send", self._sent),
            (replication, "APPEND_BYTES", lambda real: APPEND_BYTES),
            (cold_reads, "APPEND_BYTES", lambda real: APPEND_BYTES),
        ]

    def _log(self, group: GroupId) -> Log | None:
        """Return the group's name in the history. None: the group is not judged any more."""
        seen = self._world.seen
        return None if seen.is_deleted(group) or seen.is_revived(group) else seen.log_of(group)

    # ---- wrappers ----------------------------------------------------------------------------------------

    def _elected(self, real: Any) -> Any:
        def become_leader(current: CurrentRole, origin: LeadershipOrigin) -> None:
            state = current.state
            log = self._log(state.group)
            if log is not None and state.configs.forced is None:
                listed = _identities(state.newest_membership)
                self._elections.elected(
                    log, state.term, _identity(state.me), listed, state.log.last_index, state.log.term_at
                )
            real(current, origin)

        return become_leader

    def _committed(self, real: Any) -> Any:
        def advance_commit(state: ReplicaState, commit: int) -> None:
            log = self._log(state.group)
            if log is not None:
                place = commit, state.log.term_at(commit) or 0
                leading_term = state.term if state.leader_id == state.me.broker_id else None
                self._elections.committed(log, state.me.broker_id, place, leading_term)
            real(state, commit)

        return advance_commit

    def _applied(self, real: Any) -> Any:
        def apply(applier: Applier, entry: Entry) -> None:
            log = self._log(applier.state.group)
            if log is not None and entry.header.kind == Kind.CONFIG:
                self._elections.listed(log, _listing(parse_membership(entry.payload)))
            self._watch_machine(applier)
            real(applier, entry)

        return apply

    def _watch_machine(self, applier: Applier) -> None:
        """Wrap `lead` of the state machine behind a replica: from that call on the replica accepts writes."""
        machine: Any = applier.machine
        machine.watched_state = applier.state  # a replica that is created again keeps its machine
        if "lead" in vars(machine):
            return
        real = machine.lead

        def lead(term: int) -> None:
            state: ReplicaState = machine.watched_state
            log = self._log(state.group)
            if log is not None:
                self._elections.serves(log, state.me.broker_id, term, state.applied_index)
            real(term)

        machine.lead = lead

    def _answered(self, real: Any) -> Any:
        def acknowledged(led: Replication, peer: int, ack: AppendAck) -> Any:
            log = self._log(led.log.group)
            who = led.link.incarnation(peer)
            if log is not None and who is not None:
                conflict = (ack.next, ack.next_term) if ack.conflict else None
                self._elections.answered(log, led.term, (peer, who, ack.count), conflict)
            moved = real(led, peer, ack)
            self._counted(log, led, peer)
            return moved

        return acknowledged

    def _posted(self, real: Any) -> Any:
        """Report a vote before it waits for its sync: the log may change meanwhile."""

        def post(state: ReplicaState, peer: int, message: Message) -> None:
            log = self._log(state.group)
            if log is not None and isinstance(message, AppendAck) and not message.conflict:
                me, held = state.me, state.log
                self._elections.acknowledges(
                    log, message.term, (me.broker_id, me.incarnation, message.count),
                    (message.durable, message.received), held.last_index, held.term_at,
                )  # fmt: skip
            real(state, peer, message)

        return post

    def _counted(self, log: Log | None, led: Replication, peer: int) -> None:
        progress, process = led.progress.get(peer), running_process()
        if log is not None and progress is not None and progress.replica is not None and process is not None:
            who = _identity(progress.replica)
            self._elections.counts(log, led.term, process.broker_id, who, progress.match)

    def _sent(self, real: Any) -> Any:
        def send(port: HostReplicaEnv, peer: int, message: Message) -> Any:
            log = self._log(port._group)
            if log is not None and isinstance(message, Vote) and message.granted and not message.pre:
                sender = self._replica(port._group)
                if sender is not None:
                    self._elections.voted(log, message.term, peer, _identity(sender.replica.state.me))
            sent = real(port, peer, message)
            if log is not None and sent and isinstance(message, Append) and message.entries:
                self._weigh(log, port, peer, message)
            return sent

        return send

    def _weigh(self, log: Log, port: HostReplicaEnv, peer: int, message: Append) -> None:
        sizes = [entry.size for entry in message.entries]
        self._elections.sent(log, peer, sizes, APPEND_BYTES)
        bound = WINDOWS_MAX * (port.limits.inflight_bytes_max + APPEND_BYTES + max(sizes))
        process = running_process()
        if process is not None and port._transport.buffered_bytes(peer, Channel.BULK) > bound:
            waiting = self._world.network.waiting_bytes(process.broker_id, peer, port._group)
            self._elections.waits(log, peer, waiting, bound)

    def _replica(self, group: GroupId) -> Group | None:
        process = running_process()
        if process is None:
            return None
        return next((g for g in self._world.machines[process.broker_id].groups() if g.id == group), None)

    # ---- looking around ----------------------------------------------------------------------------------

    async def look(self) -> None:
        """Check whether majorities that no fault strikes have leaders."""
        world = self._world
        known: dict[GroupId, None] = {}  # groups without a replica at the moment count, too
        while not world.over:
            await world.clock.sleep(LOOK_S)
            led: dict[GroupId, int] = {}
            lost: dict[GroupId, list[int]] = {}
            for broker in world.brokers.values():
                if not broker.running:
                    continue
                hung = broker.disk.hangs
                well = self._is_well(broker)
                for group in broker.groups():
                    if well:
                        known[group.id] = None
                    if group.is_leader:
                        # a hung disk keeps no replica that has nothing to sync
                        able = not hung or group.log.durable_index == group.log.last_index
                        if able and self._reaches_a_majority(broker.id, group):
                            led[group.id] = broker.id
                    elif well and group.leader is None and group.failure is None:
                        lost.setdefault(group.id, []).append(broker.id)
            for group_id in known:
                log = self._log(group_id)
                if log is not None:
                    leader = led.get(group_id)
                    held = self._healthy_replicas(group_id) if leader is None else ()
                    self._elections.looked(log, held, self._well_linked, led=leader is not None)
                    # a leader whose disk hangs cannot read what it has to send
                    tells = leader is not None and self._is_well(world.brokers[leader])
                    near = [n for n in lost.get(group_id, ()) if tells and self._well_linked(n, leader or 0)]
                    self._elections.lost(log, near)

    def _is_well(self, broker: SimBroker) -> bool:
        return broker.running and not broker.disk.hangs and broker.disk_s == DISK_S

    def _healthy_replicas(self, group_id: GroupId) -> list[HealthyReplica]:
        """Return the replicas of a group that no fault of their broker strikes."""
        return [
            HealthyReplica(_identity(group.replica.state.me), _listing(group.replica.state.newest_membership))
            for broker in self._world.brokers.values()
            if self._is_well(broker)
            for group in broker.groups()
            if group.id == group_id and group.role in (Role.LEADER, Role.FOLLOWER, Role.CANDIDATE)
        ]

    def _reaches_a_majority(self, broker_id: int, group: Group) -> bool:
        """Return whether a leader reaches a majority, however slowly."""
        conditions, members = self._world.conditions, [r.broker_id for r in group.membership.replicas]
        reached = [n for n in members if not (conditions.is_cut((n, broker_id)) or conditions.is_cut((broker_id, n)))]
        return 2 * len(reached) > len(members)

    def _well_linked(self, a: int, b: int) -> bool:
        conditions, usual = self._world.conditions, self._world.link_s
        for way in ((a, b), (b, a)):
            known = conditions.of(way)
            if (
                conditions.is_impaired(way)
                or self._world.network.has_lost(*way)
                or known.loss
                or known.drop
                or (known.seconds, known.jitter_s) != usual
            ):
                return False
        return True

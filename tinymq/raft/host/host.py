"""The Raft groups of one broker: it opens them, ticks them, and tells them about the other brokers.

It wires transport, store and groups, and decides nothing about Raft itself. One loop owns all of it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import structlog

from tinymq.base.clock import Clock
from tinymq.base.config import Limits, Timing
from tinymq.base.errors import TinymqError
from tinymq.base.types import METADATA_GROUP, GroupId
from tinymq.format.entry import Entry
from tinymq.log.engine.store import Store
from tinymq.log.replica_log.log_config import DISK, LogConfig
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.host.cold_reads import ColdReads
from tinymq.raft.host.repair import Repairs
from tinymq.raft.host.replica_env import HostReplicaEnv
from tinymq.raft.host.replicas import Replicas
from tinymq.raft.host.router import Router
from tinymq.raft.host.tick_schedule import TickSchedule
from tinymq.raft.net.transport import Channel, Transport
from tinymq.raft.peers.peers import Peers
from tinymq.raft.peers.requests import Requests
from tinymq.raft.replica.group import Group, GroupStatus
from tinymq.raft.replica.replica import RaftReplica
from tinymq.raft.rules.explanation import explain_led
from tinymq.raft.rules.membership import parse_membership
from tinymq.raft.state.env import StateMachine

logger = structlog.get_logger("tinymq.raft")


class Host:
    """All groups of one broker. The callbacks below are called on the loop."""

    def __init__(
        self, broker_id: int, store: Store, transport: Transport, clock: Clock, rng: random.Random, limits: Limits,
        timing: Timing,
    ) -> None:  # fmt: skip
        self.broker_id = broker_id
        self.on_group_changed: Callable[[Group], None] | None = None  # its role, leader, term or CONFIG changed
        # The vote store's disk failed: the broker must stop.
        self.on_failed: Callable[[TinymqError], None] | None = None
        self.on_peer_changed: Callable[[int, bool], None] | None = None  # (broker, is it alive now?)
        self.feature_level = store.identity.feature_level  # of the cluster, as known here
        self._store = store
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._limits = limits
        self._timing = timing
        self._groups: dict[GroupId, Group] = {}
        self._peers = Peers(broker_id, transport, clock, timing)
        self.failure_detector = self._peers.failure_detector  # for metrics, which only read it
        self._peers.on_alive = self._peer_alive
        self._peers.on_gone = self._peer_gone
        self._peers.on_deaf = self._peer_deaf
        self._peers.on_stepped_down = self._peer_stepped_down
        self._peers.time.on_known = self._time_known
        self._members: Counter[int] = Counter()  # by broker: how many of the groups open here have it as a member
        self._holders: frozenset[int] = frozenset()  # brokers with any replica, as `set_holders` said last
        self._requests = Requests(self._send_control, clock)
        self._schedule = TickSchedule(clock, self._tick)
        repairs = Repairs(broker_id, store, clock, self._peers, self._requests, self._groups)
        self._replicas = Replicas(
            broker_id=broker_id,
            store=store,
            schedule=self._schedule,
            limits=limits,
            repairs=repairs,
            groups=self._groups,
            changed=self._announce,
        )
        self._cold = ColdReads(self._groups, self._schedule, self._replicas)
        self._router = Router(transport, self._peers, self._requests, self._groups, self._replicas.guarded)
        # By group: its role, leader, term and CONFIG, as `on_group_changed` was told last.
        self._announced: dict[GroupId, tuple[object, ...]] = {}
        self._transferring: list[Group] = []  # groups whose leadership has to go before this broker stops
        self._transferred = asyncio.Event()  # set while none of them is led here
        store.votes.on_durable.append(self._on_votes_durable)
        store.writer.on_failed = self._on_votes_failed

    def introduce(self, here: Callable[[], str], on_here: Callable[[int, str], None]) -> None:
        """Exchange addresses with every broker that connects, as host:port: `here` returns the address of this broker,
        and `on_here` gets that of a peer. Call it before `start`."""
        self._peers.here, self._peers.on_here = here, on_here

    # ---- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, and begin to send heartbeats. Groups may be opened before or after."""
        self._router.listen()
        self._transport.hears = self.failure_detector.alive
        await self._transport.start()
        self._peers.start()

    async def stop(self, *, transfer: bool = True) -> None:
        """Transfer the leaderships of this broker, tell the other brokers that it stops, and close every connection.
        The store stays open."""
        if transfer:
            await self._transfer_all()
        self._peers.stop()
        self._schedule.stop()
        await self._requests.stop()
        await self._transport.stop()

    async def _transfer_all(self) -> None:
        """Transfer every leadership that another broker can take, and wait until they lead or the time is up."""
        until = self._clock.monotonic() + self._timing.transfer_timeout_s
        self._transferring = [
            group for group in self._groups.values() if group.replica.transfer_leadership(None, until)
        ]
        self._transferred.clear()
        self._check_transferred()
        timer = self._clock.call_later(self._timing.transfer_timeout_s, self._transferred.set)
        await self._transferred.wait()
        timer.cancel()

    def _check_transferred(self) -> None:
        # Do not wait for a group that an election brings back here: when this broker says goodbye, the others elect at
        # once. Two brokers that stop together would otherwise wait until the time is up.
        self._transferring = [group for group in self._transferring if group.is_leader]
        if not self._transferring:
            self._transferred.set()

    # ---- groups ----------------------------------------------------------------------------------------

    @property
    def groups(self) -> Mapping[GroupId, Group]:
        return MappingProxyType(self._groups)

    async def open_group(
        self, group_id: GroupId, first_entry: Entry, machine: StateMachine, config: LogConfig = DISK
    ) -> Group:
        """Open or create this broker's replica and bring `machine` to what is known to be committed.

        Raises StorageError. A damaged replica is QUARANTINED, takes part in nothing, and repairs itself.
        """
        env = HostReplicaEnv(
            group=group_id,
            clock=self._clock,
            rng=self._rng,
            limits=self._limits,
            timing=self._timing,
            transport=self._transport,
            failure_detector=self._peers.failure_detector,
            time=self._peers.time,
            level=lambda: self.feature_level,
            observed=group_id == METADATA_GROUP,  # every broker needs to know the cluster
            wake=lambda: self._schedule.wake(group_id),
            read_cold=lambda peer, index: self._cold.read(self._groups[group_id], peer, index),
            read_snapshot=lambda peer: self._cold.read_snapshot(self._groups[group_id], peer),
            take_snapshot=lambda peer, message: self._replicas.installs.take(self._groups[group_id], peer, message),
        )
        members = [r.broker_id for r in parse_membership(first_entry.payload).replicas]  # these brokers never change
        self._members.update(members)
        self._count_clocks()  # before this replica can lead the group
        try:
            return await self._replicas.open(group_id, first_entry, machine, env, config)
        except BaseException:
            self._members.subtract(members)
            raise

    def configure_group(self, group_id: GroupId, config: LogConfig) -> None:
        """Apply this configuration to the group's log from now on. `storage` cannot change."""
        self._replicas.configure(self._groups[group_id], config)

    async def close_group(self, group_id: GroupId) -> None:
        """Take no further part in a group. The data stays."""
        await self._forget(group_id)
        await self._store.close_log(group_id)

    async def _forget(self, group_id: GroupId) -> None:
        group = self._groups.pop(group_id)
        self._members.subtract(r.broker_id for r in group.membership.replicas)
        self._count_clocks()
        self._schedule.forget(group_id)
        self._announced.pop(group_id, None)
        self._peers.forget(group_id)
        if group.replica.current.leading_term is not None:
            self._tell_stepped_down(group, group.replica.current.leading_term)
            group.replica.current.close()
        await self._replicas.close(group)

    async def delete_group(self, group_id: GroupId) -> None:
        """Close the group, whose topic is gone, and remove its data for good."""
        if group_id in self._groups:
            await self._forget(group_id)
        await self._store.delete_log(group_id)

    def transfer(
        self, group_id: GroupId, to: int | None = None, *, within_s: float | None = None, manual: bool = False
    ) -> bool:
        """Begin to transfer a leadership. False when the group is not led here, or no broker can take it.

        `to`: the broker to lead; None: the follower that holds most. The transfer is given up after `within_s` seconds
        (None: `transfer_timeout_s`). Then the group is led here as before. `manual`: an operator asked for it.
        """
        until = self._clock.monotonic() + (self._timing.transfer_timeout_s if within_s is None else within_s)
        return self._groups[group_id].replica.transfer_leadership(to, until, manual)

    def known_levels(self) -> dict[int, int]:
        """Map every other live broker to the feature level that its build knows."""
        identities = [self._transport.identity(peer) for peer in self.failure_detector.all_alive()]
        return {who.broker_id: who.feature_level for who in identities if who is not None}

    async def enter_level(self, level: int) -> None:
        """Allow proposals that need this feature level, because the cluster is at it. Once the level is stored in the
        data directory, refuse peers that do not know it. Raises StorageError."""
        self.feature_level = max(self.feature_level, level)
        await self._store.note_feature_level(level)
        self._transport.turn_away(level)

    def alive(self, broker_id: int) -> bool:
        return self._peers.alive(broker_id)

    def count_alive(self) -> int:
        """Count the brokers that are heard, and this one."""
        return self._peers.count_alive()

    def leader_of(self, group_id: GroupId) -> tuple[int, int] | None:
        """Return (broker, term): from the replica here, else from what leaders announced.

        It is a hint: it may be over.
        """
        group = self._groups.get(group_id)
        if group is not None and group.leader is not None:
            return group.leader, group.term
        known = self._peers.leader_of(group_id)
        return None if known is not None and known[0] == self.broker_id else known  # it would be the replica here

    # ---- the cluster's time ----------------------------------------------------------------------------

    def set_holders(self, brokers: frozenset[int]) -> None:
        """Let the clocks of these brokers count. They hold replicas, according to the registry. The members of groups
        that are open here count, too."""
        self._holders = brokers
        self._count_clocks()

    def _count_clocks(self) -> None:
        self._peers.time.count(self._holders | {b for b, groups in self._members.items() if groups})

    def _time_known(self) -> None:
        for group in self._groups.values():
            if group.is_leader:
                self._schedule.wake(group.id)

    def status(self, group: Group) -> GroupStatus:
        """Return the group's own status. If another broker has announced a leader that this replica does not know yet,
        the reason says that it waits to hear from that leader, because nothing needs recovery."""
        status = group.status()
        leader = self.leader_of(group.id)
        if status.leader is not None or leader is None:
            return status
        return replace(status, reason=explain_led(status.reason, leader[0]))

    # ---- questions between brokers -----------------------------------------------------------------------

    async def request(self, broker_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        """Ask a broker (this one, too). See `Requests.ask`."""
        if broker_id == self.broker_id:
            return await self._requests.ask_here(method, body)
        return await self._requests.ask(broker_id, method, body, timeout_s)

    def serve(self, method: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._requests.serve(method, answer)

    def _send_control(self, peer: int, message: pb.Peer, body: bytes = b"") -> bool:
        return self._transport.send(peer, Channel.CONTROL, message, [body] if body else ())

    # ---- ticking -------------------------------------------------------------------------------------------

    def _tick(self, group_id: GroupId) -> float | None:
        """Tick one group. Return the time of its next timer, or None if the group is gone."""
        if (group := self._groups.get(group_id)) is None:
            return None
        self._replicas.guarded(group, group.replica.tick)
        self._replicas.installs.settle(group)
        self._announce(group)
        return group.replica.next_wake()

    def _announce(self, group: Group) -> None:
        """Announce a change of role, leader, term or CONFIG to the peers, the replica's owner and the room above.

        A CONFIG alone counts, too: one that retires a learner's identity leaves its role as it is, and the learner has
        to take another identity.
        """
        if self._groups.get(group.id) is not group:
            return
        replica = group.replica
        now = (group.role, group.leader, group.term, replica.current.leading_term, group.membership.epoch)
        before = self._announced.get(group.id)
        if now == before:
            return
        self._announced[group.id] = now
        led = None if before is None else before[3]
        logger.info("replica_changed", group=str(group.id), role=group.role.value, term=group.term, leader=group.leader)
        if replica.current.leading_term is not None:
            self._peers.leads(group.id, replica.current.leading_term)
        if isinstance(led, int) and replica.current.leading_term != led:
            self._tell_stepped_down(group, led)
        self._check_transferred()
        self._replicas.look(group)
        if self.on_group_changed is not None:
            self.on_group_changed(group)

    def _tell_stepped_down(self, group: Group, term: int) -> None:
        self._peers.stepped_down(group.id, term, [r.broker_id for r in group.membership.replicas])

    # ---- the life of other brokers -----------------------------------------------------------------------------

    def _peer_alive(self, peer: int, restarted: bool) -> None:
        """A broker came, or came back. If it restarted, it no longer leads the groups that its last process led."""

        def tell(replica: RaftReplica) -> None:
            if restarted:
                replica.elections.leader_gone(peer)
            replica.peer_alive(peer)

        self._router.each_with(peer, tell)
        if self.on_peer_changed is not None:
            self.on_peer_changed(peer, True)

    def _peer_gone(self, peer: int) -> None:

        def tell(replica: RaftReplica) -> None:
            replica.elections.leader_gone(peer)
            replica.observer_gone(peer)
            replica.current.check_quorum()

        self._router.each_with(peer, tell)
        if self.on_peer_changed is not None:
            self.on_peer_changed(peer, False)

    def _peer_deaf(self, peer: int) -> None:
        self._router.each_with(peer, lambda replica: replica.current.check_quorum())

    def _peer_stepped_down(self, peer: int, group_id: GroupId, term: int) -> None:
        if (group := self._groups.get(group_id)) is not None:
            self._replicas.guarded(group, lambda: group.replica.elections.stepped_down(peer, term))

    # ---- the disk --------------------------------------------------------------------------------------------

    def _on_votes_durable(self) -> None:
        for group in self._groups.values():
            if group.replica.state.vote_barrier:
                self._replicas.guarded(group, group.replica.durable)

    def _on_votes_failed(self, error: TinymqError) -> None:
        logger.error("vote_store_failed", error=error.code, reason=str(error))
        for group in self._groups.values():
            group.replica.fail(error)
        if self.on_failed is not None:
            self.on_failed(error)

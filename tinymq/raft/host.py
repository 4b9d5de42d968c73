"""The Raft groups of one broker: opened, ticked when something happened, told of the life of other brokers.

Wires transport, store and groups; decides nothing about Raft itself. One loop owns all of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import structlog

from tinymq.clock import Clock, Timer
from tinymq.config import Limits, Timing
from tinymq.entry import Entry
from tinymq.errors import CorruptData, TinymqError
from tinymq.log.store import Store
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.group import Group
from tinymq.raft.heartbeats import Heartbeats
from tinymq.raft.leaders import LeaderBoard, announcement, read_announcement
from tinymq.raft.liveness import Liveness, Verdict
from tinymq.raft.messages import from_wire
from tinymq.raft.opening import open_replica
from tinymq.raft.port import GroupPort
from tinymq.raft.requests import Requests
from tinymq.raft.schedule import Schedule
from tinymq.raft.state import StateMachine
from tinymq.raft.transport import Channel, PeerIdentity, Transport
from tinymq.types import GroupId

logger = structlog.get_logger("tinymq.raft")


class Host:
    """All groups of one broker. Callbacks are made on the loop; see the attributes."""

    def __init__(
        self, broker_id: int, store: Store, transport: Transport, clock: Clock, rng: random.Random, limits: Limits,
        timing: Timing,
    ) -> None:  # fmt: skip
        self.broker_id = broker_id
        self.on_group_changed: Callable[[Group], None] | None = None  # role, leader or term is another
        self.on_failed: Callable[[TinymqError], None] | None = None  # the ballots' disk failed: the broker must stop
        self.on_peer_changed: Callable[[int, bool], None] | None = None  # a broker is alive (again), or gone
        self._store = store
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._limits = limits
        self._timing = timing
        self._groups: dict[GroupId, Group] = {}
        self._liveness = Liveness(timing.gone_after_s)
        self._heartbeats = Heartbeats(self._liveness)
        self._leaders = LeaderBoard()
        self._requests = Requests(self._send_control, clock)
        self._schedule = Schedule(clock, self._tick)
        self._known: dict[GroupId, tuple[object, ...]] = {}  # role, leader, term, leading term as last announced
        self._control: set[int] = set()  # peers that heartbeats can be sent to
        self._pulse: Timer | None = None
        self._idle = asyncio.Event()  # set while this broker leads nothing
        self._idle.set()
        store.ballots.on_durable.append(self._on_ballots_durable)
        store.writer.on_ballots_failed = self._on_ballots_failed

    # ---- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, and begin to send heartbeats. Groups may be opened before or after."""
        t = self._transport
        t.on_message, t.on_connected, t.on_disconnected, t.on_refused = (
            self._on_message, self._on_connected, self._on_disconnected, self._on_refused,
        )  # fmt: skip
        await t.start()
        self._beat()

    async def stop(self, *, hand_over: bool = True) -> None:
        """Hand over what this broker leads, say goodbye, and close every connection. The store stays open."""
        if hand_over:
            await self._hand_over_all()
        self._heartbeats.stopping = True
        if self._pulse is not None:
            self._beat()
            assert self._pulse is not None
            self._pulse.cancel()
        self._schedule.stop()
        await self._requests.stop()
        await self._transport.stop()

    async def _hand_over_all(self) -> None:
        until = self._clock.monotonic() + self._timing.hand_over_s
        for group in self._groups.values():
            group.core.hand_over(None, until)
        self._update_idle()
        timer = self._clock.call_later(self._timing.hand_over_s, self._idle.set)
        await self._idle.wait()
        timer.cancel()

    # ---- groups ----------------------------------------------------------------------------------------

    @property
    def groups(self) -> Mapping[GroupId, Group]:
        return MappingProxyType(self._groups)

    async def open_group(self, group_id: GroupId, first_entry: Entry, machine: StateMachine) -> Group:
        """Open or create this broker's replica and bring `machine` to what is known to be committed.

        Raises StorageError. A damaged replica is opened as QUARANTINED and takes part in nothing.
        """
        assert group_id not in self._groups, f"{group_id} is open already"
        opened = await self._store.open_log(group_id, first_entry)
        port = GroupPort(
            group_id, self._clock, self._rng, self._limits, self._timing, self._transport, self._liveness,
            wake=lambda: self._schedule.wake(group_id),
            read_cold=lambda peer, index: self._read_cold(group, peer, index),
        )  # fmt: skip
        group = await open_replica(self._store, opened, first_entry, machine, port, self.broker_id)
        self._groups[group_id] = group
        group.log.on_durable = lambda: self._guarded(group, group.core.durable)
        group.log.on_failed = lambda error: self._fail(group, error)
        if opened.damage:
            self._fail(group, CorruptData(opened.damage))
        self._schedule.wake(group_id)
        return group

    async def close_group(self, group_id: GroupId) -> None:
        """Take no further part; the data stays."""
        self._forget(group_id)
        await self._store.close_log(group_id)

    def _forget(self, group_id: GroupId) -> None:
        group = self._groups.pop(group_id)
        group.log.on_durable = group.log.on_failed = None
        self._schedule.forget(group_id)
        self._known.pop(group_id, None)
        self._leaders.forget(group_id)
        if group.core.leading_term is not None:
            self._tell_stepped_down(group, group.core.leading_term)
            group.machine.follow()

    async def delete_group(self, group_id: GroupId) -> None:
        """The topic is gone: close, and remove the data for good."""
        if group_id in self._groups:
            self._forget(group_id)
        await self._store.delete_log(group_id)

    def transfer(self, group_id: GroupId, to: int | None = None) -> bool:
        """Begin to hand the leadership over; False when it is not led here or nobody can take it."""
        return self._groups[group_id].core.hand_over(to, self._clock.monotonic() + self._timing.hand_over_s)

    def alive(self, broker_id: int) -> bool:
        return broker_id == self.broker_id or self._liveness.alive(broker_id)

    def leader_of(self, group_id: GroupId) -> tuple[int, int] | None:
        """(broker, term): from the replica here, else from what leaders announced. A hint: it may be over."""
        group = self._groups.get(group_id)
        if group is not None and group.leader is not None:
            return group.leader, group.term
        known = self._leaders.leader_of(group_id)  # kept while its broker is silent: it may lead still
        return known if known is not None and self.alive(known[0]) else None

    # ---- questions between brokers -----------------------------------------------------------------------

    async def request(self, broker_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        """Ask a broker (this one, too). See `Requests.ask`."""
        if broker_id == self.broker_id:
            return await self._requests.ask_here(method, body)
        return await self._requests.ask(broker_id, method, body, timeout_s)

    def serve(self, method: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._requests.serve(method, answer)

    # ---- ticking -------------------------------------------------------------------------------------------

    def _tick(self, group_id: GroupId) -> float | None:
        """Tick one group; when it wants to be ticked next (None: it is gone)."""
        group = self._groups.get(group_id)
        if group is None:
            return None
        self._guarded(group, group.core.tick)
        self._announce(group)
        return group.core.next_wake()

    def _guarded(self, group: Group, call: Callable[[], None]) -> None:
        """Whatever a replica raises ends that replica. Going on after an exception might skip an entry, or apply it
        twice; and whoever called (the loop, the writer) serves all other groups, too."""
        try:
            call()
        except Exception as error:
            self._fail(group, error)

    def _fail(self, group: Group, error: Exception) -> None:
        """This replica stops; the broker and its other groups go on."""
        reason = error if isinstance(error, TinymqError) else CorruptData(f"broken invariant: {error!r}")
        trace = None if reason is error else error
        logger.error("replica_failed", group=str(group.id), error=reason.code, reason=str(reason), exc_info=trace)
        group.core.fail(reason)
        self._announce(group)

    def _announce(self, group: Group) -> None:
        """Tell whom it concerns when role, leader or term changed."""
        core = group.core
        now = (group.role, group.leader, group.term, core.leading_term)
        before = self._known.get(group.id)
        if now == before:
            return
        self._known[group.id] = now
        led = None if before is None else before[3]
        logger.info("replica_changed", group=str(group.id), role=group.role.value, term=group.term, leader=group.leader)
        if core.leading_term is not None:
            self._leaders.note(group.id, self.broker_id, core.leading_term)
            for peer in self._control:
                self._send_control(peer, announcement([(group.id, core.leading_term)]))
        if isinstance(led, int) and core.leading_term != led:
            self._tell_stepped_down(group, led)
        self._update_idle()
        if self.on_group_changed is not None:
            self.on_group_changed(group)

    def _tell_stepped_down(self, group: Group, term: int) -> None:
        for replica in group.membership.replicas:
            if replica.broker_id != self.broker_id:
                self._heartbeats.stepped_down(replica.broker_id, group.id, term)

    def _update_idle(self) -> None:
        if any(g.is_leader for g in self._groups.values()):
            self._idle.clear()
        else:
            self._idle.set()

    def _read_cold(self, group: Group, peer: int, index: int) -> None:
        term = group.core.leading_term
        assert term is not None
        self._schedule.spawn(self._read_for(group, term, peer, index))

    async def _read_for(self, group: Group, term: int, peer: int, index: int) -> None:
        entries: list[Entry] = []
        try:
            entries = await group.log.read(index, 1 << 20)
        except TinymqError as error:
            self._fail(group, error)
        if self._groups.get(group.id) is group:
            group.core.read_done(term, peer, index, entries)

    # ---- the network ---------------------------------------------------------------------------------------

    def _send_control(self, peer: int, message: pb.Peer, body: bytes = b"") -> bool:
        return self._transport.send(peer, Channel.CONTROL, message, [body] if body else ())

    def _on_message(self, peer: int, head: pb.Peer, body: bytes | memoryview) -> None:
        match head.WhichOneof("message"):
            case "heartbeat":
                self._on_heartbeat(peer, head.heartbeat)
            case "leaders":
                for group_id, term in read_announcement(head.leaders):
                    self._leaders.note(group_id, peer, term)
            case "request" | "reply":
                self._requests.received(peer, head, bytes(body))
            case _:
                self._on_raft(peer, head, body)

    def _on_raft(self, peer: int, head: pb.Peer, body: bytes | memoryview) -> None:
        try:
            received = from_wire(head, body)
        except TinymqError as error:
            logger.warning("message_refused", peer=peer, error=error.code, reason=str(error))
            self._transport.reset(peer, Channel.BULK)
            return
        group = None if received is None else self._groups.get(received[0])
        if received is None or group is None:
            return  # not opened here yet, or gone: its leader asks again
        message = received[1]
        self._guarded(group, lambda: group.core.receive(peer, message))

    def _on_heartbeat(self, peer: int, beat: pb.Heartbeat) -> None:
        who = self._transport.identity(peer)
        if who is None:
            return
        heard = self._heartbeats.heard(peer, who.session, beat, self._clock.wall_us(), self._clock.monotonic())
        if heard.verdict is not None:
            self._peer_alive(peer, restarted=heard.verdict is Verdict.RESTARTED)
        for group_id, term in heard.stepped_down:
            group = self._groups.get(group_id)
            if group is not None and group.term <= term:
                group.core.leader_gone(peer)
        if heard.stopping and self._liveness.refused(peer) is not None:
            self._peer_gone(peer, "it stops")

    def _on_connected(self, peer: int, channel: Channel, who: PeerIdentity) -> None:
        if channel is Channel.CONTROL:
            self._control.add(peer)
            led = [(g.id, g.term) for g in self._groups.values() if g.is_leader]
            self._send_control(peer, announcement(led))
            self._send_control(peer, self._heartbeats.next(peer, self._clock.wall_us(), self._clock.monotonic()))
            return
        for group in self._groups_with(peer):
            group.core.peer_alive(peer)

    def _on_disconnected(self, peer: int, channel: Channel, reason: str) -> None:
        if channel is Channel.CONTROL:
            self._control.discard(peer)
            self._requests.lost(peer)
            return
        for group in self._groups_with(peer):
            group.core.connection_lost(peer)

    def _on_refused(self, peer: int, error: TinymqError) -> None:
        # Where the machine answers and no process listens, nothing needs to be waited for.
        if error.detail.get("refused") == "True" and self._liveness.refused(peer) is not None:
            self._peer_gone(peer, "its port refuses connections")

    def _groups_with(self, peer: int) -> list[Group]:
        return [g for g in self._groups.values() if g.membership.replica(peer) is not None]

    # ---- the life of other brokers -----------------------------------------------------------------------------

    def _beat(self) -> None:
        now, wall_us = self._clock.monotonic(), self._clock.wall_us()
        for peer in self._control:
            self._send_control(peer, self._heartbeats.next(peer, wall_us, now))
        for peer in self._liveness.silent(now):
            self._peer_gone(peer, "no heartbeat")
        self._pulse = self._clock.call_later(self._timing.heartbeat_s, self._beat)

    def _peer_alive(self, peer: int, *, restarted: bool) -> None:
        """A broker came, or came back; another process leads nothing of what the one before it led."""
        logger.info("broker_alive", broker=peer, restarted=restarted)
        if restarted:
            self._leaders.gone(peer)
        for group in self._groups_with(peer):
            if restarted:
                group.core.leader_gone(peer)
            group.core.peer_alive(peer)
        if self.on_peer_changed is not None:
            self.on_peer_changed(peer, True)

    def _peer_gone(self, peer: int, why: str) -> None:
        logger.warning("broker_gone", broker=peer, reason=why)
        for group in self._groups_with(peer):
            group.core.leader_gone(peer)
            group.core.check_quorum()
        if self.on_peer_changed is not None:
            self.on_peer_changed(peer, False)

    # ---- the disk --------------------------------------------------------------------------------------------

    def _on_ballots_durable(self) -> None:
        for group in self._groups.values():
            if group.core.waits_for_ballot:
                self._guarded(group, group.core.durable)

    def _on_ballots_failed(self, error: TinymqError) -> None:
        logger.error("ballots_failed", error=error.code, reason=str(error))
        for group in self._groups.values():
            group.core.fail(error)
        if self.on_failed is not None:
            self.on_failed(error)

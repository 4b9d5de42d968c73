"""The registry as a Raft group over the brokers: every broker sends its commands to the group's leader.

A command carries a random id, so that it can be sent again after any failure and still applies once. Every call ends by
its deadline: applied, refused, certainly not done, or unknown.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from google.protobuf.message import DecodeError

from tinymq.base.clock import Clock, Timer, within
from tinymq.base.config import Timing
from tinymq.base.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    TinymqError,
    Unavailable,
)
from tinymq.base.retry import Backoff, retry_until
from tinymq.base.types import METADATA_GROUP, GroupId
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.base_registry import BaseRegistry
from tinymq.registry.leases import Leases
from tinymq.registry.raft_group.state_machine import RegistryMachine
from tinymq.registry.state.state import reply_error
from tinymq.registry.state.values import BrokerRecord
from tinymq.registry.state.wire import broker_from_wire, broker_to_wire

METHOD = "registry"
BACKOFF = Backoff(0.03, 0.03)  # a change of leader takes a few attempts
TRY_S = 2.0  # of one attempt, at most: a leader that hangs costs no more than this


class Brokers(Protocol):
    """The part of the Raft host that the registry uses (tinymq.raft.Host)."""

    def leader_of(self, group: GroupId) -> tuple[int, int] | None: ...
    async def request(self, broker_id: int, method: str, body: bytes, timeout_s: float) -> bytes: ...
    def serve(self, method: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None: ...


class ReplicatedRegistry(BaseRegistry):
    """RegistryService on `machine`, whose group must be open. `close` ends its timer."""

    def __init__(
        self,
        broker_id: int,
        machine: RegistryMachine,
        brokers: Brokers,
        clock: Clock,
        rng: random.Random,
        timing: Timing,
    ) -> None:
        super().__init__(machine.state, clock, rng, timing)
        self._broker_id = broker_id
        self._machine = machine
        self._brokers = brokers
        self._leases = Leases(timing.registration_lease_s)
        self._timer: Timer | None = None
        machine.on_applied = self._advanced
        machine.on_role = self._on_role
        brokers.serve(METHOD, self._answer)
        if machine.leading:
            self._on_role(True)

    async def start(self, on_disk: Collection[GroupId]) -> None:
        """Do nothing: the group of `machine` is open already."""

    def close(self) -> None:
        self._on_role(False)

    async def register_broker(self, broker: BrokerRecord) -> float:
        reply = await self._ask(pb.Ask(renew=broker_to_wire(broker)), self._timing.command_timeout_s)
        error = reply_error(reply)
        if error is not None:
            raise error
        if self.get_broker(broker.broker_id) != broker:
            await self.wait_version(reply.version, self._timing.command_timeout_s)
        return self._timing.registration_lease_s

    async def refresh(self, timeout_s: float) -> int:
        deadline_s = self._clock.monotonic() + timeout_s
        reply = await self._ask(pb.Ask(barrier=pb.Barrier()), timeout_s)
        await self.wait_version(reply.version, max(0.0, deadline_s - self._clock.monotonic()))
        return self.version

    async def _submit(self, command: pb.Command, timeout_s: float) -> pb.Reply:
        return await self._ask(pb.Ask(command=command.SerializeToString()), timeout_s)

    async def _raise(self, command: pb.Command) -> None:
        """Propose the command as the leader, because only the leader knows that no other command is on its way to the
        log."""
        timeout_s = self._timing.command_timeout_s
        payload = self._stamp(command).SerializeToString()
        reply = await self._within(self._machine.propose(payload, raises_level=True), timeout_s)
        error = reply_error(reply)
        if error is not None:
            raise error

    # ---- asking the leader, which may be this broker -------------------------------------------------------

    async def _ask(self, ask: pb.Ask, timeout_s: float) -> pb.Reply:
        """The leader's reply to `ask`, after as many attempts as the deadline permits."""
        # Once one attempt may have reached a leader, the outcome stays uncertain, whatever later attempts say.
        uncertain = False
        changes = ask.WhichOneof("ask") != "barrier"
        failed: TinymqError | None = None
        deadline_s = self._clock.monotonic() + timeout_s
        async for attempt in retry_until(deadline_s, self._clock, BACKOFF, stop_s=BACKOFF.pause_s_min):
            try:
                return await self._attempt(ask, max(0.001, min(attempt.left_s, TRY_S)))
            except (Unavailable, OutcomeUnknown) as error:
                failed = error
                uncertain = uncertain or (changes and not isinstance(error, NotLeader | NotReady))
        assert failed is not None, "the first attempt is always made"
        kind = OutcomeUnknown if uncertain else DeadlineExceeded
        raise kind(f"the metadata leader did not answer in {timeout_s:.1f} s: {failed.message}") from failed

    async def _attempt(self, ask: pb.Ask, timeout_s: float) -> pb.Reply:
        if self._machine.leading:
            return await self.answer_as_leader(ask, timeout_s)
        leader = self._brokers.leader_of(METADATA_GROUP)
        if leader is None or leader[0] == self._broker_id:
            raise NotReady("the metadata group has no leader yet")
        body = await self._brokers.request(leader[0], METHOD, ask.SerializeToString(), timeout_s)
        try:
            return pb.Reply.FromString(body)
        except DecodeError:
            raise OutcomeUnknown(f"broker {leader[0]} sent a reply that does not parse") from None

    async def _within(self, answer: asyncio.Future[pb.Reply], timeout_s: float) -> pb.Reply:
        return await within(self._clock, answer, timeout_s, OutcomeUnknown("the command is not committed yet"))

    # ---- answering as the leader -------------------------------------------------------------------------

    async def _answer(self, body: bytes) -> bytes:
        """Answer another broker's request, as the leader."""
        try:
            ask = pb.Ask.FromString(body)
        except DecodeError:
            raise InvalidRequest("not a request to the registry") from None
        reply = await self.answer_as_leader(ask, self._timing.command_timeout_s)
        return reply.SerializeToString()

    async def answer_as_leader(self, ask: pb.Ask, timeout_s: float) -> pb.Reply:
        """Carry out `ask` as the leader. Raises NotLeader, OutcomeUnknown; DeadlineExceeded for a read."""
        kind = ask.WhichOneof("ask")
        if kind == "command":
            return await self._within(self._machine.propose(ask.command), timeout_s)
        if kind == "barrier":
            await self._machine.read_index(min(timeout_s, TRY_S))
            return pb.Reply(version=self.version)
        if not self._machine.leading:
            raise NotLeader("this broker does not lead the metadata group")
        if kind != "renew":
            raise InvalidRequest("the registry's leader does not know this request")
        broker = broker_from_wire(ask.renew)
        self._leases.renew(broker, self._clock.monotonic())
        if self._state.brokers.get(broker.broker_id) == broker:
            return pb.Reply(version=self.version)
        command = self._registration(broker).SerializeToString()
        return await self._within(self._machine.propose(command), timeout_s)

    def grant_whole_leases(self) -> None:
        """Give every registration a whole lease from now on. The clock that measures them jumped, and no broker was
        silent for so long."""
        self._leases.reset()

    def _on_role(self, leads: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if leads:
            self._leases.reset()
            self._check_leases()

    def _check_leases(self) -> None:
        """End expired leases, by commands, because `apply` reads no clock."""
        for broker in self._leases.expired(self._state.brokers, self._clock.monotonic()):
            expired = pb.UnregisterBroker(broker_id=broker.broker_id, session=broker.session)
            try:
                self._machine.append(self._stamp(pb.Command(unregister_broker=expired)).SerializeToString())
            except Unavailable:
                break  # the next check, or the next leader, ends them
        self._timer = self._clock.call_later(self._timing.registration_renew_s / 2, self._check_leases)

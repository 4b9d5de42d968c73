"""Joining: how a broker with an empty data directory enters a cluster that exists, and how a member lets it in.

A voter asks the voters of its configuration, over connections on which both sides prove the secret. It joins once each
of them has answered or is unreachable, and all those that belong to a cluster belong to the same one. If none of them
does, it waits for `tinymq cluster init` or for one of them. Joining gives no vote: see `tinymq.raft.rules.membership`.

Any other broker asks at the addresses of its setting `join`, on the same terms, until a broker invites it or its time
is up. It never votes: see docs/adr/0014.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import structlog

from tinymq.base.clock import Clock
from tinymq.base.config import parse_address
from tinymq.base.errors import (
    BrokerUnreachable,
    DeadlineExceeded,
    Denied,
    InvalidConfig,
    InvalidFrame,
    InvalidRequest,
    NotReady,
    QuotaExceeded,
    TinymqError,
    Unavailable,
    WrongBroker,
    WrongCluster,
)
from tinymq.base.quantity import named
from tinymq.base.retry import Backoff, retry_until
from tinymq.base.types import PeerAddress
from tinymq.broker.cluster.formation import Formation
from tinymq.raft.net.transport import JOIN_RETRY_S, Invitation, PeerIdentity

logger = structlog.get_logger("tinymq.broker")

REASONS_LOGGED_MAX = 20  # different ones, of one process
OTHERS_S = 1.0  # how long a search waits for other addresses once a broker has invited it

Answer = Invitation | TinymqError


def decide(voters: Collection[int], answers: Mapping[int, Answer]) -> Answer:
    """The invitation to accept, by the last answer of each voter, or the most serious reason for none. Pure."""
    invitations = {peer: answer for peer, answer in answers.items() if isinstance(answer, Invitation)}
    if len(set(invitations.values())) > 1:
        clusters = ", ".join(f"broker {peer}: {i.cluster_id.hex()}" for peer, i in sorted(invitations.items()))
        return WrongCluster(f"the voters belong to more than one cluster: {clusters}")
    # An invitation is not accepted before every voter has answered: one of them may belong to another cluster.
    silent = [peer for peer in voters if peer not in answers]
    if not silent and invitations:
        return next(iter(invitations.values()))
    reasons = [(peer, answer) for peer, answer in sorted(answers.items()) if isinstance(answer, TinymqError)]
    refusals = [error for _, error in reasons if not isinstance(error, Unavailable)]
    if refusals:
        return refusals[0]
    if silent:
        return NotReady(f"waits for the cluster id of {named('broker', silent)}")
    said = "; ".join(f"broker {peer}: {error.message}" for peer, error in reasons)
    return NotReady(f"no broker lets this one into a cluster: {said}", hint="if there is none: tinymq cluster init")


class Join:
    """A voter's side of joining, until it belongs to a cluster. `spawn` runs the storing of the invitation."""

    def __init__(
        self, formation: Formation, voters: Collection[int], spawn: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._formation = formation
        self._voters = sorted(set(voters) - {formation.broker_id})
        self._spawn = spawn
        self._answers: dict[int, Answer] = {}
        self._reason: TinymqError | None = None
        self._logged: set[str] = set()  # reasons
        self._under_way = False

    @property
    def reason(self) -> str:
        """Why this broker belongs to no cluster, for people; "" once it does."""
        if self._formation.first_entry is not None or self._reason is None:
            return ""
        return f"{self._reason.code}: {self._reason.message}"

    def heard(self, peer: int, answer: Answer) -> None:
        """Take a peer's answer, or the reason why it could not be asked."""
        self._answers[peer] = answer
        decision = decide(self._voters, self._answers)
        if isinstance(decision, TinymqError):
            self._refused(decision)
        elif not self._under_way and self._formation.first_entry is None:
            self._under_way = True
            self._spawn(self._join(decision))

    async def _join(self, invitation: Invitation) -> None:
        try:
            await self._formation.join(invitation.cluster_id, invitation.first_entry)
            logger.info("cluster_joined", broker=self._formation.broker_id, cluster=invitation.cluster_id.hex())
        except (Denied, InvalidRequest, Unavailable) as error:
            self._refused(error)
        finally:
            self._under_way = False

    def _refused(self, reason: TinymqError) -> None:
        self._reason = reason
        if reason.message in self._logged or len(self._logged) >= REASONS_LOGGED_MAX:
            return  # this may go on for hours: log each reason once
        self._logged.add(reason.message)
        log = logger.info if len(self._answers) < len(self._voters) else logger.warning  # others may still answer
        log("join_pending", code=reason.code, reason=reason.message, hint=reason.hint)


Ask = Callable[[str, int], Awaitable[Invitation]]
"""`transport.Transport.ask`."""


def choose(answers: Mapping[str, Answer]) -> Answer:
    """The invitation to accept, by the answer of each address, or the most serious reason for none. Pure."""
    invitations = {address: answer for address, answer in answers.items() if isinstance(answer, Invitation)}
    if len({(i.cluster_id, i.first_entry) for i in invitations.values()}) > 1:
        clusters = ", ".join(f"{address}: {i.cluster_id.hex()}" for address, i in invitations.items())
        return WrongCluster(f"these addresses belong to more than one cluster: {clusters}")
    if invitations:
        return next(iter(invitations.values()))
    errors = [(address, answer) for address, answer in answers.items() if isinstance(answer, TinymqError)]
    why = "; ".join(f"{address}: {error.message.removeprefix(f'{address}: ')}" for address, error in errors)
    worst = min((error for _, error in errors), key=_gravity)
    if isinstance(worst, BrokerUnreachable | DeadlineExceeded):
        return BrokerUnreachable(f"no broker tells of its cluster: {why}", hint=_PORTS)
    return type(worst)(why, hint=_HINTS.get(type(worst), worst.hint))


_PORTS = "name running brokers by their addresses for other brokers (peer_listen), host:port"
JOIN_REPLICATED = 'form a cluster of brokers with registry = "replicated" (docs/registry.md), and join that one'
_HINTS: Mapping[type[TinymqError], str] = {
    InvalidConfig: JOIN_REPLICATED,
    InvalidFrame: f"this is no port between brokers: {_PORTS}",
    WrongBroker: "every broker has a broker_id of its own: choose one that no other has",
}


def _gravity(error: TinymqError) -> int:
    """Rank of an error, the most serious lowest: errors that a person has to correct, errors that pass, unreachable
    addresses."""
    if not isinstance(error, Unavailable):
        return 0
    return 2 if isinstance(error, BrokerUnreachable | DeadlineExceeded) else 1


class ClusterSearch:
    """The joining side of a broker that is not a voter."""

    def __init__(
        self, formation: Formation, ask: Ask, addresses: Sequence[str], clock: Clock, patience_s: float
    ) -> None:
        self._formation = formation
        self._ask = ask
        self._addresses = addresses
        self._clock = clock
        self._patience_s = patience_s
        self._reason: TinymqError | None = None

    @property
    def reason(self) -> str:
        """Why this broker belongs to no cluster, for people; "" once it does."""
        if self._formation.first_entry is not None or self._reason is None:
            return ""
        return f"{self._reason.code}: {self._reason.message}"

    async def run(self) -> tuple[PeerAddress, ...]:
        """Join, or confirm that the data directory belongs to this cluster. Returns the addresses of the voters.

        Raises at once an error that a person has to correct, and any other error when the time is up.
        """
        deadline_s = self._clock.monotonic() + self._patience_s
        async for _ in retry_until(deadline_s, self._clock, Backoff(JOIN_RETRY_S, JOIN_RETRY_S)):
            decision = choose(await self._ask_all())
            if isinstance(decision, Invitation):
                await self._formation.observe(decision)
                logger.info("cluster_joined", broker=self._formation.broker_id, cluster=decision.cluster_id.hex())
                return decision.voters
            if self._reason is None or self._reason.code != decision.code:
                logger.warning("join_pending", code=decision.code, reason=decision.message, hint=decision.hint)
            self._reason = decision
            if not isinstance(decision, Unavailable):
                break
        assert self._reason is not None, "the first attempt is always made"
        raise self._reason

    async def _ask_all(self) -> dict[str, Answer]:
        """The answer of each address. An address that hangs is left out once a broker has invited this one, because a
        handshake takes 5 s to fail."""
        asking = {address: asyncio.create_task(self._ask_one(address)) for address in self._addresses}
        late: asyncio.Task[None] | None = None  # ends the wait, once there is an invitation
        waiting: list[asyncio.Task[Any]] = list(asking.values())
        try:
            while any(not each.done() for each in asking.values()) and (late is None or not late.done()):
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                waiting = [each for each in waiting if each not in done]
                if late is None and any(isinstance(each.result(), Invitation) for each in done):
                    late = asyncio.create_task(self._clock.sleep(OTHERS_S))
                    waiting.append(late)
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return {address: each.result() for address, each in asking.items() if each not in waiting}

    async def _ask_one(self, address: str) -> Answer:
        try:
            return await self._ask(*parse_address(address))
        except TinymqError as error:
            return error


class InvitingHost(Protocol):
    """The part of the Raft host that inviting uses (tinymq.raft.Host)."""

    def alive(self, broker_id: int) -> bool: ...


def invite(
    formation: Formation, host: InvitingHost, identity_of: Callable[[int], PeerIdentity | None], voters:
    Sequence[PeerAddress], has_room: Callable[[int], bool], stranger: PeerIdentity,
) -> Invitation:  # fmt: skip
    """The invitation for a broker that has proven the secret and belongs to no cluster.

    `voters` are given as this broker dials them. Raises NotReady if this broker has no cluster either, or if a live
    broker has the same id with another data directory; QuotaExceeded if the cluster is full.
    """
    entry = formation.first_entry
    if entry is None:
        raise NotReady(f"broker {formation.broker_id} belongs to no cluster yet")
    broker_id = stranger.broker_id
    present = identity_of(broker_id)
    if present is not None and present.incarnation != stranger.incarnation and host.alive(broker_id):
        raise NotReady(f"broker {broker_id} is alive with another data directory: stop it, or take another broker_id")
    if not has_room(broker_id):
        raise QuotaExceeded("this cluster has as many brokers as it can have")
    return Invitation(formation.cluster_id, entry.head + entry.payload, tuple(voters))

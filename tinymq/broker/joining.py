"""How a broker with an empty data folder comes into a cluster that is formed already, and who lets it in.

It asks the voters of its configuration, over connections on which both sides prove the secret, and joins once all
of them have answered, or could not be reached, and those who belong to a cluster agree on which. Nobody formed yet:
it waits, for `tinymq cluster init` or for one of them. Joining gives no vote: see `tinymq.raft.membership`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Protocol

import structlog

from tinymq.broker.formation import Formation
from tinymq.errors import Denied, InvalidRequest, NotReady, TinymqError, Unavailable, WrongBroker, WrongCluster
from tinymq.raft.membership import parse_membership
from tinymq.raft.transport import Invitation, PeerIdentity

logger = structlog.get_logger("tinymq.broker")

Told = Invitation | TinymqError


def decide(voters: Collection[int], told: Mapping[int, Told]) -> Told:
    """What to join, from what each voter said last; or why not (yet), the most serious reason first. Pure."""
    invitations = {peer: answer for peer, answer in told.items() if isinstance(answer, Invitation)}
    if len(set(invitations.values())) > 1:
        clusters = ", ".join(f"broker {peer}: {i.cluster_id.hex()}" for peer, i in sorted(invitations.items()))
        return WrongCluster(f"the voters belong to more than one cluster: {clusters}")
    silent = [peer for peer in voters if peer not in told]
    if not silent and invitations:
        return next(iter(invitations.values()))
    reasons = [answer for _, answer in sorted(told.items()) if isinstance(answer, TinymqError)]
    refusals = [error for error in reasons if not isinstance(error, Unavailable)]
    if refusals:
        return refusals[0]
    not_formed = NotReady("no broker that it reaches belongs to a cluster", hint="form one: tinymq cluster init")
    return not_formed if not silent else NotReady(f"asks brokers {silent} for their cluster")


class Joining:
    """The asking side, until the broker is formed. `spawn` runs the joining itself."""

    def __init__(
        self, formation: Formation, voters: Collection[int], spawn: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._formation = formation
        self._voters = sorted(set(voters) - {formation.broker_id})
        self._spawn = spawn
        self._told: dict[int, Told] = {}
        self._reason: TinymqError | None = None
        self._under_way = False

    @property
    def reason(self) -> str:
        """Why this broker belongs to no cluster, for people; "" once it does."""
        if self._formation.first_entry is not None or self._reason is None:
            return ""
        return f"{self._reason.code}: {self._reason.message}"

    def heard(self, peer: int, told: Told) -> None:
        """What a peer said, or why it could not be asked."""
        self._told[peer] = told
        decision = decide(self._voters, self._told)
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
        before, self._reason = self._reason, reason
        if before is not None and before.code == reason.code:
            return  # it is asked for hours: say it once
        log = logger.info if len(self._told) < len(self._voters) else logger.warning  # it has hardly asked
        log("not_joined", code=reason.code, reason=reason.message, hint=reason.hint)


class Life(Protocol):
    """What inviting asks of the Raft host (tinymq.raft.Host)."""

    def alive(self, broker_id: int) -> bool: ...


def invite(
    formation: Formation, life: Life, known: Callable[[int], PeerIdentity | None], stranger: PeerIdentity
) -> bytes:
    """The metadata group's first entry, packed, for a broker that has proven the secret and belongs to no cluster.

    Raises NotReady, and WrongBroker for one that is no member, or whose number another process has that is alive.
    """
    entry = formation.first_entry
    if entry is None:
        raise NotReady(f"broker {formation.broker_id} belongs to no cluster yet")
    broker_id = stranger.broker_id
    if parse_membership(entry.payload).replica(broker_id) is None:
        raise WrongBroker(f"broker {broker_id} is not among the voters of this cluster")
    there = known(broker_id)
    if there is not None and there.incarnation != stranger.incarnation and life.alive(broker_id):
        raise NotReady(f"broker {broker_id} is alive with another data folder")
    return entry.head + entry.payload

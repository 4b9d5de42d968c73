"""Loss-of-quorum recovery by an operator's order: a broker reports its replicas, and leads a group as ordered.

The ordered broker decides again: it asks the live brokers of the members itself, and refuses unless it comes to exactly
the ordered decision. The sender proves an order with a challenge of this broker, which counts once, so that a recorded
order cannot be replayed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog
from google.protobuf.message import DecodeError

from tinymq.base.clock import Clock
from tinymq.base.errors import InvalidRequest, NotReady, TinymqError, UnknownPartition, WrongSecret
from tinymq.base.types import GroupId
from tinymq.broker.replicas.survey_wire import group_from_wire, report_from_wire, report_to_wire
from tinymq.proto import tinymq_pb2 as pb
from tinymq.raft import Group
from tinymq.raft.rules.quorum_loss import QuorumLost, RecoveryOrder, ReplicaReport, Unrecoverable, judge

CHALLENGE_BYTES = 32
CHALLENGE_S = 60.0
CHALLENGES_MAX = 64
METHOD = "survey"  # asked of other brokers: report your replica of this group
ASK_S = 2.0

logger = structlog.get_logger("tinymq.broker")


class RecoveryHost(Protocol):
    """The part of the Raft host that recovery uses (tinymq.raft.Host)."""

    @property
    def groups(self) -> Mapping[GroupId, Group]: ...
    def alive(self, broker_id: int) -> bool: ...
    async def request(self, broker_id: int, method: str, body: bytes, timeout_s: float) -> bytes: ...
    def serve(self, method: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None: ...


class Recovery:
    """The recovery of one broker. `random_bytes` must be unpredictable outside tests."""

    def __init__(self, host: RecoveryHost, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._host = host
        self._clock = clock
        self._random_bytes = random_bytes
        host.serve(METHOD, self._answer)
        self._challenges: OrderedDict[bytes, float] = OrderedDict()  # with their ends (monotonic), oldest first

    def challenge(self) -> bytes:
        """A new challenge, with which the next order is proven."""
        challenge = self._random_bytes(CHALLENGE_BYTES)
        self._challenges[challenge] = self._clock.monotonic() + CHALLENGE_S
        if len(self._challenges) > CHALLENGES_MAX:
            self._challenges.popitem(last=False)
        return challenge

    def spend(self, challenge: bytes) -> None:
        """Use up a challenge. Raises WrongSecret for one that this broker did not issue, or that is used or too old."""
        if self._clock.monotonic() >= self._challenges.pop(challenge, 0.0):
            raise WrongSecret("the challenge is not one of this broker's, was used, or is too old")

    def reports(self) -> list[ReplicaReport]:
        """The reports of all open replicas of this broker."""
        return [group.report() for group in self._host.groups.values()]

    def alive(self) -> list[int]:
        """The live brokers, this one included, that share a group with this broker."""
        members = {r.broker_id for group in self._host.groups.values() for r in group.membership.replicas}
        return sorted(broker_id for broker_id in members if self._host.alive(broker_id))

    async def lead_as_ordered(self, order: RecoveryOrder) -> None:
        """Lead as ordered. Raises NotReady if this broker, having asked the other members, would decide otherwise."""
        group = self._host.groups.get(order.group)
        if group is None:
            raise UnknownPartition(f"{order.group} is not open here")
        members = [replica.broker_id for replica in order.replicas]
        me = group.report().broker_id
        if me not in members:
            raise InvalidRequest(f"broker {me} is ordered to lead {order.group}, and is not among its replicas")
        live = [b for b in members if b != me and self._host.alive(b)]
        others = await asyncio.gather(*(ask_report(self._host, b, order.group) for b in live))
        if self._host.groups.get(order.group) is not group:
            raise NotReady(f"{order.group} was opened again meanwhile")
        mine = group.report()  # after the last await, so it stays true until this broker leads
        verdict = judge([mine, *(report for report in others if report is not None)], members)
        if not isinstance(verdict, QuorumLost):
            why = verdict.why if isinstance(verdict, Unrecoverable) else "it has a leader, or can elect one"
            raise NotReady(f"{order.group}: {why}")
        if verdict.survivor is not mine or mine.position != order.position or verdict.replicas != order.replicas:
            raise NotReady(f"{order.group} has changed since it was examined")
        # Terms are divided among the members, so that two orders at once cannot give two brokers the same term.
        if order.term < verdict.term or (order.term - verdict.term) % len(members):
            raise NotReady(f"{order.group}: term {order.term} is over, or another broker's")
        replicas = ", ".join(f"{r.broker_id}: {r.incarnation.hex()}/{r.count}" for r in order.replicas)
        logger.warning("quorum_recovery_ordered", group=str(order.group), term=order.term, replicas=replicas)
        group.force_leadership(order.term, order.replicas)

    async def _answer(self, question: bytes) -> bytes:
        try:
            request = pb.SurveyedReplica.FromString(question)
        except DecodeError:
            raise InvalidRequest("not a question for a replica") from None
        group = self._host.groups.get(group_from_wire(request.topic_id, request.partition))
        return b"" if group is None else report_to_wire(group.report()).SerializeToString()


async def ask_report(host: RecoveryHost, broker_id: int, group: GroupId) -> ReplicaReport | None:
    """A broker's report on its replica; None: it has no open replica. Raises NotReady if it does not answer."""
    question = pb.SurveyedReplica(topic_id=group.topic_id, partition=group.partition).SerializeToString()
    try:
        answer = await host.request(broker_id, METHOD, question, ASK_S)
        return report_from_wire(pb.SurveyedReplica.FromString(answer)) if answer else None
    except (TinymqError, DecodeError) as error:
        raise NotReady(f"broker {broker_id} is alive and does not report its replica of {group}: {error}") from None

"""A broker's part in going on without a quorum: what its replicas hold, and standing when an operator orders it.

Who is ordered decides: it asks the members' brokers that it hears itself, and refuses unless it comes to the very
same as the order. An order is proven with a challenge of this broker's own, good once, so that a recorded one is none.
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
METHOD = "survey"  # asked of other brokers: what is your replica of this group?
ASK_S = 2.0

logger = structlog.get_logger("tinymq.broker")


class RecoveryHost(Protocol):
    """What recovering asks of the Raft host (tinymq.raft.Host)."""

    @property
    def groups(self) -> Mapping[GroupId, Group]: ...
    def alive(self, broker_id: int) -> bool: ...
    async def request(self, broker_id: int, method: str, body: bytes, timeout_s: float) -> bytes: ...
    def serve(self, method: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None: ...


class Recovery:
    """One broker's. `random_bytes` must be unpredictable outside tests."""

    def __init__(self, host: RecoveryHost, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._host = host
        self._clock = clock
        self._random_bytes = random_bytes
        host.serve(METHOD, self._answer)
        self._challenges: OrderedDict[bytes, float] = OrderedDict()  # each with the time of its end; oldest first

    def challenge(self) -> bytes:
        """A new one, to be proven with the next orders."""
        challenge = self._random_bytes(CHALLENGE_BYTES)
        self._challenges[challenge] = self._clock.monotonic() + CHALLENGE_S
        if len(self._challenges) > CHALLENGES_MAX:
            self._challenges.popitem(last=False)
        return challenge

    def spend(self, challenge: bytes) -> None:
        """Raises WrongSecret for one that was not given, is spent, or too old."""
        if self._clock.monotonic() >= self._challenges.pop(challenge, 0.0):
            raise WrongSecret("the challenge is not one of this broker's, was used, or is too old")

    def reports(self) -> list[ReplicaReport]:
        """Every replica that is open here."""
        return [group.report() for group in self._host.groups.values()]

    def alive(self) -> list[int]:
        """This broker, and those that it hears, as far as they have a part in what it holds."""
        members = {r.broker_id for group in self._host.groups.values() for r in group.membership.replicas}
        return sorted(broker_id for broker_id in members if self._host.alive(broker_id))

    async def take_over(self, order: RecoveryOrder) -> None:
        """Lead as ordered. Raises NotReady when this broker, having asked its peers, would not order the same."""
        group = self._host.groups.get(order.group)
        if group is None:
            raise UnknownPartition(f"{order.group} is not open here")
        members = [replica.broker_id for replica in order.replicas]
        me = group.report().broker_id
        if me not in members:
            raise InvalidRequest(f"broker {me} is ordered to lead {order.group}, and is not among its replicas")
        asked = [b for b in members if b != me and self._host.alive(b)]
        others = await asyncio.gather(*(ask_report(self._host, b, order.group) for b in asked))
        if self._host.groups.get(order.group) is not group:
            raise NotReady(f"{order.group} was opened anew")
        mine = group.report()  # after the last await: what it says holds until it leads
        verdict = judge([mine, *(report for report in others if report is not None)], members)
        if not isinstance(verdict, QuorumLost):
            why = verdict.why if isinstance(verdict, Unrecoverable) else "it has a leader, or can elect one"
            raise NotReady(f"{order.group}: {why}")
        if verdict.survivor is not mine or mine.position != order.position or verdict.replicas != order.replicas:
            raise NotReady(f"{order.group} is not as it was looked at")
        if order.term < verdict.term or (order.term - verdict.term) % len(members):
            raise NotReady(f"{order.group}: term {order.term} is over, or another broker's")
        replicas = ", ".join(f"{r.broker_id}: {r.incarnation.hex()}/{r.count}" for r in order.replicas)
        logger.warning("taking_over", group=str(order.group), term=order.term, replicas=replicas)
        group.force_leadership(order.term, order.replicas)

    async def _answer(self, question: bytes) -> bytes:
        try:
            asked = pb.SurveyedReplica.FromString(question)
        except DecodeError:
            raise InvalidRequest("not a question for a replica") from None
        group = self._host.groups.get(group_from_wire(asked.topic_id, asked.partition))
        return b"" if group is None else report_to_wire(group.report()).SerializeToString()


async def ask_report(host: RecoveryHost, broker_id: int, group: GroupId) -> ReplicaReport | None:
    """What a broker's replica is; None when it has none open. Raises NotReady when it gives no answer."""
    question = pb.SurveyedReplica(topic_id=group.topic_id, partition=group.partition).SerializeToString()
    try:
        answer = await host.request(broker_id, METHOD, question, ASK_S)
        return report_from_wire(pb.SurveyedReplica.FromString(answer)) if answer else None
    except (TinymqError, DecodeError) as error:
        raise NotReady(f"broker {broker_id} lives, and does not say what it holds of {group}: {error}") from None

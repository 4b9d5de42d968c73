"""Loss-of-quorum recovery, the operator's side: ask every broker, judge each group, order a leadership, ask again. The
metadata group comes first, because brokers that lost their disks learn their partitions from it. Every step may be
interrupted and repeated: a group that has a leader again is left alone.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from tinymq.base.errors import BrokerUnreachable, InvalidRequest, OutcomeUnknown, TinymqError, WrongCluster
from tinymq.base.types import METADATA_GROUP, GroupId
from tinymq.broker.replicas.survey_wire import group_from_wire, order_to_wire, report_from_wire
from tinymq.net.client_tls import ClientTls
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.proto.errors import from_wire
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.quorum_loss import (
    Healthy,
    QuorumLost,
    RecoveryOrder,
    RecoveryVerdict,
    ReplicaReport,
    Unrecoverable,
    judge,
)
from tinymq.rpc.common.proof import NONCE_BYTES, survey_proof, take_over_proof
from tinymq.rpc.operator_calls.operator_channel import operator_channel

LOOK_S = 0.3  # between two surveys
ORDER_S = 2.0  # until an order without effect is repeated
CALL_TIMEOUT_S = 10.0
ORDERS_MAX = 200  # to one broker at once
_ANY_SIZE = (("grpc.max_receive_message_length", -1),)

AdminCall = Callable[[str, pb.SurveyRequest | pb.TakeOverRequest, float], Awaitable[Any]]
"""Asks the broker at an address, within so many seconds, and returns its reply. Raises TinymqError."""


def calls_over_grpc(tls: ClientTls | None) -> AdminCall:
    """Return a call over gRPC, which has a connection of its own each time. It raises OutcomeUnknown."""

    async def call(address: str, request: pb.SurveyRequest | pb.TakeOverRequest, timeout_s: float) -> Any:
        async with operator_channel(address, tls, _ANY_SIZE) as channel:
            admin = pb_grpc.AdminStub(channel)
            try:
                if isinstance(request, pb.SurveyRequest):
                    return await admin.Survey(request, timeout=timeout_s)
                return await admin.TakeOver(request, timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                raise OutcomeUnknown(error.details() or error.code().name) from None

    return call


PLAIN = calls_over_grpc(None)


@dataclass(frozen=True, slots=True)
class SurveyedGroup:
    """One group: its brokers (the preferred leader first), their replicas of it, and how it can continue."""

    group: GroupId
    topic: str  # "" for the metadata group
    members: tuple[int, ...]
    reports: tuple[ReplicaReport, ...]
    verdict: RecoveryVerdict

    @property
    def settled(self) -> bool:
        """The group has a leader, and every running replica knows that it is listed."""
        led = isinstance(self.verdict, Healthy) and self.verdict.leader is not None
        return led and all(r.applied.has(r.replica) for r in self.reports if r.healthy)


@dataclass(frozen=True, slots=True)
class Survey:
    """A cluster at one moment, from every broker that answered."""

    cluster_id: bytes
    brokers: Mapping[int, pb.SurveyReply]
    addresses: Mapping[int, str]  # of those that answered
    unreachable: Mapping[str, str]  # address (and number, where known): why
    groups: tuple[SurveyedGroup, ...]  # the metadata group first

    @property
    def lost(self) -> list[SurveyedGroup]:
        """Groups that can continue if the operator accepts loss."""
        return [surveyed for surveyed in self.groups if isinstance(surveyed.verdict, QuorumLost)]

    @property
    def stuck(self) -> list[SurveyedGroup]:
        """Groups that cannot continue yet."""
        return [surveyed for surveyed in self.groups if isinstance(surveyed.verdict, Unrecoverable)]


async def take_survey(addresses: Sequence[str], secret: bytes, timeout_s: float, call: AdminCall = PLAIN) -> Survey:
    """Ask the brokers at `addresses`, and those that they know.

    Raises WrongSecret, WrongCluster (they belong to more than one), BrokerUnreachable (none answers), InvalidRequest
    (none belongs to a cluster).
    """
    asked: dict[str, pb.SurveyReply | str] = {}
    groups = dict.fromkeys(addresses)
    while new := [address for address in groups if address not in asked]:
        asked.update(zip(new, await asyncio.gather(*(_ask(a, secret, timeout_s, call) for a in new)), strict=True))
        groups |= dict.fromkeys(b.address for _, reply in _answers(asked) for b in reply.brokers)
    if not any(_answers(asked)):
        why = "; ".join(f"{address}: {reason}" for address, reason in asked.items())
        raise BrokerUnreachable(why, hint="check the addresses, and that the brokers run")
    return _assemble(asked)


async def order(
    survey: Survey, groups: Iterable[SurveyedGroup], secret: bytes, call: AdminCall = PLAIN
) -> list[tuple[SurveyedGroup, str]]:
    """Order the survivor of each of the `wanted` groups, all of which lost their quorum, to lead. Returns those that
    refused, with the reasons.
    """
    by_broker: dict[int, list[SurveyedGroup]] = {}
    for surveyed in groups:
        assert isinstance(surveyed.verdict, QuorumLost)
        by_broker.setdefault(surveyed.verdict.survivor.broker_id, []).append(surveyed)
    refused = await asyncio.gather(*(_order(survey, b, some, secret, call) for b, some in by_broker.items()))
    return [each for some in refused for each in some]


@dataclass(slots=True)
class Recovering:
    """One run that accepts loss, until no group is lost, or nothing changes for `patience_s`.

    It accepts the loss that its surveys have shown, and no more: if the best log of a group disappears meanwhile,
    because its broker ends, the group waits for it, or for another run.
    """

    secret: bytes
    patience_s: float
    now: Callable[[], float]  # monotonic seconds
    say: Callable[[str], None]  # gets the progress, for people
    call: AdminCall = PLAIN
    _ordered: dict[GroupId, float] = field(default_factory=dict)  # when each was ordered last
    _best: dict[GroupId, tuple[int, int]] = field(default_factory=dict)  # the end of the best log seen while it is lost
    _done: set[GroupId] = field(default_factory=set)
    _refused: dict[GroupId, str] = field(default_factory=dict)  # as said last

    async def run(self, survey: Survey, addresses: Sequence[str]) -> Survey:
        """Return the cluster afterwards: `lost` and `stuck` name the remaining groups."""
        moved_at, seen = self.now(), None
        while not (_at_rest(survey) or self.now() - moved_at > self.patience_s):
            await self._step(survey)
            await asyncio.sleep(LOOK_S)
            survey = await take_survey(addresses, self.secret, self.patience_s, self.call)
            self._tell(survey)
            progress = [(f.group, f.settled, tuple(r.position for r in f.reports)) for f in survey.groups]
            if progress != seen:
                moved_at, seen = self.now(), progress
        return survey

    def keeps_best(self, surveyed: SurveyedGroup) -> bool:
        """Is the best log of a lost group still there? Its end is noted if it is the best so far."""
        assert isinstance(surveyed.verdict, QuorumLost)
        end = surveyed.verdict.survivor.before_forced
        best = self._best[surveyed.group] = max(end, self._best.get(surveyed.group, end))
        if end < best:
            self._refuse(surveyed, f"a broker with a better log, up to entry {best[1]}, does not answer any more")
        return end == best

    def _refuse(self, surveyed: SurveyedGroup, why: str) -> None:
        if self._refused.get(surveyed.group) != why:
            self._refused[surveyed.group] = why
            self.say(f"{name(surveyed)}: {why}")

    async def _step(self, survey: Survey) -> None:
        kept = {surveyed.group for surveyed in survey.lost if self.keeps_best(surveyed)}
        lost = [surveyed for surveyed in _first(survey.lost) if surveyed.group in kept]
        waiting = [f for f in lost if self.now() - self._ordered.get(f.group, -math.inf) >= ORDER_S]
        due = waiting[:ORDERS_MAX]
        for surveyed in due:
            self._ordered[surveyed.group] = self.now()
        for surveyed, why in await order(survey, due, self.secret, self.call):
            self._refuse(surveyed, why)

    def _tell(self, survey: Survey) -> None:
        for surveyed in survey.groups:
            if surveyed.settled:
                self._best.pop(surveyed.group, None)
            if surveyed.group in self._ordered and surveyed.group not in self._done and surveyed.settled:
                self._done.add(surveyed.group)
                assert isinstance(surveyed.verdict, Healthy)
                self.say(f"{name(surveyed)}: broker {surveyed.verdict.leader} leads")


def name(surveyed: SurveyedGroup) -> str:
    """The name of a group, for people."""
    return f"{surveyed.topic}/{surveyed.group.partition}" if surveyed.topic else "the metadata"


def _first(lost: list[SurveyedGroup]) -> list[SurveyedGroup]:
    """Only the metadata group, while it is among them."""
    return [surveyed for surveyed in lost if surveyed.group == METADATA_GROUP] or lost


def _at_rest(survey: Survey) -> bool:
    """No order is left to give, and none is under way."""
    if survey.lost:
        return False
    opening = any(_opening(surveyed, survey.brokers) for surveyed in survey.groups)
    return not opening and all(
        surveyed.settled or isinstance(surveyed.verdict, Unrecoverable) for surveyed in survey.groups
    )


def _opening(surveyed: SurveyedGroup, brokers: Mapping[int, pb.SurveyReply]) -> bool:
    """A running broker has not opened its replica yet."""
    there = {report.broker_id for report in surveyed.reports}
    return any(b in brokers and brokers[b].state in ("starting", "running") for b in surveyed.members if b not in there)


# ---- asking -----------------------------------------------------------------------------------------------------


async def _ask(address: str, secret: bytes, timeout_s: float, call: AdminCall) -> pb.SurveyReply | str:
    nonce = secrets.token_bytes(NONCE_BYTES)
    try:
        reply: pb.SurveyReply = await call(
            address, pb.SurveyRequest(nonce=nonce, proof=survey_proof(secret, nonce)), timeout_s
        )
    except TinymqError as error:
        return error.message
    if reply.HasField("error"):
        raise from_wire(reply.error)
    return reply


async def _order(
    survey: Survey, broker_id: int, some: Sequence[SurveyedGroup], secret: bytes, call: AdminCall
) -> list[tuple[SurveyedGroup, str]]:
    orders = pb.TakeOverOrders(orders=[order_to_wire(_order_of(surveyed)) for surveyed in some]).SerializeToString()
    challenge = survey.brokers[broker_id].challenge
    request = pb.TakeOverRequest(
        challenge=challenge, orders=orders, proof=take_over_proof(secret, challenge, orders)
    )  # fmt: skip
    try:
        reply: pb.TakeOverReply = await call(survey.addresses[broker_id], request, CALL_TIMEOUT_S)
    except TinymqError as error:
        return [(surveyed, error.message) for surveyed in some]
    if reply.HasField("error"):
        raise from_wire(reply.error)
    return [
        (surveyed, f"broker {broker_id} refuses: {result.error.message}")
        for surveyed, result in zip(some, reply.results, strict=True)
        if result.HasField("error")
    ]


def _order_of(surveyed: SurveyedGroup) -> RecoveryOrder:
    verdict = surveyed.verdict
    assert isinstance(verdict, QuorumLost)
    return RecoveryOrder(surveyed.group, verdict.term, verdict.survivor.position, verdict.replicas)


# ---- combining reports -------------------------------------------------------------------------------------------


def _answers(asked: Mapping[str, pb.SurveyReply | str]) -> list[tuple[str, pb.SurveyReply]]:
    return [(address, reply) for address, reply in asked.items() if isinstance(reply, pb.SurveyReply)]


def _assemble(asked: Mapping[str, pb.SurveyReply | str]) -> Survey:
    """Raises WrongCluster, InvalidRequest."""
    answers = _answers(asked)
    clusters = {reply.cluster_id for _, reply in answers if reply.cluster_id}
    if len(clusters) > 1:
        raise WrongCluster(f"these brokers belong to more than one cluster: {', '.join(c.hex() for c in clusters)}")
    if not clusters:
        raise InvalidRequest("none of these brokers belongs to a cluster", hint="form one: tinymq cluster init")
    numbers = {b.address: b.id for _, reply in answers for b in reply.brokers}
    brokers = {reply.broker_id: reply for _, reply in answers}
    unasked = {b for _, reply in answers for b in reply.alive} - set(brokers)
    return Survey(
        clusters.pop(),
        brokers,
        {reply.broker_id: address for address, reply in answers},
        {
            f"broker {numbers[address]} at {address}" if address in numbers else address: reason
            for address, reason in asked.items()
            if isinstance(reason, str)
        },
        tuple(_judge_all(brokers, unasked)),
    )


def _judge_all(brokers: Mapping[int, pb.SurveyReply], unasked: Collection[int]) -> list[SurveyedGroup]:
    reports: dict[GroupId, list[ReplicaReport]] = {METADATA_GROUP: []}
    for reply in brokers.values():
        for replica in reply.replicas:
            reports.setdefault(group_from_wire(replica.topic_id, replica.partition), []).append(
                report_from_wire(replica)
            )
    theirs = reports[METADATA_GROUP]
    metadata = _judge(METADATA_GROUP, "", _members(theirs), theirs, unasked)
    surveyed = [metadata]
    # the broker whose registry has the newest list of partitions
    best = max(theirs, key=lambda r: (r.leads, r.position), default=None)
    placed = brokers[best.broker_id].placed if best is not None else ()
    for queue in sorted(placed, key=lambda p: (p.topic, p.partition)):
        group = group_from_wire(queue.topic_id, queue.partition)
        some = reports.get(group, [])
        members = tuple(queue.replicas)
        if not isinstance(metadata.verdict, Healthy):
            some = [*some, *_to_open(group, members, some, brokers)]
        surveyed.append(_judge(group, queue.topic, members, some, unasked))
    return surveyed


def _judge(
    group: GroupId, topic: str, members: tuple[int, ...], reports: Sequence[ReplicaReport], unasked: Collection[int]
) -> SurveyedGroup:
    theirs = tuple(sorted((r for r in reports if r.broker_id in members), key=lambda r: members.index(r.broker_id)))
    return SurveyedGroup(group, topic, members, theirs, judge(theirs, members, unasked))


def _members(reports: Sequence[ReplicaReport]) -> tuple[int, ...]:
    """The brokers of a group, which are the same in every CONFIG of it."""
    return tuple(r.broker_id for r in reports[0].newest.replicas) if reports else ()


def _to_open(
    group: GroupId, members: Sequence[int], reports: Sequence[ReplicaReport], brokers: Mapping[int, pb.SurveyReply]
) -> list[ReplicaReport]:
    """The replicas that brokers will open empty once the metadata group has a leader: for a forecast, never for an
    order.
    """
    there = {report.broker_id for report in reports}
    some = [b for b in members if b in brokers and b not in there]
    nothing, unknown = Membership(group, 0, ()), b"?" * 16
    why = "opens once the metadata group has a leader"
    return [
        ReplicaReport(
            replica=Replica(b, unknown), healthy=True, leads=False, term=0, last_term=0, last_index=1,
            high_watermark=0, applied=nothing, newest=nothing, before_forced=(0, 1), reason=why,
        )
        for b in some
    ]  # fmt: skip

"""A broker that is told to force a leadership checks the order: it asks the other brokers, and refuses unless it gets
the same result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.manual_clock import ManualClock
from tinymq.base.errors import InvalidRequest, NotReady, OutcomeUnknown, UnknownPartition, WrongSecret
from tinymq.base.types import METADATA_GROUP
from tinymq.broker.replicas.recovery import CHALLENGE_S, CHALLENGES_MAX, Recovery
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.quorum_loss import NOBODY, UNSEEN_TERMS_MAX, RecoveryOrder, ReplicaReport

OLD = {n: Replica(n, bytes([n]) * 16) for n in (1, 2, 3)}
NEW = {n: Replica(n, bytes([n + 100]) * 16) for n in (1, 2, 3)}
CONFIG = Membership(METADATA_GROUP, 1, tuple(OLD.values()))
SURVIVOR = ReplicaReport(
    replica=OLD[1],
    healthy=True,
    leads=False,
    term=4,
    last_term=4,
    last_index=900,
    high_watermark=7,
    applied=CONFIG,
    newest=CONFIG,
    before_forced=(4, 900),
)
EMPTY = {
    n: ReplicaReport(
        replica=NEW[n],
        healthy=True,
        leads=False,
        term=0,
        last_term=0,
        last_index=1,
        high_watermark=0,
        applied=CONFIG,
        newest=CONFIG,
        before_forced=(0, 1),
    )
    for n in (1, 2, 3)
}
ORDER = RecoveryOrder(METADATA_GROUP, UNSEEN_TERMS_MAX + 6, (4, 900), (OLD[1], NEW[2], NEW[3]))


class OneGroup:
    def __init__(self, report: ReplicaReport) -> None:
        self.said = report
        self.membership = report.applied
        self.took_over: list[tuple[int, tuple[Replica, ...]]] = []

    def report(self) -> ReplicaReport:
        return self.said

    def force_leadership(self, term: int, replicas: tuple[Replica, ...]) -> None:
        self.took_over.append((term, replicas))


class Brokers:
    """One broker's view: its own group, and the other brokers, each alive, not answering (None) or dead."""

    def __init__(self, mine: ReplicaReport, others: dict[int, ReplicaReport | None]) -> None:
        self.group = OneGroup(mine)
        self.groups: Any = {METADATA_GROUP: self.group}
        self.served: Callable[[bytes], Awaitable[bytes]] | None = None
        self._others = {n: r and Recovery(Brokers(r, {}), ManualClock(), bytes) for n, r in others.items()}

    def alive(self, broker_id: int) -> bool:
        return broker_id == self.group.said.broker_id or broker_id in self._others

    def serve(self, method: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        assert method == "survey"
        self.served = answer

    async def request(self, broker_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        other = self._others[broker_id]
        if other is None:
            raise OutcomeUnknown("no answer")
        return await other._answer(body)


def take_over(mine: ReplicaReport, others: dict[int, ReplicaReport | None], order: RecoveryOrder = ORDER) -> list[Any]:
    brokers = Brokers(mine, others)
    asyncio.run(Recovery(brokers, ManualClock(), bytes).lead_as_ordered(order))
    return brokers.group.took_over


def test_an_order_that_matches_its_own_plan_is_accepted() -> None:
    assert take_over(SURVIVOR, {2: EMPTY[2], 3: EMPTY[3]}) == [(ORDER.term, ORDER.replicas)]
    gone = replace(ORDER, replicas=(OLD[1], NEW[2], Replica(3, NOBODY)))
    assert take_over(SURVIVOR, {2: EMPTY[2]}, gone) == [(ORDER.term, gone.replicas)]


LEADER = replace(EMPTY[2], leads=True)
LISTED = replace(EMPTY[2], replica=OLD[2])
BETTER = replace(EMPTY[2], last_term=4, last_index=901)


@pytest.mark.parametrize(
    ("mine", "others", "why"),
    [
        (SURVIVOR, {2: LEADER, 3: EMPTY[3]}, "it has a leader"),
        (SURVIVOR, {2: LISTED, 3: EMPTY[3]}, "can elect one"),
        (SURVIVOR, {2: BETTER, 3: EMPTY[3]}, "has changed since it was examined"),
        (SURVIVOR, {2: EMPTY[2]}, "has changed since it was examined"),  # broker 3 was up
        (SURVIVOR, {2: EMPTY[2], 3: None}, "broker 3 is alive and does not report"),
        (replace(SURVIVOR, last_index=901), {2: EMPTY[2], 3: EMPTY[3]}, "has changed since it was examined"),
        (replace(SURVIVOR, healthy=False), {2: EMPTY[2], 3: EMPTY[3]}, "has changed since it was examined"),
        (SURVIVOR, {}, "2 of 3 replicas must be there"),
    ],
)
def test_any_other_order_is_refused(mine: ReplicaReport, others: dict[int, ReplicaReport | None], why: str) -> None:
    with pytest.raises(NotReady, match=why):
        take_over(mine, others)


def test_an_order_for_an_old_or_foreign_term_is_refused() -> None:
    for term in (4, 7, 8):
        with pytest.raises(NotReady, match="term"):
            take_over(SURVIVOR, {2: EMPTY[2], 3: EMPTY[3]}, replace(ORDER, term=UNSEEN_TERMS_MAX + term))
    assert take_over(SURVIVOR, {2: EMPTY[2], 3: EMPTY[3]}, replace(ORDER, term=UNSEEN_TERMS_MAX + 9))


def test_an_order_to_lead_a_group_without_itself_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not among its replicas"):
        take_over(SURVIVOR, {2: EMPTY[2], 3: EMPTY[3]}, replace(ORDER, replicas=ORDER.replicas[1:]))


def test_an_order_for_a_group_that_is_not_open_is_refused() -> None:
    brokers = Brokers(SURVIVOR, {})
    brokers.groups = {}
    recovery = Recovery(brokers, ManualClock(), bytes)
    with pytest.raises(UnknownPartition):
        asyncio.run(recovery.lead_as_ordered(ORDER))
    with pytest.raises(InvalidRequest):
        asyncio.run(recovery._answer(b"\xff"))


def test_a_challenge_is_valid_once_and_for_a_while() -> None:
    clock = ManualClock()
    numbers = iter(range(1000))
    recovery = Recovery(Brokers(SURVIVOR, {}), clock, lambda size: next(numbers).to_bytes(size, "little"))
    challenge = recovery.challenge()
    recovery.spend(challenge)
    for bad in (challenge, b"", bytes(32)):
        with pytest.raises(WrongSecret):
            recovery.spend(bad)
    old = recovery.challenge()
    clock.advance(CHALLENGE_S)
    with pytest.raises(WrongSecret):
        recovery.spend(old)
    first = recovery.challenge()
    for _ in range(CHALLENGES_MAX):
        last = recovery.challenge()
    recovery.spend(last)
    with pytest.raises(WrongSecret):
        recovery.spend(first)

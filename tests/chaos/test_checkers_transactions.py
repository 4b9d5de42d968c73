"""Transactions: every violation is found, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.story import LOG, Story, T, good
from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.history import Call, FinalReplica

Spoil = Callable[[Story], None]

OTHER = (T, 1)


def transact(s: Story, *parts: tuple[int, str], by: str = "a/1") -> Call:
    """Begin a transaction of the id `a`. Each part is a partition and its records, with spaces between them."""
    named = [[partition, records.split()] for partition, records in parts]
    records = [record for _, names in named for record in names]
    return s.begin(by, "transact", topic=T, transactional_id="a", parts=named, records=records, idempotent=True)


def begins(s: Story, by: str = "a/1") -> Call:
    return s.begin(by, "begin_transaction", transactional_id="a")


def commit(s: Story, record: str, by: str = "a/1", attempt: int = 0) -> Call:
    return s.begin(
        by, "commit_transaction", transactional_id="a", records=[record], wait="visible", attempt=attempt
    )  # fmt: skip


def ended(s: Story, *other: str) -> None:
    """End the story: partition 0 has what is stored, partition 1 has the records of `other`."""
    elsewhere = Story()
    elsewhere.stored()
    for record in other:
        elsewhere.stored(record)
    replicas: list[FinalReplica] = []
    for broker, role in ((1, "leader"), (2, "follower"), (3, "follower")):
        replicas += [s.replica(broker, role=role), elsewhere.replica(broker, role=role, log=OTHER)]
    s.end(*replicas)


# ---- in part -------------------------------------------------------------------------------------------------


def in_one_partition_of_two(s: Story) -> None:
    transact(s, (0, "x"), (1, "y")).ok(True)
    s.stored("x")
    ended(s)


def in_one_partition_of_two_and_unknown(s: Story) -> None:
    transact(s, (0, "x"), (1, "y")).unknown("OutcomeUnknown")
    ended(s, "y")


def in_part_of_a_partition(s: Story) -> None:
    transact(s, (0, "x y")).ok(True)
    s.stored("x")
    ended(s)


def another_record_between(s: Story) -> None:
    transact(s, (0, "x y")).ok(True)
    s.send("between", at=5)
    for record in ("x", "between", "y"):
        s.stored(record)
    ended(s)


def an_end_inside(s: Story) -> None:
    transact(s, (0, "x y z")).ok(True)
    s.stored("x", "y", "z")
    s.begin("d", "offsets", topic=T).ok([[0, 0, 6]])
    ended(s)


# ---- decisions -----------------------------------------------------------------------------------------------


def rolled_back_and_there(s: Story) -> None:
    transact(s, (0, "x"), (1, "y")).failed("rolled back")
    s.stored("x")
    ended(s, "y")


def committed_and_not_there(s: Story) -> None:
    transact(s, (0, "x"), (1, "y")).ok(False)
    ended(s)


def said_to_be_visible_too_early(s: Story) -> None:
    s.history.commits = {LOG: [(0.0, 4)], OTHER: [(0.0, 0)]}
    transact(s, (0, "x"), (1, "y")).ok(True)
    s.stored("x")
    s.now_s += 1
    s.history.committed(LOG, 5)
    s.history.committed(OTHER, 1)
    ended(s, "y")


def committed_and_then_rolled_back(s: Story) -> None:
    call = transact(s, (0, "x"))
    commit(s, "x").ok(False)
    commit(s, "x", attempt=1).failed("TransactionAborted")
    call.ok(False)
    s.stored("x")
    ended(s)


def a_later_one_first(s: Story) -> None:
    transact(s, (0, "x")).ok(False)
    transact(s, (0, "y"), by="a/2").ok(True)
    s.stored("y")
    s.stored("x")
    ended(s)


# ---- fenced programs -----------------------------------------------------------------------------------------


def replaced(s: Story) -> None:
    begins(s).ok()
    begins(s, by="a/2").ok()


def fenced_and_begins(s: Story) -> None:
    replaced(s)
    begins(s).ok()
    ended(s)


def fenced_and_commits(s: Story) -> None:
    replaced(s)
    commit(s, "x").ok(True)
    transact(s, (0, "x")).ok(True)
    s.stored("x")
    ended(s)


def fenced_and_visible(s: Story) -> None:
    replaced(s)
    commit(s, "x").unknown("OutcomeUnknown")
    transact(s, (0, "x")).unknown("OutcomeUnknown")
    s.stored("x")
    ended(s)


# ---- in the end ----------------------------------------------------------------------------------------------


def never_over(s: Story) -> None:
    s.begin("u", "unfinished", ids=["a"]).ok([["a", 7, "committed"]])
    ended(s)


def no_transfer_after_the_faults(s: Story) -> None:
    s.begin("a last", "last_transfer", transactional_id="a").failed("DeadlineExceeded")
    ended(s)


BAD: list[tuple[Spoil, AnomalyKind]] = [
    (in_one_partition_of_two, AnomalyKind.TORN),
    (in_one_partition_of_two_and_unknown, AnomalyKind.TORN),
    (in_part_of_a_partition, AnomalyKind.TORN),
    (another_record_between, AnomalyKind.TORN),
    (an_end_inside, AnomalyKind.TORN),
    (rolled_back_and_there, AnomalyKind.ABORTED_READ),
    (committed_and_not_there, AnomalyKind.LOST_WRITE),
    (said_to_be_visible_too_early, AnomalyKind.UNCOMMITTED),
    (committed_and_then_rolled_back, AnomalyKind.TWO_DECISIONS),
    (a_later_one_first, AnomalyKind.REORDERED),
    (fenced_and_begins, AnomalyKind.NOT_FENCED),
    (fenced_and_commits, AnomalyKind.NOT_FENCED),
    (fenced_and_visible, AnomalyKind.NOT_FENCED),
    (never_over, AnomalyKind.STUCK),
    (no_transfer_after_the_faults, AnomalyKind.NO_PROGRESS),
]


# ---- what is no anomaly --------------------------------------------------------------------------------------


def whole(s: Story) -> None:
    transact(s, (0, "x y"), (1, "z")).ok(True)
    s.stored("x", "y")
    s.begin("d", "offsets", topic=T).ok([[0, 0, 4], [1, 0, 0]])  # a partition shows its part when it hears of it
    s.begin("d", "offsets", topic=T).ok([[0, 0, 6], [1, 0, 0]])
    ended(s, "z")


def of_unknown_outcome(s: Story) -> None:
    transact(s, (0, "x"), (1, "y")).unknown("OutcomeUnknown")
    transact(s, (0, "z"), (1, "w"), by="b/1").unknown("OutcomeUnknown")
    s.stored("z")
    ended(s, "w")


def visible_later(s: Story) -> None:
    s.history.commits = {LOG: [(0.0, 4)]}
    transact(s, (0, "x")).ok(False)
    s.stored("x")
    s.now_s += 1
    s.history.committed(LOG, 5)
    ended(s)


def replaced_after_its_commit(s: Story) -> None:
    """The second attempt is told what became of the first one, which came in time."""
    begins(s).ok()
    commit(s, "x").unknown("OutcomeUnknown")
    begins(s, by="a/2").ok()
    commit(s, "x", attempt=1).ok(True)
    transact(s, (0, "x")).ok(True)
    s.stored("x")
    ended(s)


def of_two_programs_at_the_same_time(s: Story) -> None:
    first = transact(s, (0, "x"))
    transact(s, (0, "y"), by="a/2").ok(True)
    first.unknown("OutcomeUnknown")
    s.stored("y")
    s.stored("x")
    ended(s)


@pytest.mark.parametrize(
    "spoil", [whole, of_unknown_outcome, visible_later, replaced_after_its_commit, of_two_programs_at_the_same_time]
)
def test_what_may_happen(spoil: Spoil) -> None:
    story = good()
    spoil(story)
    assert story.kinds() == set()

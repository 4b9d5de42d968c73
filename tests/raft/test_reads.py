"""Tables of read index rounds, which confirm a leadership: reads, rounds and answers."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tinymq.base.errors import NotLeader, TinymqError
from tinymq.raft.rules.read_index import RETRY_S, ReadIndexes


class Bench:
    """Broker 1 leads a group of brokers 1 to `members`. Letters name the reads; `results` has their results."""

    def __init__(self, members: int = 3) -> None:
        self.rounds = ReadIndexes()
        self.members = members
        self.me = (1,)
        self.now = 10.0
        self.results: list[tuple[str, int | TinymqError]] = []

    def ask(self, read: str, index: int = 5) -> None:
        self.rounds.ask(index, lambda result: self.results.append((read, result)))

    def begin(self) -> int | None:
        return self.rounds.begin(self.now)

    def answered(self, broker_id: int, round_: int, applied: int = 5) -> str:
        """Return the reads that this answer completes."""
        self.rounds.answered(broker_id, round_)
        return self.take(applied)

    def take(self, applied: int = 5) -> str:
        for answer in self.rounds.take(self.me, applied, self._is_quorum):
            answer(applied)
        now, self.results = self.results, []
        return "".join(read for read, _ in now)

    def _is_quorum(self, brokers: Collection[int]) -> bool:
        return len(brokers) > self.members // 2


# One line, one run of steps: "a" a read is asked for, "!" a round is begun (or not), "2:1" broker 2 answers round 1,
# "~" time passes. Behind ">": what was told in the end, a space between two steps that told something.
TABLE: list[tuple[str, str]] = [
    ("a !", ""),
    ("a ! 2:1", "a"),
    ("a 2:1", ""),  # an answer to no round
    ("a ! 2:9", ""),  # nor to one that was never begun
    ("a b ! 2:1", "ab"),  # one round for both
    ("a ! b 2:1", "a"),  # b came after it had begun
    ("a ! b ! 2:1", "a"),  # and waits for the next one, which does not begin before the first is done
    ("a ! b 2:1 ! 2:1", "a"),  # a late, second answer to round 1 is none to round 2
    ("a ! b 2:1 ! 3:2", "a b"),
    ("a ! ~ ! 2:2", "a"),  # the first was lost: begun anew
    ("a ! ~ ! 2:1", "a"),  # the first was late, and is good
    ("a ! b ~ ! 2:1", "a"),  # good for those that it was for
    ("a ! b ~ ! 2:1 3:2", "a b"),
    ("a ! b ~ ! 2:2", "ab"),
    ("a ! 2:1 b ! 2:2 c ! 3:3", "a b c"),
]


@pytest.mark.parametrize(("steps", "results"), TABLE, ids=[steps for steps, _ in TABLE])
def test_read_index_rounds(steps: str, results: str) -> None:
    b = Bench()
    lines = []
    for step in steps.split():
        if step.isalpha():
            b.ask(step)
        elif step == "!":
            b.begin()
        elif step == "~":
            b.now += 2 * RETRY_S
        else:
            broker_id, round_ = step.split(":")
            lines.append(b.answered(int(broker_id), int(round_)))
    assert " ".join(line for line in lines if line) == results


def test_read_ids_rise_and_no_round_begins_without_a_read() -> None:
    b = Bench()
    assert b.begin() is None
    b.ask("a")
    assert (b.begin(), b.begin()) == (1, None)
    b.now += 2 * RETRY_S
    assert b.begin() == 2
    b.answered(2, 2)
    assert b.begin() is None
    assert not b.rounds.pending


def test_of_five_two_others_must_answer() -> None:
    b = Bench(members=5)
    b.ask("a")
    b.begin()
    assert b.answered(2, 1) == ""
    assert b.answered(2, 1) == ""
    assert b.answered(3, 1) == "a"


def test_an_unlisted_leader_needs_the_other_brokers_to_confirm() -> None:
    b = Bench()
    b.me = ()
    b.ask("a")
    b.begin()
    assert b.answered(2, 1) == ""
    assert b.answered(3, 1) == "a"


def test_a_group_of_one_needs_a_round_but_no_answers() -> None:
    b = Bench(members=1)
    b.ask("a")
    assert b.take() == ""
    b.begin()
    assert b.take() == "a"


def test_a_confirmed_read_waits_until_its_index_is_applied() -> None:
    b = Bench()
    b.ask("a", index=5)
    b.ask("b", index=7)
    b.begin()
    assert b.answered(2, 1, applied=4) == ""
    assert b.take(applied=6) == "a"
    assert b.rounds.pending
    assert b.take(applied=7) == "b"
    assert not b.rounds.pending


def test_the_end_of_a_leadership_tells_everybody() -> None:
    b = Bench()
    b.ask("a", index=9)
    b.begin()
    b.answered(2, 1)
    b.ask("b")
    b.begin()
    b.ask("c")
    b.rounds.end(NotLeader("over"))
    assert sorted(read for read, result in b.results if isinstance(result, NotLeader)) == ["a", "b", "c"]
    b.results.clear()
    b.rounds.end(NotLeader("over"))
    assert b.answered(2, 2) == ""
    assert not b.rounds.pending

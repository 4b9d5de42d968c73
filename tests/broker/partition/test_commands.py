"""Group commit: which commands share an entry, which need none, and what happens to them when the leader changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.broker.partition.test_partition import Bench
from tests.broker.values import commits, consumes, deletes, holds, moves, opens, seeks
from tests.fakes.raft_group import FakeGroup
from tinymq.base.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotLeader,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
    UnknownChannel,
    UnknownTopic,
)
from tinymq.broker.partition import commands
from tinymq.broker.partition.commands import ENTRY_BYTES_MAX, ENTRY_COMMANDS_MAX
from tinymq.broker.partition.partition import Partition
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.format.entry import Kind, NewEntry
from tinymq.proto import partition_pb2 as pb


class Commander(Bench):
    """A partition with five records, in a loop whose turns the test runs one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.soon: list[Callable[[], None]] = []
        self.partition = Partition("t/0", self.deadlines, self.soon.append, {1: "h:1", 2: "h:2"}.get)
        self.group = FakeGroup(self.partition)
        self.partition.attach(self.group)
        self.outcomes: list[list[CommandOutcome] | TinymqError] = []
        self.send(5)
        self.group.commit()
        self.run(opens())
        self.settle()
        self.outcomes.clear()

    def run(self, *said: pb.Command, timeout_s: float = 1.0) -> None:
        self.partition.command(said, timeout_s, self.outcomes.append)

    def turn(self) -> None:
        soon, self.soon[:] = list(self.soon), []
        for call in soon:
            call()

    def settle(self) -> None:
        """Run turns and commits until nothing is left to do."""
        while self.soon or self.group.applied < len(self.group.log.entries):
            self.turn()
            self.group.commit()

    @property
    def entries(self) -> list[int]:
        """Return the number of commands in each COMMAND entry."""
        found = [e for e in self.group.log.entries if e.header.kind == Kind.COMMAND]
        return [len(pb.Commands.FromString(e.payload).commands) for e in found][1:]

    @property
    def errors(self) -> list[type]:
        return [type(o) for o in self.outcomes]

    @property
    def positions(self) -> list[int]:
        return [o.position for answers in self.outcomes for o in answers]  # type: ignore[union-attr]


@pytest.fixture
def bench() -> Commander:
    return Commander()


def test_commands_of_one_turn_share_an_entry(bench: Commander) -> None:
    for n in range(5):
        bench.run(opens(f"c{n}"), opens(f"d{n}"))
    assert bench.entries == []
    bench.turn()
    assert bench.entries == [10]
    assert bench.outcomes == [], "no answer before the commit"
    bench.group.commit()
    assert [len(answers) for answers in bench.outcomes] == [2] * 5  # type: ignore[arg-type]
    assert len(bench.deadlines) == 0


def test_commands_during_an_uncommitted_entry_form_the_next_entry(bench: Commander) -> None:
    for offset in range(1, 6):
        bench.run(commits(offset))
        bench.turn()
    assert bench.entries == [1]
    bench.settle()
    assert bench.entries == [1, 4]
    assert bench.positions == [1, 2, 3, 4, 5]


def test_an_entry_is_bounded_and_calls_stay_whole_and_in_order(bench: Commander) -> None:
    for n in range(3):
        bench.run(*[opens(f"c{n}")] * 400)
    bench.settle()
    assert bench.entries == [800, 400]
    name = "x" * 200
    for _ in range(4):
        bench.run(*[consumes(7, name)] * 400, moves(0))
    bench.settle()
    assert bench.entries[2:] == [802, 802]
    assert all(c.size <= ENTRY_BYTES_MAX for c in bench.group.log.entries)


@pytest.mark.parametrize(
    "said", [[], [opens()] * (ENTRY_COMMANDS_MAX + 1), [opens("x" * ENTRY_BYTES_MAX)]], ids=["none", "many", "large"]
)
def test_a_call_that_fits_into_no_entry_is_refused(bench: Commander, said: list[pb.Command]) -> None:
    with pytest.raises(InvalidRequest):
        bench.run(*said)
    assert bench.outcomes == []


def test_the_queue_is_bounded(bench: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "QUEUED_COMMANDS_MAX", 3)
    bench.run(opens("a"), opens("b"))
    with pytest.raises(QuotaExceeded):
        bench.run(opens("c"), opens("d"))
    bench.run(opens("e"))
    bench.settle()
    bench.run(opens("a", epoch=1), opens("b", epoch=1), opens("c"))
    monkeypatch.setattr(commands, "QUEUED_BYTES_MAX", 100)
    with pytest.raises(QuotaExceeded):
        bench.run(opens("x" * 100))
    bench.settle()
    assert bench.errors == [list] * 3


def test_commits_without_effect_and_repeated_takes_write_nothing(bench: Commander) -> None:
    bench.run(commits(3), consumes(1))
    bench.settle()
    for _ in range(10):
        bench.run(commits(3), commits(2))
        bench.run(consumes(1))
    assert bench.positions == [3, 4, *[4, 4, 4] * 10]
    assert bench.entries == [2]
    assert bench.soon == []
    assert bench.group.reads == 0


@pytest.mark.parametrize("said", [[consumes(9)], [commits(9)], [deletes("none")], [opens()], [consumes(1, "none")]])
def test_an_elided_command_asks_a_majority_and_writes_nothing(said: list[pb.Command]) -> None:
    async def scenario() -> None:
        bench = Commander()
        bench.run(commits(5))
        bench.settle()
        bench.run(*said)
        assert len(bench.outcomes) == 1
        while len(bench.outcomes) < 2:
            await asyncio.sleep(0)
        assert bench.group.reads == 1
        assert bench.entries == [1]
        bench.group.proves = False
        bench.run(*said)
        while len(bench.outcomes) < 3:
            await asyncio.sleep(0)
        assert bench.errors == [list, list, DeadlineExceeded]

    asyncio.run(scenario())


def test_records_that_arrive_during_a_quorum_check_are_not_missed() -> None:
    """There were no records to take, but there are some when the answer comes."""

    async def scenario() -> None:
        bench = Commander()
        bench.run(commits(5))
        bench.settle()
        bench.run(consumes(1))
        bench.send(1)
        bench.group.commit()
        while not bench.soon:
            await asyncio.sleep(0)
        bench.settle()
        (outcome,) = bench.outcomes[1]  # type: ignore[misc]
        assert (outcome.taken, outcome.offset) == (True, 5)

    asyncio.run(scenario())


def test_a_quorum_check_ends_by_its_deadline(bench: Commander) -> None:
    async def scenario() -> None:
        bench = Commander()
        bench.run(consumes(1, "none"))
        bench.group.lose_leadership()
        while not bench.outcomes:
            await asyncio.sleep(0)
        assert bench.errors == [NotLeader]

    asyncio.run(scenario())


def test_a_command_behind_uncommitted_ones_is_decided_after_them(bench: Commander) -> None:
    """Commands of one client that does not wait for answers keep their order: open, then take."""
    bench.run(opens("new", start=4))
    bench.run(consumes(1, "new"))
    bench.settle()
    (outcome,) = bench.outcomes[1]  # type: ignore[misc]
    assert (outcome.error, outcome.offset) == (None, 4)
    assert bench.entries == [2]


def test_a_lost_leadership(bench: Commander) -> None:
    """Appended commands have an unknown outcome; commands that were not appended were not done."""
    bench.run(commits(1))
    bench.turn()
    bench.run(commits(2))
    bench.group.lose_leadership(keep_tail=True)
    assert bench.errors == [OutcomeUnknown, NotLeader]
    with pytest.raises(NotLeader):
        bench.run(commits(3))
    bench.group.win()
    assert bench.partition.state.cursors["c"].position == 1, "it was committed in the end"
    bench.turn()
    bench.run(commits(3))
    bench.settle()
    assert (bench.errors[2:], bench.entries) == ([list], [1, 1])


def test_another_leaders_entry_at_its_index_is_not_its_answer(bench: Commander) -> None:
    bench.run(commits(1))
    bench.turn()
    out = bench.group.log.entries.pop()
    bench.group.term += 1
    bench.group._append(NewEntry(Kind.COMMAND, out.payload))
    bench.group.commit()
    assert bench.errors == [OutcomeUnknown]


@pytest.mark.parametrize("turns", [0, 1])
def test_the_time_is_up(bench: Commander, turns: int) -> None:
    bench.run(commits(1))
    bench.turn()
    bench.run(commits(2), timeout_s=0.5)
    for _ in range(turns):
        bench.group.commit()
        bench.turn()
    bench.clock.advance(0.55)
    assert bench.errors == ([list, OutcomeUnknown] if turns else [DeadlineExceeded])
    bench.settle()
    assert bench.partition.state.cursors["c"].position == (2 if turns else 1)
    assert len(bench.outcomes) == 2
    assert bench.deadlines.now() > 0


def test_a_closed_partition_tells_everyone(bench: Commander) -> None:
    bench.run(commits(1))
    bench.turn()
    bench.run(commits(2))
    bench.partition.close(UnknownTopic("deleted"))
    assert bench.errors == [OutcomeUnknown, UnknownTopic]
    with pytest.raises(UnknownTopic):
        bench.run(commits(1))


def test_a_failed_append_is_answered(bench: Commander) -> None:
    bench.run(commits(1))
    bench.run(commits(2))
    bench.group._leads = False  # handing over
    bench.turn()
    assert bench.errors == [NotLeader, NotLeader]
    bench.group._leads = True
    bench.run(commits(1))
    bench.settle()
    assert bench.errors[2:] == [list]


def test_a_callback_that_raises_affects_no_other(bench: Commander) -> None:
    def done(answers: object) -> None:
        raise ValueError("a bug in the waiter")

    bench.partition.command([commits(1)], 1.0, done)
    bench.run(commits(2))
    bench.settle()
    assert bench.positions == [2]


def test_errors_are_outcomes_of_their_own(bench: Commander) -> None:
    bench.run(opens("a"), seeks(3, channel="none"), holds(2), moves(4))
    bench.settle()
    (answers,) = bench.outcomes
    assert [type(o.error).__name__ for o in answers] == ["NoneType", UnknownChannel.__name__, "NoneType", "Held"]  # type: ignore[union-attr]

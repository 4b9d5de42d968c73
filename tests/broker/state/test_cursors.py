"""The rules of cursors, one by one: the outcome of each command, and its effect on the state."""

from __future__ import annotations

import pytest

from tests.broker.values import Applied, commits, consumes, deletes, moves, opens, seeks
from tinymq.base.errors import (
    Fenced,
    InvalidName,
    InvalidRequest,
    OffsetOutOfRange,
    QuotaExceeded,
    TinymqError,
    UnknownChannel,
)
from tinymq.broker.state import cursors
from tinymq.broker.state.cursors import CHANNELS_MAX, TAKEN_MAX
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.proto import partition_pb2 as pb


@pytest.fixture
def at() -> Applied:
    """Ten records, of which the first two are trimmed, in two batches."""
    applied = Applied()
    applied.batch(4)
    applied.batch(6)
    assert applied.run(moves(2))[0].log_start == 2
    return applied


def one(at: Applied, command: pb.Command) -> CommandOutcome:
    (outcome,) = at.run(command)
    assert (outcome.log_start, outcome.high_watermark) == (at.state.log_start, at.state.high_watermark)
    return outcome


def error(at: Applied, command: pb.Command) -> type[TinymqError]:
    """It fails, and changes nothing but the applied index."""
    before = at.state.dump()[16:]
    outcome = one(at, command)
    assert outcome.error is not None
    assert at.state.dump()[16:] == before
    return type(outcome.error)


@pytest.mark.parametrize(("start", "position"), [(0, 2), (2, 2), (5, 5), (10, 10), (11, 10), ((1 << 64) - 1, 10)])
def test_a_channel_starts_within_the_log(at: Applied, start: int, position: int) -> None:
    outcome = one(at, opens(start=start, epoch=7))
    assert (outcome.error, outcome.position, outcome.epoch, outcome.generation) == (None, position, 7, 1)
    cursor = at.state.cursors["c"]
    assert (cursor.position, cursor.moved_us) == (position, at.now_us)


def test_opening_again_fences_earlier_consumers_but_not_epoch_0(at: Applied) -> None:
    one(at, opens(epoch=5, start=4))
    assert one(at, opens(epoch=6, start=9)).position == 4, "the channel exists already"
    assert error(at, opens(epoch=5)) is Fenced
    outcome = one(at, opens(epoch=0))
    assert (outcome.error, outcome.epoch) == (None, 6)


def test_a_commit_moves_forward_only(at: Applied) -> None:
    one(at, opens(start=3))
    assert one(at, commits(7)).position == 7
    for offset in (7, 5, 0):
        before = dict(at.state.cursors)
        assert one(at, commits(offset)).position == 7
        assert at.state.cursors == before
    assert one(at, commits(10)).position == 10
    assert error(at, commits(11)) is OffsetOutOfRange


def test_a_commit_is_fenced_by_epoch_and_generation(at: Applied) -> None:
    one(at, opens(epoch=5, start=3))
    assert error(at, commits(7, epoch=4)) is Fenced
    assert error(at, commits(7, epoch=5, generation=2)) is Fenced
    assert one(at, commits(2, epoch=6)).epoch == 6, "adopted, although the cursor does not move"
    assert error(at, commits(7, epoch=5)) is Fenced


def test_a_seek_goes_anywhere_once_and_refuses_commits_from_before_it(at: Applied) -> None:
    one(at, opens(start=8))
    outcome = one(at, seeks(3))
    assert (outcome.position, outcome.generation) == (3, 2)
    assert error(at, commits(9, generation=1)) is Fenced
    assert one(at, commits(6, generation=2)).position == 6
    assert one(at, seeks(3)).position == 6, "the same request again"
    assert one(at, seeks(10, 2)).generation == 3
    for offset in (1, 11):
        assert error(at, seeks(offset, 3)) is OffsetOutOfRange
    one(at, opens(epoch=9))
    assert error(at, seeks(4, 4, epoch=8)) is Fenced
    assert one(at, seeks(4, 4, epoch=10)).epoch == 10


def test_each_consume_takes_the_next_record_and_a_repeat_the_same(at: Applied) -> None:
    one(at, opens(epoch=5, start=8))
    for _ in range(2):
        outcome = one(at, consumes(1))
        assert (outcome.taken, outcome.offset, outcome.position) == (True, 8, 9)
    assert one(at, consumes(2)).offset == 9
    outcome = one(at, consumes(3))
    assert (outcome.taken, outcome.position) == (False, 10)
    at.batch(1)
    assert one(at, consumes(3)).offset == 10, "a take without records is not remembered"
    assert one(at, consumes(1)).offset == 8


def test_a_cursor_below_the_log_start_reads_from_there(at: Applied) -> None:
    one(at, opens(start=3))
    one(at, moves(6))
    assert at.state.cursors["c"].position == 3, "it is not rewritten"
    assert one(at, opens()).position == 6
    assert one(at, commits(5)).position == 6
    assert one(at, consumes()).offset == 6
    assert one(at, opens()).position == 7


def test_takes_of_another_or_a_deleted_channel_do_not_count(at: Applied) -> None:
    one(at, opens("a", start=5))
    one(at, opens("b", start=5))
    assert [one(at, consumes(1, name)).offset for name in "ab"] == [5, 5]
    one(at, deletes("a"))
    assert error(at, deletes("a")) is UnknownChannel
    one(at, opens("a", start=7))
    assert one(at, consumes(1, "a")).offset == 7, "a new channel with the old name"
    assert one(at, consumes(1, "b")).offset == 5


def test_a_commit_from_before_a_channel_was_recreated_is_fenced(at: Applied) -> None:
    generation = one(at, opens(start=3)).generation
    one(at, deletes())
    again = one(at, opens(start=3)).generation
    assert again != generation
    assert error(at, commits(9, epoch=1000, generation=generation)) is Fenced


@pytest.mark.parametrize("command", [commits(3), seeks(3), consumes(), deletes()])
def test_no_other_command_makes_a_channel(at: Applied, command: pb.Command) -> None:
    assert error(at, command) is UnknownChannel


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        (opens(""), InvalidName),
        (opens("x" * 250), InvalidName),
        (opens("a b"), InvalidName),
        (pb.Command(seek=pb.Seek(channel="c", request_id=b"short")), InvalidRequest),
        (pb.Command(consume=pb.Consume(channel="c", request_id=bytes(17))), InvalidRequest),
        (pb.Command(), InvalidRequest),
    ],
)
def test_invalid_commands_are_refused(at: Applied, command: pb.Command, wrong: type[TinymqError]) -> None:
    one(at, opens())
    assert error(at, command) is wrong


def test_the_number_of_channels_is_bounded(at: Applied) -> None:
    outcomes = at.run(*[opens(f"c{n}") for n in range(CHANNELS_MAX)])
    assert not any(outcome.error for outcome in outcomes)
    assert error(at, opens("one-more")) is QuotaExceeded
    assert one(at, opens("c7", epoch=1)).error is None
    one(at, deletes("c8"))
    assert one(at, opens("one-more")).error is None


def test_the_oldest_remembered_takes_are_dropped(at: Applied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "TAKEN_MAX", 3)
    at.run(opens("a", start=2), opens("b", start=2))
    at.run(consumes(1, "a"), consumes(2, "b"), consumes(3, "b"), consumes(4, "b"))
    assert one(at, consumes(2, "b")).offset == 2
    assert one(at, consumes(1, "a")).offset == 3, "forgotten: another record"
    assert TAKEN_MAX == 10_000


def test_generations_wrap_around(at: Applied) -> None:
    state = pb.State(last_number=(1 << 32) - 2)
    at.state._cursors = cursors.Cursors.load(state, 10)
    assert [one(at, opens(name)).generation for name in "abc"] == [(1 << 32) - 1, 0, 1]
    assert one(at, seeks(5, channel="a")).generation == 2


def test_order_within_an_entry_is_the_order_of_the_commands(at: Applied) -> None:
    outcomes = at.run(
        opens(start=3), consumes(1), commits(8), seeks(4), commits(9), consumes(2), deletes(), consumes(3)
    )
    assert [type(outcome.error) for outcome in outcomes] == [type(None)] * 4 + [Fenced] + [type(None)] * 2 + [
        UnknownChannel
    ]
    assert [outcome.offset for outcome in outcomes] == [0, 3, 0, 0, 0, 4, 0, 0]

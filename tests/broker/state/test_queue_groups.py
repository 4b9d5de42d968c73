"""Queue groups in the replicated state: settlements, failed deliveries, sessions, burials, seeks, and their bytes."""

from __future__ import annotations

import random

import pytest

from tests.broker.state.queue_commands import GROUP, ID, A, B, C, Queue
from tests.broker.values import acknowledged, moves
from tinymq.base.errors import CorruptData, Fenced, InvalidRequest, QuotaExceeded, UnknownGroup, WrongKind
from tinymq.broker.state import queue_group, queue_groups
from tinymq.broker.state.queue_group import Failure, Settled
from tinymq.broker.state.queue_groups import QueueGroups
from tinymq.broker.state.state import PartitionState
from tinymq.proto import partition_pb2 as pb


@pytest.fixture
def at() -> Queue:
    return Queue()


# ---- settlements


def test_the_cursor_follows_what_is_settled_without_gaps(at: Queue) -> None:
    at.settle((1, 3), (5, 6))
    assert (at.position, at.settled) == (0, [1, 2, 5])
    at.settle((0, 1))
    assert (at.position, at.settled) == (3, [0, 1, 2, 5])
    outcome = at.settle((3, 5), (9, 10))
    assert (outcome.position, at.position, list(at.group.settled)) == (6, 6, [(9, 10)])


def test_what_is_settled_or_removed_is_settled_again_without_effect(at: Queue) -> None:
    at.settle((0, 4))
    at.run(moves(6))
    assert at.settle((2, 7)).refused == ()
    assert at.position == 7


def test_records_that_are_not_there_are_refused(at: Queue) -> None:
    assert at.settle((8, 1 << 62)).refused == ((10, 1 << 62),)
    assert (at.position, at.settled) == (0, [8, 9])


def test_a_later_record_of_a_key_is_not_settled_before_an_earlier_one(at: Queue) -> None:
    assert at.settle(in_order=[(4, 2)]).refused == ((4, 5),)
    assert at.settled == []
    assert at.settle((2, 3), in_order=[(6, 4), (4, 2)]).refused == ()
    assert at.settled == [2, 4, 6], "they are judged in the order of their offsets"


# ---- deliveries that fail


def test_a_charge_counts_its_delivery_once(at: Queue) -> None:
    at.settle(failed=[(3, 1, 500)])
    first = at.group.failures[3]
    assert first == Failure(1, 0, at.now_us + 500_000)
    at.settle(failed=[(3, 1, 900)])
    assert at.group.failures[3] == first, "sent again, it does not count again, and delays nothing"
    at.settle(failed=[(3, 2, 0)])
    at.settle(failed=[(3, 1, 0)])
    assert at.group.failures[3].deliveries == 2


def test_a_settled_record_is_not_charged(at: Queue) -> None:
    at.settle((0, 2), (4, 5), failed=[(1, 1, 0), (4, 1, 0), (5, 1, 0), (10, 1, 0)])
    assert list(at.group.failures) == [5]
    at.settle((5, 6))
    assert at.group.failures == {}


# ---- sessions


def test_a_session_ends_once_with_what_it_held(at: Queue) -> None:
    at.open_session(A)
    at.open_session(B)
    at.end_session(A, failed=[(1, 1, 0)], returned=[2, 3])
    assert list(at.group.sessions) == [B]
    assert {o: f[:2] for o, f in at.group.failures.items()} == {1: (1, 0), 2: (0, 1), 3: (0, 1)}
    at.end_session(A, failed=[(1, 2, 0)], returned=[2])
    assert at.group.failures[2].returns == at.group.failures[1].deliveries == 1


def test_there_is_a_bound_on_sessions(at: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_groups, "SESSIONS_MAX", 1)
    at.open_session(A)
    assert at.open_session(A).error is None
    assert isinstance(at.open_session(B).error, QuotaExceeded)
    assert isinstance(at.open_session(b"short").error, InvalidRequest)


def test_the_mark_never_falls(at: Queue) -> None:
    at.raise_mark(1000)
    at.raise_mark(500)
    assert at.group.granted_below == 1000


# ---- burials


def test_a_burial_settles_its_record_when_the_copy_is_there(at: Queue) -> None:
    at.settle((0, 2), failed=[(2, 5, 0)])
    at.bury(2)
    assert at.group.failures == {}
    at.settle((3, 4))
    assert (at.position, at.settled) == (2, [0, 1, 3]), "the cursor does not pass it"
    at.end_burial()
    assert (at.position, at.group.burials) == (4, {})
    at.end_burial()
    assert at.position == 4


def test_a_record_that_is_being_buried_is_its_burials_to_settle(at: Queue) -> None:
    at.bury(2)
    assert at.settle((1, 4), failed=[(2, 6, 0)]).refused == ((2, 3),)
    assert (at.settled, at.group.failures) == ([1, 3], {})
    assert at.bury(2, C).refused == ((2, 3),)
    assert at.group.burials[2].message_id == A


def test_a_settled_record_is_not_buried(at: Queue) -> None:
    at.settle((2, 3))
    assert at.bury(2).refused == ((2, 3),)
    assert at.group.burials == {}


def test_the_same_burial_gets_another_destination_and_keeps_its_id_and_headers(at: Queue) -> None:
    at.bury(2, topic_id=B, end=4)
    before = at.group.burials[2]
    at.bury(2, topic_id=C, end=9)
    assert at.group.burials[2] == before._replace(topic_id=C, end=9)


def test_a_burial_outlives_a_seek_and_settles_in_the_new_generation(at: Queue) -> None:
    at.settle((0, 5))
    at.bury(6)
    at.seek(3)
    assert (at.position, list(at.group.burials)) == (3, [6])
    at.bury(6, topic_id=C, ref=at.ref(generation=1))
    assert at.group.burials[6].topic_id == C, "a burial that is under way finds a new destination"
    at.settle((3, 6), (7, 8))
    assert at.position == 6
    at.end_burial()
    assert at.position == 8


def test_a_burial_keeps_its_record_for_retention(at: Queue) -> None:
    at.bury(2)
    at.seek(9)
    at.run(acknowledged())
    assert at.state.log_start == 2
    at.end_burial()
    at.run(acknowledged())
    assert at.state.log_start == 9


def test_there_is_a_bound_on_burials(at: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_groups, "BURIALS_MAX", 1)
    at.bury(2, A)
    assert isinstance(at.bury(3, B).error, QuotaExceeded)
    assert at.bury(2, A).error is None


def test_a_record_waits_as_long_although_the_append_clock_jumps(at: Queue) -> None:
    at.noop(known=False)
    at.settle(failed=[(2, 1, 5_000), (3, 1, 0)])
    waits, is_due = (at.group.failures[offset].not_before_us for offset in (2, 3))
    at.noop(jump_us=3_600_000_000, later_us=3_600_000_000)
    assert at.group.failures[2].not_before_us == waits + 3_600_000_000
    assert at.group.failures[3].not_before_us == is_due


# ---- generations, histories, other groups


@pytest.mark.parametrize("ref", [{"generation": 0}, {"history": 5}])
def test_what_was_granted_before_a_seek_or_a_loss_changes_nothing(at: Queue, ref: dict[str, int]) -> None:
    old = at.ref(**ref)
    outcomes = [
        at.settle((0, 2), failed=[(3, 1, 0)], ref=old),
        at.bury(3, ref=old),
        at.raise_mark(5, ref=old),
    ]
    assert [type(outcome.error) for outcome in outcomes] == [Fenced] * 3
    at.open_session(A)
    at.end_session(A, failed=[(3, 1, 0)], returned=[4], ref=old)
    assert (at.settled, at.group.failures, at.group.burials, at.group.granted_below) == ([], {}, {}, 0)
    assert at.group.sessions == {}, "the session is over in any case"


def test_a_seek_forgets_what_was_settled_and_what_failed(at: Queue) -> None:
    at.open_session(A)
    at.settle((0, 4), (6, 8), failed=[(5, 1, 0)])
    generation = at.group.generation
    at.seek(2)
    assert (at.position, at.settled, at.group.failures) == (2, [0, 1], {})
    assert at.group.generation > generation
    assert list(at.group.sessions) == [A]


def test_a_group_that_is_made_again_has_nothing_of_the_last_one(at: Queue) -> None:
    at.open_session(A)
    at.settle((1, 4), failed=[(5, 1, 0)])
    at.bury(6)
    ref = at.ref()
    at.do(make=pb.MakeCursor(name=GROUP, kind=pb.QUEUE, group_id=ID + 1))
    assert (at.settled, at.group.failures, at.group.burials, at.group.sessions) == ([], {}, {}, {})
    assert isinstance(at.settle((0, 1), ref=ref).error, WrongKind)
    at.do(drop=pb.DropCursor(name=GROUP, group_id=ID + 1))
    assert at.state.queue_groups.by_name == {}
    assert isinstance(at.settle((0, 1), ref=ref).error, UnknownGroup)


def test_a_commit_moves_no_queue_groups_cursor(at: Queue) -> None:
    commit = pb.Commit(channel=GROUP, kind=pb.QUEUE, group_id=ID, generation=at.group.generation, offset=5)
    assert isinstance(at.do(commit=commit).error, InvalidRequest)
    assert at.position == 0


@pytest.mark.parametrize(
    "command",
    [
        {"settle": pb.SettleRecords(acked=bytes(15))},
        {"settle": pb.SettleRecords(acked=bytes(16))},
        {"settle": pb.SettleRecords(failed=bytes(17))},
        {"end_session": pb.EndQueueSession(returned=bytes(7))},
        {"bury": pb.BuryRecord(offset=10, message_id=A, topic_id=B)},
        {"bury": pb.BuryRecord(offset=1, message_id=b"x", topic_id=B)},
        {"bury": pb.BuryRecord(offset=1, message_id=A, topic_id=B, headers=bytes(70_000))},
    ],
)
def test_what_is_not_a_command_changes_nothing(at: Queue, command: dict[str, object]) -> None:
    before = at.state.queue_groups.by_name[GROUP].state_bytes
    for each in command.values():
        each.queue.CopyFrom(at.ref())  # type: ignore[attr-defined]
    assert isinstance(at.do(**command).error, InvalidRequest)
    assert at.group.state_bytes == before


# ---- bounds


def test_a_full_state_takes_acks_that_need_no_room(at: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    at.settle((2, 3), failed=[(5, 1, 0)])
    monkeypatch.setattr(queue_groups, "STATE_BYTES_MAX", 40)
    assert at.settle((4, 5), failed=[(6, 1, 0)]).refused == ((4, 5), (6, 7))
    assert at.settle((3, 4), (5, 6), failed=[(5, 2, 0)]).refused == ((5, 6),)
    assert at.settle((0, 2)).refused == ()
    assert at.position == 4
    assert at.settle((4, 6)).refused == ()


@pytest.mark.parametrize("bound", ["RANGES_MAX", "FAILURES_MAX"])
def test_a_group_has_bounds_of_its_own(at: Queue, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_group, bound, 1)
    outcome = at.settle((2, 3), (6, 7), failed=[(4, 1, 0), (8, 1, 0)])
    assert outcome.refused == (((6, 7),) if bound == "RANGES_MAX" else ((8, 9),))


def test_a_burial_may_end_beyond_the_bound_and_the_state_is_read_again(
    at: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy is committed: the record has to be settled, with room or without."""
    assert queue_groups.LOADED_RANGES_MAX >= queue_group.RANGES_MAX + queue_group.BURIALS_MAX
    monkeypatch.setattr(queue_groups, "RANGES_MAX", 1, raising=False)
    monkeypatch.setattr(queue_group, "RANGES_MAX", 1)
    monkeypatch.setattr(queue_groups, "LOADED_RANGES_MAX", 2)
    at.settle((2, 3))
    at.bury(6)
    at.end_burial()
    assert at.settled == [2, 6]
    other = PartitionState()
    other.load(at.state.dump())
    assert other.dump() == at.state.dump()


# ---- as bytes

GOLDEN = (
    "0a066d61696c657210021864222002000000000000000300000000000000050000000000000007000000000000002a1808000000000000"
    "0001000000000000001f671e18240a06003210616161616161616161616161616161613a2f080912106262626262626262626262626262"
    "6262180222106363636363636363636363636363636330043a03776879"
)


def full(at: Queue) -> Queue:
    at.seek(1)
    at.open_session(A)
    at.raise_mark(100)
    at.settle((2, 3), (5, 7), failed=[(8, 1, 10)])
    at.bury(9, B, topic_id=C, end=4)
    return at


def test_the_bytes_are_those_that_were_written_down(at: Queue) -> None:
    state = pb.State()
    full(at).state.queue_groups.dump(state)
    assert state.queue_groups[0].SerializeToString(deterministic=True).hex() == GOLDEN
    other = PartitionState()
    other.load(at.state.dump())
    assert other.dump() == at.state.dump()


LIES = {
    "no cursor": lambda g: g.MergeFrom(pb.QueueGroup(group="other")),
    "half a range": lambda g: g.MergeFrom(pb.QueueGroup(settled=g.settled + b"1")),
    "ranges that touch": lambda g: g.MergeFrom(pb.QueueGroup(settled=(2).to_bytes(8, "little") * 2)),
    "a range behind the end": lambda g: g.MergeFrom(pb.QueueGroup(settled=bytes(8) + (11).to_bytes(8, "little"))),
    "half a failure": lambda g: g.MergeFrom(pb.QueueGroup(failures=bytes(23))),
    "a failure of a settled record": lambda g: g.MergeFrom(pb.QueueGroup(failures=b"\2" + bytes(23))),
    "a failure twice": lambda g: g.MergeFrom(pb.QueueGroup(failures=g.failures * 2)),
    "half a session": lambda g: g.MergeFrom(pb.QueueGroup(sessions=bytes(15))),
    "a session twice": lambda g: g.MergeFrom(pb.QueueGroup(sessions=bytes(32))),
    "a burial twice": lambda g: g.burials.append(g.burials[0]),
    "a burial behind the end": lambda g: g.burials[0].MergeFrom(pb.Burial(offset=10)),
    "a burial without an id": lambda g: g.burials[0].MergeFrom(pb.Burial(message_id=b"x")),
}


@pytest.mark.parametrize("lie", LIES)
def test_damaged_bytes_are_refused(at: Queue, lie: str) -> None:
    state = pb.State()
    full(at).state.queue_groups.dump(state)
    LIES[lie](state.queue_groups[0])  # type: ignore[no-untyped-call]
    with pytest.raises(CorruptData):
        QueueGroups.load(state, at.state.cursors, 10)


def test_ranges_are_as_a_set_of_offsets() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        ranges, offsets, position = Settled(), set[int](), 0
        for _ in range(60):
            start = rng.randrange(position, position + 30)
            end = start + rng.randint(1, 6)
            assert ranges.touches(start, end) == bool(offsets & set(range(start - 1, end + 1))), seed
            ranges.add(start, end)
            offsets |= set(range(start, end))
            if rng.random() < 0.3:
                position = ranges.pop_from(position)
                offsets = {offset for offset in offsets if offset >= position}
            assert [o for o in range(position, position + 40) if o in ranges] == sorted(
                o for o in offsets if o < position + 40
            ), seed
            assert position not in offsets or position in ranges

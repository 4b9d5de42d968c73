"""Acks of queue groups that transactions have staged: what else settles the record, when they count, bounds, bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.broker.state.queue_commands import GROUP, A, B, Queue
from tests.broker.values import drops, makes, moves
from tinymq.base.errors import (
    CorruptData,
    Fenced,
    InvalidRequest,
    LeaseLost,
    OutOfOrderSequence,
    QuotaExceeded,
    TinymqError,
    UnknownGroup,
    WrongKind,
)
from tinymq.broker.state import queue_group
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.state.queue_groups import pack_spans
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.state.state import PartitionState
from tinymq.broker.state.transactional import staged_acks
from tinymq.broker.state.transactional.staged_acks import StagedAcks
from tinymq.proto import partition_pb2 as pb

T, OTHER, THIRD = TransactionId(7, 2, 1), TransactionId(8, 0, 5), TransactionId(9, 0, 1)
VERSION = 3  # of an entry with such commands


@pytest.fixture
def at() -> Queue:
    """Ten records, and a queue group at 0."""
    queue = Queue()
    queue.open_session(A)
    return queue


def stages(
    at: Queue, *spans: tuple[int, int], place: int = 0, transaction: TransactionId = T, session: bytes = A,
    ref: pb.QueueRef | None = None,
) -> pb.Command:  # fmt: skip
    producer_id, epoch, number = transaction
    return pb.Command(
        stage_acks=pb.StageAcks(
            producer_id=producer_id, number=number, epoch=epoch, coordinator=3, place=place, queue=ref or at.ref(),
            session=session, acked=pack_spans(spans),
        )
    )  # fmt: skip


def stage(at: Queue, *spans: tuple[int, int], place: int = 0, transaction: TransactionId = T) -> CommandOutcome:
    return run(at, stages(at, *spans, place=place, transaction=transaction))


def run(at: Queue, command: pb.Command) -> CommandOutcome:
    """A refused command changes nothing."""
    before = at.state.dump()[16:]
    (outcome,) = at.run(command, version=VERSION)
    assert isinstance(outcome, CommandOutcome)
    assert outcome.error is None or at.state.dump()[16:] == before
    return outcome


def publish(at: Queue, transaction: TransactionId = T) -> None:
    producer_id, epoch, number = transaction
    run(at, pb.Command(publish_offsets=pb.PublishOffsets(producer_id=producer_id, number=number, epoch=epoch)))


# ---- when they count


def test_an_ack_counts_when_its_transaction_is_committed(at: Queue) -> None:
    assert stage(at, (0, 2), (4, 5)).error is None
    assert stage(at, (7, 8), place=1).error is None
    assert (at.settled, at.state.staged_acks.held(T), at.position) == ([], 2, 0)
    assert sorted(at.group.staged) == [0, 1, 4, 7]
    publish(at, OTHER)
    assert at.settled == []
    publish(at)
    assert (at.settled, at.position, at.state.staged_acks.held(T)) == ([0, 1, 4, 7], 2, 0)
    assert at.group.staged == {}
    publish(at)
    assert at.settled == [0, 1, 4, 7]


def test_what_is_rolled_back_is_free_again_and_uncharged(at: Queue) -> None:
    at.settle(failed=[(3, 1, 0)])
    before = at.group.failures[3]
    stage(at, (3, 5))
    assert not at.group.is_open(3, at.position)
    at.discard(T)
    assert (at.settled, at.group.failures, len(at.state.staged_acks)) == ([], {3: before}, 0)
    assert [offset for offset in (3, 4) if at.group.is_open(offset, at.position)] == [3, 4]


def test_batches_and_acks_of_a_transaction_are_published_by_one_entry(at: Queue) -> None:
    stage(at, (0, 3))
    at.stage(T)
    at.publish(T)
    assert (at.position, at.state.high_watermark) == (3, 11)


def test_nothing_else_settles_the_record(at: Queue) -> None:
    stage(at, (2, 4))
    outcome = at.settle((0, 6), failed=[(2, 1, 0)])
    assert (outcome.refused, at.settled, at.group.failures) == (((2, 3), (3, 4)), [0, 1, 4, 5], {})
    assert at.settle((5, 6), in_order=[(6, 3)]).refused == ((6, 7),), "its key waits for the decision"
    assert at.bury(2).refused == ((2, 3),)
    at.end_session(A, failed=[(3, 1, 0)], returned=[2])
    assert at.group.failures == {}, "the session that staged it is over, and it is not charged"
    assert type(stage(at, (3, 4), transaction=OTHER).error) is LeaseLost, "the first staged ack wins"
    publish(at)
    assert at.position == 6


def test_a_committed_ack_forgets_the_failures_of_its_record(at: Queue) -> None:
    at.settle(failed=[(3, 1, 0), (5, 1, 0)])
    stage(at, (3, 4))
    publish(at)
    assert list(at.group.failures) == [5]


# ---- what comes before the transaction


def test_a_seek_wins(at: Queue) -> None:
    stage(at, (0, 2))
    at.seek(0)
    assert (at.group.staged, at.state.staged_acks.held(T)) == ({}, 1), "the coordinator still counts it"
    assert stage(at, (0, 1), transaction=OTHER).error is None
    publish(at)
    assert (at.settled, list(at.group.staged)) == ([], [0])
    publish(at, OTHER)
    assert at.settled == [0]


def test_a_deletion_and_a_new_group_of_the_name_win(at: Queue) -> None:
    stage(at, (0, 2))
    at.run(drops(7, GROUP), version=2)
    publish(at)
    at.run(makes(8, GROUP, kind=pb.QUEUE), version=2)
    assert stage(at, (1, 2), transaction=OTHER).error is not None, "of the group before"
    assert at.settled == []


def test_what_is_removed_meanwhile_settles_nothing_more(at: Queue) -> None:
    stage(at, (0, 2), (4, 8))
    at.run(moves(6))
    assert at.group.staged.keys() == {0, 1, 4, 5, 6, 7}
    publish(at)
    assert (at.position, at.group.staged, list(at.group.settled)) == (8, {}, [])


def test_a_rollback_of_what_is_removed_changes_nothing(at: Queue) -> None:
    stage(at, (0, 2))
    at.run(moves(6))
    at.discard(T)
    assert (at.position, at.group.staged) == (0, {})


# ---- what is refused


def refused(at: Queue) -> dict[str, tuple[pb.Command, type[TinymqError]]]:
    other_group, stream = at.ref(), at.ref()
    other_group.group_id, stream.group = 6, "s"
    at.run(makes(9, "s", kind=pb.STREAM), version=2)
    at.settle((2, 3))
    at.bury(5)
    return {
        "settled": (stages(at, (2, 3)), LeaseLost),
        "settled, in part": (stages(at, (1, 4)), LeaseLost),
        "below the cursor": (stages(at, (0, 0)), InvalidRequest),
        "being buried": (stages(at, (5, 6)), LeaseLost),
        "behind the end": (stages(at, (9, 11)), LeaseLost),
        "from before a seek": (stages(at, (1, 2), ref=at.ref(9)), Fenced),
        "from before a loss": (stages(at, (1, 2), ref=at.ref(history=3)), Fenced),
        "of no group": (stages(at, (1, 2), ref=pb.QueueRef(group="d", group_id=1)), UnknownGroup),
        "of an earlier group of the name": (stages(at, (1, 2), ref=other_group), WrongKind),
        "of a stream group": (stages(at, (1, 2), ref=stream), WrongKind),
        "behind a gap": (stages(at, (1, 2), place=1), OutOfOrderSequence),
        "of no record": (stages(at), InvalidRequest),
        "out of order": (stages(at, (6, 7), (1, 2)), InvalidRequest),
        "of no session": (stages(at, (1, 2), session=b"a"), InvalidRequest),
        "too many": (stages(at, (1, 1 << 60)), QuotaExceeded),
    }


@pytest.mark.parametrize("what", refused(Queue()))
def test_acks_that_cannot_be_staged(at: Queue, what: str) -> None:
    command, kind = refused(at)[what]
    assert type(run(at, command).error) is kind


def test_a_repeat_changes_nothing(at: Queue) -> None:
    stage(at, (1, 2))
    stage(at, (3, 4), place=1)
    assert stage(at, (1, 2)).error is None
    publish(at)
    assert at.settled == [1, 3]


def test_the_acks_of_a_partition_are_bounded(at: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_acks, "ACKS_MAX", 2)
    stage(at, (1, 2))
    stage(at, (3, 4), transaction=OTHER)
    assert type(stage(at, (5, 6), transaction=THIRD).error) is QuotaExceeded
    at.discard(OTHER)
    assert stage(at, (5, 6), transaction=THIRD).error is None


def test_a_staged_ack_has_its_room_among_the_settled_ranges(at: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_group, "RANGES_MAX", 3)
    stage(at, (1, 2), (3, 4))
    assert at.settle((5, 6)).refused == ()
    assert at.settle((7, 8)).refused == ((7, 8),)
    assert type(stage(at, (7, 8), transaction=OTHER).error) is QuotaExceeded
    publish(at)
    assert at.settled == [1, 3, 5]


# ---- as bytes


def stored(at: Queue) -> list[pb.StagedAcks]:
    return list(at.state.staged_acks.dump())


def test_a_snapshot_keeps_them_in_their_order(at: Queue) -> None:
    stage(at, (4, 5), transaction=OTHER)
    stage(at, (5, 7))
    stage(at, (8, 9), place=1)
    at.seek(0)
    stage(at, (0, 1), transaction=THIRD)
    loaded = PartitionState()
    loaded.load(at.state.dump())
    assert loaded.dump() == at.state.dump()
    assert (list(loaded.staged_acks), loaded.staged_acks.held(T)) == ([OTHER, T, THIRD], 2)
    assert loaded.queue_groups.by_name[GROUP].staged == {0: THIRD}
    assert loaded.staged_acks.orphans(GROUP, at.group.generation, []) == [THIRD]


def test_the_stored_bytes_are_golden(at: Queue) -> None:
    stage(at, (4, 5))
    acked, session = "04" + "00" * 7 + "05" + "00" * 7, "61" * 16
    queue = "0a06" + b"mailer".hex() + "1007" + "2001"
    command = "0807" + "1001" + "1802" + "2003" + "320c" + queue + "3a10" + session + "4210" + acked
    assert stages(at, (4, 5)).SerializeToString().hex() == "ba013a" + command
    (only,) = stored(at)
    records = "0a06" + b"mailer".hex() + "1001" + "1a10" + session + "2210" + acked
    assert only.SerializeToString().hex() == "0807" + "1001" + "1802" + "2003" + "2a2e" + records


BROKEN: dict[str, Callable[[pb.StagedAcks], object]] = {
    "no command": lambda each: each.ClearField("commands"),
    "no record": lambda each: each.commands[0].ClearField("acked"),
    "half a range": lambda each: setattr(each.commands[0], "acked", b"123"),
    "behind the end": lambda each: setattr(each.commands[0], "acked", pack_spans([(4, 11)])),
    "out of order": lambda each: setattr(each.commands[0], "acked", pack_spans([(4, 5), (1, 2)])),
    "too many": lambda each: setattr(each.commands[0], "acked", pack_spans([(0, 1 << 60)])),
    "settled records": lambda each: setattr(each.commands[0], "acked", pack_spans([(8, 9)])),
    "a record twice": lambda each: each.commands.append(each.commands[0]),
    "no session": lambda each: each.commands[0].ClearField("session"),
    "a name that cannot be": lambda each: setattr(each.commands[0], "group", ""),
}


@pytest.mark.parametrize("what", BROKEN)
def test_bytes_that_no_dump_writes_are_damage(at: Queue, what: str) -> None:
    at.settle((8, 9))
    stage(at, (4, 5))
    (each,) = stored(at)

    def load() -> StagedAcks:
        return loaded_into(at, [each])

    assert load().held(T) == 1
    BROKEN[what](each)
    with pytest.raises(CorruptData):
        load()


def loaded_into(at: Queue, staged: list[pb.StagedAcks]) -> StagedAcks:
    """The staged acks, beside the groups of the state as they are stored."""
    before = PartitionState()
    copied = Queue()
    copied.settle((8, 9))
    before.load(copied.state.dump())
    return StagedAcks.load(staged, before.queue_groups, 10)


def test_a_transaction_twice_is_damage(at: Queue) -> None:
    stage(at, (4, 5))
    with pytest.raises(CorruptData):
        loaded_into(at, stored(at) * 2)


def test_the_transactions_of_sessions_that_have_ended_are_known(at: Queue) -> None:
    at.open_session(B)
    run(at, stages(at, (1, 2)))
    run(at, stages(at, (3, 4), place=1, session=B))
    run(at, stages(at, (5, 6), transaction=OTHER))
    acks, generation = at.state.staged_acks, at.group.generation
    assert acks.orphans(GROUP, generation, at.group.sessions) == []
    at.end_session(B)
    assert acks.orphans(GROUP, generation, at.group.sessions) == [T]
    at.end_session(A)
    assert acks.orphans(GROUP, generation, at.group.sessions) == [T, OTHER]
    assert acks.orphans(GROUP, generation + 1, at.group.sessions) == []

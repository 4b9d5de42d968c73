"""Offsets of stream groups that transactions have staged: who may stage them, when they count, bounds, and bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.broker.state.test_group_cursors import opened
from tests.broker.values import Applied, commits, drops, makes, seeks
from tinymq.base.errors import (
    CorruptData,
    Fenced,
    InvalidRequest,
    OffsetOutOfRange,
    OutOfOrderSequence,
    QuotaExceeded,
    TinymqError,
    UnknownGroup,
    WrongKind,
)
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.state.state import PartitionState
from tinymq.broker.state.transactional import staged_offsets
from tinymq.broker.state.transactional.staged_offsets import StagedOffsets
from tinymq.proto import partition_pb2 as pb

EPOCH = 7 << 32
T, OTHER = TransactionId(7, 2, 1), TransactionId(8, 0, 5)
VERSION = 3  # of an entry with such commands


@pytest.fixture
def at() -> Applied:
    """Ten records, and the cursor of a group at 0, which a member has opened."""
    applied = Applied()
    applied.batch(10)
    applied.run(makes(7, "g"), opened(), version=2)
    return applied


def stages(
    offset: int, place: int = 0, transaction: TransactionId = T, *, group: str = "g", epoch: int = EPOCH,
    generation: int = 1, group_id: int = 7, kind: pb.CursorKind.ValueType = pb.STREAM,
) -> pb.Command:  # fmt: skip
    commit = commits(offset, group, epoch, generation).commit
    commit.kind, commit.group_id = kind, group_id
    producer_id, epoch, number = transaction
    return pb.Command(
        stage_offset=pb.StageOffset(
            producer_id=producer_id, number=number, epoch=epoch, coordinator=3, place=place, commit=commit
        )
    )


def publishes(transaction: TransactionId = T) -> pb.Command:
    producer_id, epoch, number = transaction
    return pb.Command(publish_offsets=pb.PublishOffsets(producer_id=producer_id, number=number, epoch=epoch))


def run(at: Applied, *commands: pb.Command) -> CommandOutcome:
    """The last outcome. A refused command changes nothing."""
    before = at.state.dump()[16:]
    outcome: CommandOutcome = at.run(*commands, version=VERSION)[-1]
    assert outcome.error is None or len(commands) > 1 or at.state.dump()[16:] == before
    return outcome


def position(at: Applied) -> int:
    return at.state.cursors["g"].position


# ---- when they count


def test_an_offset_counts_when_its_transaction_is_committed(at: Applied) -> None:
    assert run(at, stages(4), stages(6, 1)).error is None
    assert (position(at), at.state.staged_offsets.held(T), at.state.transactions_of("g")) == (0, 2, [T])
    run(at, publishes(OTHER))
    assert position(at) == 0
    run(at, publishes())
    assert (position(at), at.state.staged_offsets.held(T), at.state.transactions_of("g")) == (6, 0, [])
    run(at, publishes())
    assert position(at) == 6


def test_what_is_rolled_back_moves_nothing(at: Applied) -> None:
    run(at, stages(4))
    at.discard(T)
    assert (position(at), len(at.state.staged_offsets)) == (0, 0)
    run(at, publishes())
    assert position(at) == 0


def test_batches_and_offsets_of_a_transaction_are_published_by_one_entry(at: Applied) -> None:
    run(at, stages(4))
    at.stage(T)
    at.publish(T)
    assert (position(at), at.state.high_watermark) == (4, 11)


def test_a_committed_offset_counts_whoever_has_the_partition_by_then(at: Applied) -> None:
    run(at, stages(4))
    at.run(opened(EPOCH + 1, b"B"), version=2)
    run(at, publishes())
    assert (position(at), at.state.cursors["g"].epoch) == (4, EPOCH + 1)


def test_it_moves_a_cursor_forward_only(at: Applied) -> None:
    run(at, stages(4))
    commit = commits(8, "g", EPOCH)
    commit.commit.kind, commit.commit.group_id = pb.STREAM, 7
    at.run(commit, version=2)
    run(at, publishes())
    assert position(at) == 8


def test_a_seek_and_a_new_group_of_the_name_win(at: Applied) -> None:
    run(at, stages(4))
    seek = seeks(1, channel="g")
    seek.seek.kind, seek.seek.group_id = pb.STREAM, 7
    at.run(seek, version=2)
    assert at.state.transactions_of("g") == [], "no owner has to wait for it"
    run(at, publishes())
    assert position(at) == 1
    run(at, stages(5, 0, OTHER, generation=at.state.cursors["g"].generation))
    at.run(drops(7, "g"), makes(8, "g"), version=2)
    run(at, publishes(OTHER))
    assert position(at) == 0


# ---- what is refused


REFUSED: dict[str, tuple[pb.Command, type[TinymqError]]] = {
    "of an earlier owner": (stages(4, epoch=EPOCH - 1), Fenced),
    "of an owner that has not opened it": (stages(4, epoch=EPOCH + 1), Fenced),
    "from before a seek": (stages(4, generation=9), Fenced),
    "behind the end": (stages(11), OffsetOutOfRange),
    "of no group": (stages(4, group="d"), UnknownGroup),
    "of an earlier group of the name": (stages(4, group_id=6), WrongKind),
    "of a queue group": (stages(4, kind=pb.QUEUE), InvalidRequest),
    "of a channel": (stages(4, kind=pb.CHANNEL, group_id=0), InvalidRequest),
    "behind a gap": (stages(4, 1), OutOfOrderSequence),
}


@pytest.mark.parametrize("what", REFUSED)
def test_offsets_that_cannot_be_staged(at: Applied, what: str) -> None:
    command, kind = REFUSED[what]
    assert type(run(at, command).error) is kind


def test_a_repeat_changes_nothing(at: Applied) -> None:
    run(at, stages(4), stages(6, 1))
    assert run(at, stages(4)).error is None
    run(at, publishes())
    assert position(at) == 6


def test_the_offsets_of_a_partition_are_bounded(at: Applied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_offsets, "OFFSETS_MAX", 2)
    run(at, stages(1), stages(1, 0, OTHER))
    third = stages(1, 0, TransactionId(9, 0, 1))
    assert type(run(at, third).error) is QuotaExceeded
    assert run(at, stages(2, 1)).error is None, "the newest of a group takes the place of the one before"
    at.discard(OTHER)
    assert run(at, third).error is None


# ---- as bytes


def stored(at: Applied) -> list[pb.StagedOffsets]:
    return list(at.state.staged_offsets.dump())


def test_a_snapshot_keeps_them_in_their_order(at: Applied) -> None:
    run(at, stages(4, 0, OTHER), stages(5), stages(6, 1))
    loaded = PartitionState()
    loaded.load(at.state.dump())
    assert loaded.dump() == at.state.dump()
    assert (list(loaded.staged_offsets), loaded.staged_offsets.held(T)) == ([OTHER, T], 2)


def test_the_stored_bytes_are_golden(at: Applied) -> None:
    run(at, stages(5), stages(6, 1))
    (only,) = stored(at)
    commit = "0a0167" + "108080808070" + "1801" + "2005" + "2801" + "3007"
    assert stages(5).SerializeToString().hex() == "aa011b" + "0807" + "1001" + "1802" + "2003" + "3211" + commit
    assert publishes().SerializeToString().hex() == "b20106" + "0807" + "1001" + "1802"
    newest = commit.replace("2005", "2006")
    assert only.SerializeToString().hex() == "0807" + "1001" + "1802" + "2003" + "2802" + "3211" + newest


BROKEN: dict[str, Callable[[pb.StagedOffsets], object]] = {
    "no offset": lambda each: each.ClearField("commits"),
    "fewer commands than groups": lambda each: each.ClearField("count"),
    "a group twice": lambda each: each.commits.append(each.commits[0]),
    "behind the end": lambda each: setattr(each.commits[0], "offset", 12),
    "of a channel": lambda each: setattr(each.commits[0], "kind", pb.CHANNEL),
    "of no group": lambda each: setattr(each.commits[0], "group_id", 0),
    "a name that cannot be": lambda each: setattr(each.commits[0], "channel", ""),
}


@pytest.mark.parametrize("what", BROKEN)
def test_bytes_that_no_dump_writes_are_damage(at: Applied, what: str) -> None:
    run(at, stages(5), stages(6, 1))
    (each,) = stored(at)
    assert StagedOffsets.load([each], 10).held(T) == 2
    BROKEN[what](each)
    with pytest.raises(CorruptData):
        StagedOffsets.load([each], 10)


def test_a_transaction_twice_is_damage(at: Applied) -> None:
    run(at, stages(5))
    with pytest.raises(CorruptData):
        StagedOffsets.load(stored(at) * 2, 10)

"""The cursors of groups: who makes and drops them, which commands they refuse, and their bytes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.values import Applied, commits, consumes, deletes, drops, makes, opens, request
from tinymq.base.errors import (
    AlreadyExists,
    Fenced,
    InvalidRequest,
    QuotaExceeded,
    TinymqError,
    UnknownGroup,
    WrongKind,
)
from tinymq.broker.state import cursors
from tinymq.broker.state.cursor import CursorKind
from tinymq.broker.state.cursors import CHANNELS_MAX, CURSORS_MAX
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.state.state import PartitionState
from tinymq.proto import partition_pb2 as pb

EPOCH = 7 << 32  # the first epoch of group 7
A, B = b"A" * 16, b"B" * 16  # sessions


@pytest.fixture
def at() -> Applied:
    """Ten records."""
    applied = Applied()
    applied.batch(10)
    return applied


def one(at: Applied, command: pb.Command) -> CommandOutcome:
    (outcome,) = at.run(command, version=2)
    return outcome


def error(at: Applied, command: pb.Command) -> type[TinymqError]:
    before = at.state.dump()[16:]
    outcome = one(at, command)
    assert outcome.error is not None
    assert at.state.dump()[16:] == before
    return type(outcome.error)


def of_group(command: pb.Command, group_id: int = 7, kind: Any = pb.STREAM, **more: Any) -> pb.Command:
    """The same command for a group."""
    said = getattr(command, command.WhichOneof("command") or "")
    said.kind, said.group_id = kind, group_id
    for name, value in more.items():
        setattr(said, name, value)
    return command


def opened(epoch: int = EPOCH, session: bytes = A, group_id: int = 7) -> pb.Command:
    return of_group(opens("g", epoch=epoch), group_id, session=session)


def committed(offset: int, epoch: int = EPOCH, generation: int = 1, group_id: int = 7) -> pb.Command:
    return of_group(commits(offset, "g", epoch, generation), group_id)


def sought(offset: int, number: int = 1, epoch: int = 0) -> pb.Command:
    return of_group(pb.Command(seek=pb.Seek(channel="g", epoch=epoch, request_id=request(number), offset=offset)))


def test_only_make_makes_a_groups_cursor(at: Applied) -> None:
    assert error(at, opened()) is UnknownGroup
    outcome = one(at, makes(7, start=1 << 63))
    assert (outcome.error, outcome.position, outcome.epoch) == (None, 10, 0)
    assert at.state.cursors["g"].kind == CursorKind.STREAM
    before = at.state.dump()[16:]
    assert one(at, makes(7)).position == 10, "it is there already"
    assert at.state.dump()[16:] == before


@pytest.mark.parametrize("command", [makes(0), makes(3, kind=pb.CHANNEL), makes(3, kind=9), makes(3, name="a b")])  # type: ignore[arg-type]
def test_an_invalid_group_is_not_created(at: Applied, command: pb.Command) -> None:
    assert issubclass(error(at, command), InvalidRequest)


def test_a_channel_keeps_its_name(at: Applied) -> None:
    one(at, opens("g", start=4))
    assert error(at, makes(7)) is AlreadyExists
    assert one(at, drops(7)).error is None
    assert at.state.cursors["g"].position == 4, "a drop leaves a channel alone"


def test_a_group_that_is_made_again_replaces_the_cursor_of_the_one_before(at: Applied) -> None:
    one(at, makes(7))
    one(at, opened())
    one(at, committed(5))
    assert one(at, makes(9)).position == 0
    assert (at.state.cursors["g"].group_id, at.state.cursors["g"].epoch) == (9, 0)
    assert error(at, committed(6)) is WrongKind, "a member of the group that was deleted"
    assert error(at, makes(7)) is WrongKind, "a late message of the group that was deleted"
    assert one(at, drops(7)).error is None
    assert at.state.cursors["g"].group_id == 9
    one(at, drops(9))
    assert "g" not in at.state.cursors
    assert one(at, drops(9)).error is None


def test_no_command_of_another_kind_moves_a_cursor(at: Applied) -> None:
    """A ConsumeMessage would skip a group's record, and a Queue's epoch would fence the coordinator for ever."""
    one(at, makes(7))
    one(at, makes(8, "q", kind=pb.QUEUE))
    one(at, opens("c"))
    for name in ("g", "q"):
        for command in (opens(name, epoch=1 << 60), commits(1, name), consumes(1, name), deletes(name)):
            assert error(at, command) is WrongKind
    assert error(at, of_group(commits(1, "c"))) is WrongKind
    assert error(at, of_group(commits(1, "q"), 8)) is WrongKind
    assert error(at, of_group(opens("q"), 8, pb.QUEUE)) is InvalidRequest, "workers open nothing"


def test_an_epoch_belongs_to_one_session(at: Applied) -> None:
    one(at, makes(7))
    assert one(at, opened()).epoch == EPOCH
    assert one(at, opened()).error is None, "the answer was lost: the same session asks again"
    assert error(at, opened(session=B)) is Fenced
    assert one(at, opened(EPOCH + 1, B)).error is None
    refused = one(at, opened())
    assert isinstance(refused.error, Fenced)
    assert refused.epoch == EPOCH + 1, "the newest epoch is told"
    assert error(at, committed(3)) is Fenced
    assert one(at, committed(3, EPOCH + 1)).position == 3
    assert error(at, committed(4, EPOCH + 2)) is Fenced, "nobody has opened with this epoch"
    for session in (b"", b"x" * 17):
        assert error(at, opened(EPOCH + 5, session)) is InvalidRequest


def test_a_seek_from_outside_moves_the_cursor_and_lets_the_member_go_on(at: Applied) -> None:
    one(at, makes(7))
    one(at, opened())
    one(at, committed(5))
    moved = one(at, sought(2))
    assert (moved.error, moved.position, moved.epoch, moved.generation) == (None, 2, EPOCH, 2)
    assert error(at, committed(6)) is Fenced, "it is about records before the seek"
    again = one(at, opened())
    assert (again.position, again.generation) == (2, 2)
    assert one(at, committed(6, generation=2)).position == 6
    assert error(at, sought(0, 2, EPOCH - 1)) is Fenced


def test_the_bound_on_cursors_depends_on_the_version_of_the_entry(at: Applied, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (CHANNELS_MAX, CURSORS_MAX) == (1000, 2000)
    monkeypatch.setattr(cursors, "CHANNELS_MAX", 2)
    monkeypatch.setattr(cursors, "CURSORS_MAX", 4)
    assert [o.error for o in at.run(opens("a"), opens("b"))] == [None, None]
    assert isinstance(at.run(opens("c"))[0].error, QuotaExceeded)
    assert [o.error for o in at.run(opens("c"), makes(7), version=2)] == [None, None]
    assert error(at, makes(8, "q")) is QuotaExceeded
    assert one(at, makes(8)).error is None, "in the place of another"


GOLDEN = (
    "0a0b52090a01671001180720030a075a050a016710070a210a1f0a0167108080808070200128073210414141414141414141414141414141"
    "410a1312110a016710808080807018012005280130070a1d1a1b0a01671a1000000000000000000000000000000001200228013007"
)
"""Of the commands below, in their order; written down when they were made."""


def test_the_bytes_of_the_state_come_back(at: Applied) -> None:
    one(at, makes(7, start=3))
    one(at, opened())
    one(at, makes(8, "q", kind=pb.QUEUE))
    one(at, opens("c", epoch=2, start=4))
    data = at.state.dump()
    state = PartitionState()
    state.load(data)
    assert state.dump() == data
    assert state.cursors == at.state.cursors
    parsed = pb.State.FromString(data[40:])
    assert [(c.kind, c.group_id, c.session) for c in parsed.channels] == [(0, 0, b""), (1, 7, A), (2, 8, b"")]


def test_commands_have_the_bytes_that_were_written_down() -> None:
    commands = [makes(7, start=3), drops(7), opened(), committed(5), sought(2)]
    assert pb.Commands(commands=commands).SerializeToString(deterministic=True).hex() == GOLDEN

"""Every typed error crosses the wire unchanged."""

from __future__ import annotations

import pytest

from tinymq.base.errors import BY_CODE, NotLeader, TinymqError
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import RetriableUnknownError, UnknownError, from_wire, to_wire

OUTBOX = "tinymq.outbox.errors"  # these stay in the program that raises them
WIRED = sorted(
    code for code, kind in BY_CODE.items() if kind.__init__ is TinymqError.__init__ and kind.__module__ != OUTBOX
)


@pytest.mark.parametrize("code", WIRED)
def test_every_error_survives_the_wire(code: str) -> None:
    sent = BY_CODE[code]("what happened", hint="what to do", leader=3, unset=None)
    wire = pb.Error.FromString(to_wire(sent).SerializeToString())
    back = from_wire(wire)
    assert type(back) is type(sent)
    assert (back.message, back.hint, back.detail) == ("what happened", "what to do", {"leader": "3"})
    assert wire.retriable == sent.retriable


def test_not_leader_says_who_leads() -> None:
    back = from_wire(to_wire(NotLeader("try 2", leader=2, leader_address="h:1", leader_epoch=7)))
    assert back.retriable
    assert back.detail == {"leader": "2", "leader_address": "h:1", "leader_epoch": "7"}


def test_a_code_of_a_newer_build_keeps_its_meaning() -> None:
    again = from_wire(pb.Error(code="FromTheFuture", message="m", retriable=True))
    never = from_wire(pb.Error(code="FromTheFuture", message="m"))
    assert isinstance(again, RetriableUnknownError)
    assert again.retriable
    assert type(never) is UnknownError
    assert never.detail == {"wire_code": "FromTheFuture"}


def test_a_message_is_bounded() -> None:
    assert len(to_wire(NotLeader("x" * 100_000)).message) <= 2000

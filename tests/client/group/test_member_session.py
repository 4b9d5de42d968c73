"""What a member hands out while its session lasts, and what it keeps when the session may have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.manual_clock import ManualClock
from tinymq import Message
from tinymq.client.group.member_session import MemberId, MemberSession


def messages(count: int) -> Iterator[Message]:
    return iter(
        [
            Message(
                topic="t", partition=0, offset=offset, key=None, value=b"", headers=(), timestamp_us=0, leader_epoch=0
            )
            for offset in range(count)
        ]
    )


@pytest.fixture
def member() -> tuple[MemberSession, ManualClock]:
    """A member whose session lasts until second 10."""
    clock = ManualClock()

    async def make() -> MemberSession:
        nothing: Any = None
        return MemberSession(MemberId("g", 1, b"s" * 16), nothing, nothing, clock, rejoin_s=3.0, attempt_s=1.0)

    made = asyncio.run(make())
    made._state._until_s = clock.monotonic() + 10
    return made, clock


def test_everything_is_handed_out_while_the_session_lasts(member: tuple[MemberSession, ManualClock]) -> None:
    alive, _ = member
    assert [message.offset for message in alive.while_alive(messages(4))] == [0, 1, 2, 3]


def test_nothing_is_drawn_once_the_session_may_have_ended(member: tuple[MemberSession, ManualClock]) -> None:
    alive, clock = member
    rest = messages(4)
    handing_out = alive.while_alive(rest)
    assert next(handing_out).offset == 0
    clock.advance(9.9)
    assert next(handing_out).offset == 1
    clock.advance(0.1)
    assert list(handing_out) == []
    assert [message.offset for message in rest] == [2, 3], "what was not handed out is still there"


def test_a_longer_session_counts_from_the_next_question_on(member: tuple[MemberSession, ManualClock]) -> None:
    alive, clock = member
    rest = messages(4)
    handing_out = alive.while_alive(rest)
    alive._state._until_s += 10
    clock.advance(11)
    assert list(handing_out) == []
    assert len(list(alive.while_alive(rest))) == 4

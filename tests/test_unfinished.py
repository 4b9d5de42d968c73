"""Incomplete frames: bounded in bytes, fair between hosts, and with a deadline."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.client.running import run
from tests.fakes.manual_clock import ManualClock
from tests.fakes.raw_client import until
from tinymq.base.errors import Closed, DeadlineExceeded
from tinymq.net.frame_stream import FrameStream
from tinymq.net.framing import PREFIX, READ_BUFFER_BYTES, FrameReader, pack_frame
from tinymq.net.unfinished_frames import FRAME_BYTES_PER_S_MIN, FRAME_S, Claim, FrameDeadline, FrameRoom, allowed_s


class Claims:
    """Claims on one buffer, and which of them were granted later."""

    def __init__(self, bytes_max: int) -> None:
        self.room = FrameRoom(bytes_max)
        self.granted: list[Claim] = []

    def make(self, host: str) -> Claim:
        claim = Claim(self.room, host, lambda: self.granted.append(claim))
        return claim


def test_room_is_given_in_order_as_far_as_there_is_any() -> None:
    claims = Claims(100)
    a, b, c, d = (claims.make(f"host {n}") for n in range(4))
    assert a.ask(60)
    assert not b.ask(50)
    assert not b.ask(50), "it waits already"
    assert not c.ask(10), "b was first"
    assert claims.room.bytes == 60
    a.give_back()
    assert claims.granted == [b, c]
    assert claims.room.bytes == 60
    assert d.ask(40)
    for claim in (b, c, d, a):
        claim.give_back()
        claim.give_back()
    assert (claims.room.bytes, claims.room.waiting) == (0, 0)


def test_one_host_has_half_and_keeps_no_other_waiting() -> None:
    claims = Claims(100)
    greedy = [claims.make("greedy") for _ in range(10)]
    assert [claim.ask(20) for claim in greedy] == [True, True, *[False] * 8]
    other = claims.make("other")
    assert other.ask(50)
    greedy[0].give_back()
    assert claims.granted == [greedy[2]], "as much as was released"


def test_a_frame_larger_than_the_room_waits_until_it_is_alone() -> None:
    claims = Claims(100)
    small, large, behind = claims.make("a"), claims.make("b"), claims.make("c")
    assert small.ask(10)
    assert not large.ask(500)
    assert not behind.ask(10)
    small.give_back()
    assert claims.granted == [large]
    large.give_back()
    assert claims.granted == [large, behind]


def test_a_waiter_that_leaves_is_skipped() -> None:
    claims = Claims(100)
    first, gone, last = (claims.make(f"host {n}") for n in range(3))
    assert first.ask(100)
    assert not gone.ask(100)
    assert not last.ask(10)
    gone.give_back()
    first.give_back()
    assert claims.granted == [last]


@pytest.mark.parametrize("seed", range(20))
def test_the_buffer_is_never_exceeded_and_no_frame_waits_without_end(seed: int) -> None:
    rng = random.Random(seed)
    claims = Claims(1000)
    made = [claims.make(f"host {rng.randrange(4)}") for _ in range(40)]
    held: list[Claim] = []
    for claim in made:
        if claim.ask(rng.randrange(1, 700)):
            held.append(claim)
        held += claims.granted
        claims.granted.clear()
        assert claims.room.bytes == sum(each.bytes for each in held)
        assert claims.room.bytes <= 1000
        if held and rng.random() < 0.4:
            held.pop(rng.randrange(len(held))).give_back()
    while held or claims.granted:
        held += claims.granted
        claims.granted.clear()
        held.pop(rng.randrange(len(held))).give_back()
    assert (claims.room.bytes, claims.room.waiting) == (0, 0)


class Watched:
    """A reader with its deadline, in manual time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.reader = FrameReader(64 << 20, 1024)
        self.expired: list[float] = []
        self.deadline = FrameDeadline(
            self.reader, self.clock.monotonic, self.clock.call_later, self.expired.append
        )  # fmt: skip

    def receive(self, data: bytes) -> None:
        while data:
            buffer = self.reader.get_buffer()
            count = min(len(buffer), len(data))
            buffer[:count], data = data[:count], data[count:]
            self.reader.received(count)
            while self.reader.next_frame() is not None:
                pass
        self.deadline.look()


FRAME = b"".join(map(bytes, pack_frame(b"head", [b"body" * 10])[0]))


def test_a_frame_that_is_not_complete_in_time_ends_its_connection() -> None:
    watched = Watched()
    watched.receive(FRAME[:5])
    watched.clock.advance(FRAME_S - 1)
    watched.receive(FRAME[5:20])
    assert not watched.expired
    watched.clock.advance(2)
    assert watched.expired == [FRAME_S]


def test_frames_that_are_complete_in_time_never_do() -> None:
    watched = Watched()
    for _ in range(20):
        watched.receive(FRAME[:-1])
        watched.clock.advance(FRAME_S * 0.9)
        watched.receive(FRAME[-1:])
    watched.clock.advance(10 * FRAME_S)
    assert not watched.expired
    watched.receive(FRAME + FRAME[:9])
    watched.clock.advance(FRAME_S + 1)
    assert len(watched.expired) == 1


def test_a_large_frame_has_the_time_that_a_slow_link_needs() -> None:
    size = 60 << 20
    assert allowed_s(size) == size / FRAME_BYTES_PER_S_MIN > 7 * FRAME_S
    watched = Watched()
    watched.receive(PREFIX.pack(size, 0) + bytes(READ_BUFFER_BYTES))
    for _ in range(200):
        watched.clock.advance(1)
        watched.receive(bytes(FRAME_BYTES_PER_S_MIN))
    assert not watched.expired
    watched.clock.advance(60)
    assert len(watched.expired) == 1


def test_time_in_which_nothing_is_read_does_not_count() -> None:
    watched = Watched()
    watched.receive(FRAME[:5])
    watched.clock.advance(FRAME_S - 1)
    watched.deadline.pause()
    watched.clock.advance(100 * FRAME_S)
    assert not watched.expired
    watched.deadline.look()
    watched.clock.advance(FRAME_S - 1)
    assert not watched.expired
    watched.clock.advance(2)
    assert len(watched.expired) == 1


# ---- over real connections -----------------------------------------------------------------------------

SIZE = 4 * READ_BUFFER_BYTES
Dial = Callable[[], Awaitable[FrameStream]]


def served(room: FrameRoom, scenario: Callable[[Dial, list[FrameStream]], Awaitable[None]]) -> None:
    """Run `scenario` with a dialler for a port of frame streams that share `room`, and the accepted ends."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        accepted: list[FrameStream] = []
        dialled: list[FrameStream] = []
        server = await loop.create_server(
            lambda: FrameStream(SIZE, SIZE, on_made=accepted.append, room=room), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]

        async def dial() -> FrameStream:
            _, stream = await loop.create_connection(lambda: FrameStream(SIZE, SIZE), "127.0.0.1", port)
            dialled.append(stream)
            await until(lambda: len(accepted) == len(dialled))
            return stream

        try:
            await scenario(dial, accepted)
        finally:
            for stream in (*dialled, *accepted):
                stream.abort()
            server.close()
        await until(lambda: not room.bytes and not room.waiting)

    run(main())


def raw(stream: FrameStream) -> asyncio.Transport:
    assert stream._transport is not None
    return stream._transport


def test_large_frames_take_turns_and_all_arrive() -> None:
    room = FrameRoom(2 * SIZE)  # half of it is one host's: one frame

    async def scenario(dial: Dial, accepted: list[FrameStream]) -> None:
        streams = [await dial() for _ in range(6)]
        for n, stream in enumerate(streams):
            raw(stream).write(PREFIX.pack(SIZE, 1) + bytes([n]) * (SIZE - 1))  # all but the last byte
        await until(lambda: room.waiting == 5)
        assert room.bytes == SIZE
        held = sum(each._reader._large is not None for each in accepted)
        assert held == 1, "no share is reserved for the other connections"
        for n, stream in enumerate(streams):
            raw(stream).write(bytes([n]))
        for n, each in enumerate(accepted):
            head, body = await each.receive()
            assert (head, len(body), set(bytes(body))) == (bytes([n]), SIZE - 1, {n})
        await streams[0].send(b"small", [b"frames need no room"])
        assert (await accepted[0].receive())[0] == b"small"

    served(room, scenario)


def test_a_connection_that_leaves_returns_its_share() -> None:
    room = FrameRoom(2 * SIZE)

    async def scenario(dial: Dial, accepted: list[FrameStream]) -> None:
        rude, honest = await dial(), await dial()
        raw(rude).write(PREFIX.pack(SIZE, 1) + bytes(SIZE - 1))
        await until(lambda: room.bytes == SIZE)
        sending = asyncio.ensure_future(honest.send(b"h", [bytes(SIZE - 1)]))
        await until(lambda: room.waiting == 1)
        rude.abort()
        assert (await accepted[1].receive())[0] == b"h"
        assert accepted[0]._reader._large is None, "its memory is freed at once, not at the next garbage collection"
        await sending

    served(room, scenario)


def test_a_frame_that_never_ends_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinymq.net.unfinished_frames.FRAME_S", 0.05)
    monkeypatch.setattr("tinymq.net.unfinished_frames.FRAME_BYTES_PER_S_MIN", 1 << 30)

    async def scenario(dial: Dial, accepted: list[FrameStream]) -> None:
        rude, quiet = await dial(), await dial()
        raw(rude).write(FRAME[:9])
        with pytest.raises(DeadlineExceeded, match="took longer"):
            await accepted[0].receive()
        with pytest.raises(Closed):
            await rude.receive()
        await quiet.send(b"said nothing for as long")
        assert (await accepted[1].receive())[0]

    served(FrameRoom(SIZE), scenario)

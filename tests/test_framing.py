"""Frames arrive unchanged, however the bytes are split, and wrong lengths are refused early."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinymq.base.errors import InvalidFrame
from tinymq.net.framing import JOIN_BYTES_MAX, PREFIX, READ_BUFFER_BYTES, Chunk, FrameReader, pack_frame

FRAME_BYTES_MAX = 8 << 20
HEAD_BYTES_MAX = 1 << 20


def feed(reader: FrameReader, data: bytes, steps: list[int]) -> list[tuple[bytes, bytes]]:
    """Receive `data` in pieces of `steps` bytes, cycling through `steps`. Returns all frames."""
    frames = []
    position = turn = 0
    while position < len(data):
        buffer = reader.get_buffer()
        assert len(buffer) > 0
        count = min(steps[turn % len(steps)], len(buffer), len(data) - position)
        buffer[:count] = data[position : position + count]
        reader.received(count)
        position += count
        turn += 1
        while (frame := reader.next_frame()) is not None:
            frames.append((frame[0], bytes(frame[1])))
    return frames


def packed(head: bytes, body: list[Chunk]) -> bytes:
    chunks, total = pack_frame(head, body)
    data = b"".join(chunks)
    assert len(data) == total
    return data


SIZES = st.one_of(
    st.integers(0, 200), st.sampled_from([JOIN_BYTES_MAX, JOIN_BYTES_MAX + 1, READ_BUFFER_BYTES, 200_000])
)


@settings(max_examples=150, deadline=None)
@given(
    frames=st.lists(st.tuples(st.integers(0, 300), st.lists(SIZES, max_size=4)), min_size=1, max_size=6),
    steps=st.lists(st.sampled_from([1, 3, 7, 8, 9, 1000, 4096, 65_536, 1 << 20]), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
)
def test_any_cut_gives_the_same_frames(frames: list[tuple[int, list[int]]], steps: list[int], seed: int) -> None:
    if max(steps) < 1000:
        steps = [*steps, 5000]  # byte by byte through megabytes takes too long
    rng = random.Random(seed)
    sent = [(rng.randbytes(head), [rng.randbytes(size) for size in body]) for head, body in frames]
    data = b"".join(packed(head, list(body)) for head, body in sent)
    reader = FrameReader(FRAME_BYTES_MAX, HEAD_BYTES_MAX)
    assert feed(reader, data, steps) == [(head, b"".join(body)) for head, body in sent]
    assert reader.cut_short() is None


def test_every_cut_of_two_small_frames() -> None:
    data = packed(b"head", [b"body"]) + packed(b"", [])
    for cut in range(1, len(data)):
        reader = FrameReader(100, 50)
        assert feed(reader, data[:cut], [1000]) + feed(reader, data[cut:], [1000]) == [(b"head", b"body"), (b"", b"")]


def test_a_frame_of_just_the_bound_passes() -> None:
    reader = FrameReader(100, 50)
    assert feed(reader, packed(b"h" * 50, [b"b" * 50]), [7]) == [(b"h" * 50, b"b" * 50)]


@pytest.mark.parametrize(
    ("frame_bytes", "head_bytes"), [(101, 1), (100, 51), (10, 11), (0xFFFFFFFF, 0), (0xFFFFFFFF, 0xFFFFFFFF)]
)
def test_lengths_over_a_bound_are_refused_before_anything_is_buffered(frame_bytes: int, head_bytes: int) -> None:
    reader = FrameReader(100, 50)
    prefix = PREFIX.pack(frame_bytes, head_bytes)
    with pytest.raises(InvalidFrame, match="at most 100 and 50"):
        feed(reader, prefix, [1])
    assert len(reader.get_buffer()) <= READ_BUFFER_BYTES


def test_the_bounds_may_change_between_two_frames() -> None:
    reader = FrameReader(10, 10)
    buffer = reader.get_buffer()
    data = packed(b"first", []) + packed(b"second", [b"x" * 1000])
    buffer[: len(data)] = data
    reader.received(len(data))
    assert reader.next_frame() == (b"first", b"")
    reader.frame_bytes_max = 2000
    assert reader.next_frame() == (b"second", b"x" * 1000)


@pytest.mark.parametrize("body_bytes", [10, 300_000])
@pytest.mark.parametrize("missing", [1, 9])
def test_a_truncated_reply_is_reported(body_bytes: int, missing: int) -> None:
    reader = FrameReader(FRAME_BYTES_MAX, HEAD_BYTES_MAX)
    data = packed(b"head", [b"b" * body_bytes])
    assert feed(reader, data[:-missing], [4096]) == []
    assert isinstance(reader.cut_short(), InvalidFrame)


def test_long_pieces_are_sent_by_reference_and_short_ones_joined() -> None:
    long = bytes(JOIN_BYTES_MAX + 1)
    chunks, _ = pack_frame(b"head", [b"a", long, b"b", b"c", long])
    assert chunks[1] is long
    assert chunks[3] is long
    assert chunks[2] == b"bc"
    assert len(chunks) == 4
    assert len(pack_frame(b"head", [b"a", b"b"])[0]) == 1


def test_a_large_body_is_received_where_it_stays() -> None:
    reader = FrameReader(FRAME_BYTES_MAX, HEAD_BYTES_MAX)
    data = packed(b"head", [b"x" * 1_000_000])
    buffer = reader.get_buffer()
    buffer[:] = data[: len(buffer)]
    reader.received(len(buffer))
    assert reader.next_frame() is None
    rest = reader.get_buffer()
    assert len(rest) == len(data) - len(buffer), "one read takes exactly the missing bytes"
    rest[:] = data[len(buffer) :]
    reader.received(len(rest))
    frame = reader.next_frame()
    assert frame is not None
    assert isinstance(frame[1], memoryview)
    assert frame[1].obj is rest.obj

"""Damage as values: a list of small steps that change bytes, drawn by Hypothesis or a random source. Pure. A step is
four numbers, so that it shrinks; any four numbers are a valid step for any bytes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

Step = tuple[int, int, int, int]
"""The kind of change, its position, and two arguments."""

LIES_U32 = (0, 1, 0xFFFFFFFF, 0xFFFFFFFE, 0x7FFFFFFF, 0x80000000, 2, 7, 8, 255, 1 << 16, 1 << 20, 1 << 26, 1 << 30)
LIES_U64 = (*LIES_U32, (1 << 64) - 1, (1 << 63) - 1, 1 << 63, 1 << 40, 1 << 62, (1 << 64) - 8)
HEAD_BYTES = 128  # where most of what lies is
GROWTH_BYTES_MAX = 4096  # that one step may add

_Change = Callable[[bytearray, int, int, int, Sequence[bytes]], None]


def _flip(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    data[at] ^= 1 << (a % 8)


def _set_byte(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    data[at] = a % 256


def _set_u32(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    at -= at % 4 if b % 4 else 0
    data[at : at + 4] = struct.pack("<I", LIES_U32[a % len(LIES_U32)])[: len(data) - at]


def _set_u64(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    at -= at % 4 if b % 4 else 0
    data[at : at + 8] = struct.pack("<Q", LIES_U64[a % len(LIES_U64)])[: len(data) - at]


def _nudge(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    at -= at % 4 if b % 4 else 0
    part = data[at : at + 4]
    value = (int.from_bytes(part, "little") + a % 19 - 9) % (1 << 8 * len(part))
    data[at : at + 4] = value.to_bytes(len(part), "little")


def _cut(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    del data[at:]


def _delete(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    del data[at : at + 1 + a % (8 if b % 2 else 200)]


def _insert(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    data[at:at] = random.Random(a).randbytes(1 + b % 32)


def _zero(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    end = min(len(data), at + 1 + a % 600)
    data[at:end] = bytes(end - at)


def _double(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    data[at:at] = data[at : at + 1 + a % GROWTH_BYTES_MAX]


def _move(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    part = data[at : at + 1 + b % 96]
    to = a % len(data)
    data[to : to + len(part)] = part


def _splice(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    other = pool[a % len(pool)]
    data[at:] = other[b % (len(other) + 1) :][: len(data) - at + GROWTH_BYTES_MAX]


def _append(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    data += random.Random(a).randbytes(1 + b % 100)


def _nonsense(data: bytearray, at: int, a: int, b: int, pool: Sequence[bytes]) -> None:
    data[:] = random.Random(a).randbytes(b % 300)


CHANGES: tuple[_Change, ...] = (
    _flip, _set_byte, _set_u32, _set_u64, _nudge, _cut, _delete, _insert, _zero, _double, _move, _splice, _append,
    _nonsense,
)  # fmt: skip
_WORD = (1 << 32) - 1

steps = st.lists(
    st.tuples(
        st.integers(0, len(CHANGES) - 1), st.integers(0, _WORD), st.integers(0, _WORD), st.integers(0, _WORD)
    ),
    min_size=1,
    max_size=5,
)  # fmt: skip
"""Hypothesis draws these."""


def random_steps(rng: random.Random) -> list[Step]:
    """The same from a random source: a hundred times as fast, but without shrinking."""
    bits = rng.getrandbits
    kinds = len(CHANGES) - (rng.random() < 0.97)  # fully random input finds little
    return [(rng.randrange(kinds), bits(32), bits(32), bits(32)) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5)))]


def mutate(data: bytes, changes: Sequence[Step], pool: Sequence[bytes], head_bytes: int = HEAD_BYTES) -> bytes:
    """`data` after `changes`, half of them in its first `head_bytes`; `pool` are other inputs to take pieces of."""
    spoilt = bytearray(data)
    for kind, where, a, b in changes:
        if not spoilt:
            spoilt += b"\0"
        # even draws are near the beginning, where headers and metadata are
        reach = len(spoilt) if where % 2 else min(len(spoilt), head_bytes)
        CHANGES[kind](spoilt, (where >> 1) % reach, a, b, pool)
    return bytes(spoilt)

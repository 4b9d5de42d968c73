"""Delayed batches as bytes: the payloads of STAGED, of the DATA entry that publishes them, and of DISCARD.

A delayed batch is stored in a STAGED entry, where it takes no offsets. Its *schedule id* is the Raft index of that
entry. It ends exactly once: with a DATA entry of version 2, which has the records again and gives them their offsets,
or with a DISCARD entry. A STAGED entry with the schedule id of an earlier one has the same batch again, and takes its
place, so that the earlier one's segment can be removed. All numbers are little-endian.

    STAGED, version 1
    offset size field
         0    8 schedule_id      u64  0: the index of this entry
         8    8 deliver_at_us    i64  append time from which on the batch is due; 0: see delay_us
        16    8 delay_us         u64  from the append time of this entry until the batch is due
        24    8 staged_at_us     i64  append time of the batch's first STAGED entry; 0: of this entry
        32    8 max_timestamp_us i64  greatest record timestamp
        40    … batch                 tinymq/format/batch.py

    DATA, version 2
         0    4 count            u32  of the next field, at least 1
         4    4 reserved         u32  0
         8   8n schedule_ids     u64  rising: the delayed batches that this entry publishes
         …    … batch                 their records

    DISCARD, version 1
         0   8n schedule_ids     u64  rising: the delayed batches that this entry drops, at least 1
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from tinymq.base.errors import CorruptData
from tinymq.base.value import value

PUBLISHED_VERSION = 2  # of a DATA entry that publishes delayed batches
STAGED_HEAD_SIZE = 40
PUBLISHED_HEAD_SIZE = 16  # of a DATA entry that publishes one batch
ENDED_MAX = 1000  # delayed batches that one entry ends

Buffer = TypeVar("Buffer", bytes, memoryview)

_STAGED = struct.Struct("<QqQqq")
_COUNT = struct.Struct("<II")
_NUMBER_MAX = (1 << 63) - 1  # a schedule id is an index, and signed 64-bit integers take no larger one
assert _STAGED.size == STAGED_HEAD_SIZE


@value
class StagedHead:
    """The header of a batch in a STAGED entry: the fields in the order of the drawing, with its units."""

    schedule_id: int
    deliver_at_us: int
    delay_us: int
    staged_at_us: int
    max_timestamp_us: int

    def due_us(self, append_time_us: int) -> int:
        """When the batch is due, for an entry with this append time."""
        return self.deliver_at_us or min(append_time_us + self.delay_us, _NUMBER_MAX)


def pack_staged(head: StagedHead, batch: bytes) -> bytes:
    """The payload of a STAGED entry."""
    packed = _STAGED.pack(
        head.schedule_id, head.deliver_at_us, head.delay_us, head.staged_at_us, head.max_timestamp_us
    )  # fmt: skip
    return packed + batch


def unpack_staged(payload: Buffer) -> tuple[StagedHead, Buffer]:
    """The inverse of `pack_staged`. The batch is not checked. Raises CorruptData."""
    if len(payload) <= STAGED_HEAD_SIZE:
        raise CorruptData("a STAGED entry is cut short")
    head = StagedHead(*_STAGED.unpack_from(payload))
    if max(head.schedule_id, head.delay_us) > _NUMBER_MAX or min(head.deliver_at_us, head.staged_at_us) < 0:
        raise CorruptData("a STAGED entry is out of range")
    return head, payload[STAGED_HEAD_SIZE:]


def pack_published(schedule_ids: Sequence[int], batch: bytes) -> bytes:
    """The payload of a DATA entry of version 2."""
    return b"".join((_COUNT.pack(len(schedule_ids), 0), _pack_ids(schedule_ids), batch))


def unpack_published(payload: Buffer) -> tuple[tuple[int, ...], Buffer]:
    """The inverse of `pack_published`. The batch is not checked. Raises CorruptData."""
    if len(payload) < _COUNT.size:
        raise CorruptData("a DATA entry of version 2 is cut short")
    count, reserved = _COUNT.unpack_from(payload)
    end = _COUNT.size + 8 * count
    if reserved or not 1 <= count <= ENDED_MAX or len(payload) <= end:
        raise CorruptData("a DATA entry of version 2 is out of range")
    return _unpack_ids(payload[_COUNT.size : end]), payload[end:]


def pack_discarded(schedule_ids: Sequence[int]) -> bytes:
    """The payload of a DISCARD entry."""
    return _pack_ids(schedule_ids)


def unpack_discarded(payload: bytes | memoryview) -> tuple[int, ...]:
    """The inverse of `pack_discarded`. Raises CorruptData."""
    if not payload or len(payload) % 8 or len(payload) > 8 * ENDED_MAX:
        raise CorruptData("a DISCARD entry is out of range")
    return _unpack_ids(payload)


def _pack_ids(schedule_ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(schedule_ids)}Q", *schedule_ids)


def _unpack_ids(data: bytes | memoryview) -> tuple[int, ...]:
    ids: tuple[int, ...] = struct.unpack(f"<{len(data) // 8}Q", data)
    if not ids[0] or ids[-1] > _NUMBER_MAX or any(after <= before for before, after in pairwise(ids)):
        raise CorruptData("schedule ids are out of range, or do not rise")
    return ids

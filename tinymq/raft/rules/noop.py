"""The payload of a NOOP entry: does its leader know the cluster's time, and did append times jump?

An empty payload says that the time is known and that append times did not jump. Otherwise:

    offset size field
         0    1 flags    u8   1: the leader does not know the time. Append times may be too early from this entry on,
                              up to the next NOOP without this flag
         1    8 jump_us  u64  by how much this append time is later than the append clock was right before it

Little-endian. A payload of any other length, from a later version, means the same as an empty one.
"""

from __future__ import annotations

import struct

from tinymq.base.value import value

_NOOP = struct.Struct("<BQ")
_UNKNOWN = 1


@value
class NoopNote:
    """A NOOP, unpacked."""

    known: bool = True
    jump_us: int = 0


def pack_noop(note: NoopNote) -> bytes:
    return b"" if note == NoopNote() else _NOOP.pack(0 if note.known else _UNKNOWN, note.jump_us)


def parse_noop(payload: bytes | memoryview) -> NoopNote:
    """Unpack any payload without an error, because the entry is committed, whatever it says."""
    if len(payload) != _NOOP.size:
        return NoopNote()
    flags, jump_us = _NOOP.unpack(payload)
    return NoopNote(not flags & _UNKNOWN, jump_us)

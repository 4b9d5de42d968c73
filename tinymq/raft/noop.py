"""What a NOOP entry says of append times: whether its leader knows the cluster's time.

The payload of a NOOP is empty, which says that the time is known and that append times did not jump; or:

    offset size field
         0    1 flags    u8   1: the leader does not know the time. Append times may be too early from this entry on,
                              up to the next NOOP without this flag
         1    8 jump_us  u64  by how much this append time is later than the append clock was right before it

Little-endian. A payload of another length, of a later version, says what an empty one does.
"""

from __future__ import annotations

import struct

from tinymq.value import value

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
    """Total: it is committed, whatever it says."""
    if len(payload) != _NOOP.size:
        return NoopNote()
    flags, jump_us = _NOOP.unpack(payload)
    return NoopNote(not flags & _UNKNOWN, jump_us)

"""Packing the answer to a fetch by hand: protobuf's own code copies a megabyte of frames several times over.

It costs a broker 2.2 ms of processor time per megabyte in that code, and 0.15 here (4 MiB, one copy).
"""

from __future__ import annotations

from tinymq.base.value import value
from tinymq.log.segment.reads import Frames, StoredFrames
from tinymq.proto import tinymq_pb2 as pb

_FRAMES = bytes([pb.FetchReply.FRAMES_FIELD_NUMBER << 3 | 2])  # the tag: a field with a length


@value
class FetchAnswer:
    """A FetchReply, but for its frames, and those."""

    head: pb.FetchReply
    frames: Frames

    def SerializeToString(self) -> bytes:
        """The message as it travels. The frames come last: a message's fields may come in any order."""
        assert not isinstance(self.frames, StoredFrames), "who sends no files is answered with none"
        if not self.frames:
            return self.head.SerializeToString()
        return b"".join((self.head.SerializeToString(), _FRAMES, _varint(len(self.frames)), self.frames))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

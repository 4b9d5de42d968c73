"""Reading a segment from its first byte to its last, verifying everything: at opening, and to rebuild an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tinymq.entry import HEADER_SIZE, EntryHeader, crc32c, parse_header
from tinymq.errors import CorruptData
from tinymq.log.files import File
from tinymq.log.segment import SEGMENT_HEADER_SIZE, Segment

SLAB_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Problem:
    """Why reading ended before the file did. Zeros to the end of the file are none: they are allocated space."""

    position: int
    what: str


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame, verified but for its place in the chain."""

    position: int
    header: EntryHeader
    slab: bytes
    at: int  # where it begins in `slab`

    @property
    def payload(self) -> bytes:
        return self.slab[self.at + HEADER_SIZE : self.at + self.header.size]


def scan_segment(file: File, segment: Segment, note: Callable[[EntryHeader, int], None]) -> Problem | None:
    """Append all whole, chained frames of `file` to `segment`, and call `note` with each header and position.
    Raises StorageError when the disk does not answer."""
    try:
        for frame in frames(file):
            if problem := segment.misfit(frame.header):
                return Problem(frame.position, problem)
            note(frame.header, segment.append(frame.header))
    except CorruptData as error:
        return Problem(int(error.detail["position"]), error.message)
    return None


def frames(file: File, position: int = SEGMENT_HEADER_SIZE) -> Iterator[Frame]:
    """Frames from `position` on. Raises CorruptData, whose detail has the position, at the first that is not whole."""
    slab = b""
    start = position  # of the slab in the file
    while True:
        at = position - start
        if len(slab) - at < HEADER_SIZE:
            slab, start, at = file.read(position, SLAB_BYTES), position, 0
            if not slab:
                return
        try:
            header = parse_header(slab, at)
            if len(slab) - at < header.size:
                slab, start, at = file.read(position, max(SLAB_BYTES, header.size)), position, 0
            if len(slab) - at < header.size:
                raise CorruptData("truncated entry payload")
            if crc32c(slab[at + HEADER_SIZE : at + header.size]) != header.payload_crc:
                raise CorruptData("entry payload checksum mismatch")
        except CorruptData as error:
            if _only_zeros(file, position):
                return
            raise CorruptData(error.message, position=position) from error
        yield Frame(position, header, slab, at)
        position += header.size


def _only_zeros(file: File, position: int) -> bool:
    while slab := file.read(position, SLAB_BYTES):
        if slab != bytes(len(slab)):
            return False
        position += len(slab)
    return True

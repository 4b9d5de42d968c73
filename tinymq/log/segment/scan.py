"""Scan of a segment from its first byte to its last, with every checksum verified: at opening, and for `log dump`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tinymq.base.errors import CorruptData
from tinymq.base.value import value
from tinymq.format.entry import HEADER_SIZE, EntryHeader, crc32c, parse_header
from tinymq.log.files.files import File
from tinymq.log.segment.segment import SEGMENT_HEADER_SIZE, Segment

SLAB_BYTES = 256 * 1024  # read at a time: several frames, or zeros behind them
LARGE_BYTES = SLAB_BYTES // 2  # larger payloads are read by themselves: one that is cut out of a slab is copied twice


@value
class Problem:
    """Why the scan ended before the file. Zeros up to the end of the file are no problem: they are allocated space."""

    position: int
    what: str


@value
class Frame:
    """A whole frame. Its checksums are verified, its place in the chain is not."""

    position: int
    header: EntryHeader
    head: bytes  # the header's HEADER_SIZE bytes
    payload: bytes


def scan_segment(file: File, segment: Segment, note: Callable[[EntryHeader, int], None]) -> Problem | None:
    """Add the whole and chained frames of `file` to `segment`, and call `note` with each header and position.

    Returns the first problem. Raises StorageError if the disk does not answer.
    """
    try:
        for frame in frames(file):
            if problem := segment.misfit(frame.header):
                return Problem(frame.position, problem)
            note(frame.header, segment.append(frame.header))
    except CorruptData as error:
        return Problem(int(error.detail["position"]), error.message)
    return None


def frames(file: File, position: int = SEGMENT_HEADER_SIZE, bytes_max: int | None = None) -> Iterator[Frame]:
    """Frames from `position` on: at least one, and no more than fit into `bytes_max`.

    Raises CorruptData, whose detail has the position, at the first frame that is not whole.
    """
    first = position
    slab, start, ahead = b"", position, SLAB_BYTES  # `slab` begins at byte `start`; the next one has `ahead` bytes
    while True:
        slab_position = position - start
        if len(slab) - slab_position < HEADER_SIZE:
            slab, start, slab_position = file.read(position, ahead), position, 0
            if not slab:
                return
        try:
            header = parse_header(slab, slab_position)
            if bytes_max is not None and first < position and position + header.size > first + bytes_max:
                return
            head, large = slab[slab_position : slab_position + HEADER_SIZE], header.length >= LARGE_BYTES
            if not large and len(slab) - slab_position < header.size:
                slab, start, slab_position = file.read(position, SLAB_BYTES), position, 0
            if large:
                # A damaged length may claim 64 MiB, which a read would allocate before it reaches the file's end.
                left = max(0, file.size() - position - HEADER_SIZE)
                payload = file.read(position + HEADER_SIZE, min(header.length, left))
            else:
                payload = slab[slab_position + HEADER_SIZE : slab_position + header.size]
            if len(payload) < header.length:
                raise CorruptData("truncated entry payload")
            if crc32c(payload) != header.payload_crc:
                raise CorruptData("entry payload checksum mismatch")
        except CorruptData as error:
            if _only_zeros(file, position):
                return
            raise CorruptData(error.message, position=position) from error
        yield Frame(position, header, head, payload)
        position += header.size
        ahead = HEADER_SIZE if large else SLAB_BYTES  # behind a large frame there is mostly another large one


def _only_zeros(file: File, position: int) -> bool:
    """Whether the file has nothing but zeros from `position` on."""
    while slab := file.read(position, SLAB_BYTES):
        if slab != bytes(len(slab)):
            return False
        position += len(slab)
    return True

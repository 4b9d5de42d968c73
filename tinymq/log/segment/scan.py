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
class VerifiedFrame:
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


def frames(file: File, position: int = SEGMENT_HEADER_SIZE, bytes_max: int | None = None) -> Iterator[VerifiedFrame]:
    """Frames from `position` on: at least one, and no more than fit into `bytes_max`.

    Raises CorruptData, whose detail has the position, at the first frame that is not whole.
    """
    first = position
    slabs = _Slabs(file)
    while head := slabs.read(position, HEADER_SIZE):
        try:
            header = parse_header(head)
            if bytes_max is not None and first < position and position + header.size > first + bytes_max:
                return
            payload = slabs.read_payload(position + HEADER_SIZE, header.length)
            if len(payload) < header.length:
                raise CorruptData("truncated entry payload")
            if crc32c(payload) != header.payload_crc:
                raise CorruptData("entry payload checksum mismatch")
        except CorruptData as error:
            # A file is allocated ahead of its frames, so zeros up to its end are where the next frames will be.
            if _only_zeros(file, position):
                return
            raise CorruptData(error.message, position=position) from error
        yield VerifiedFrame(position, header, head, payload)
        position += header.size


class _Slabs:
    """Reads a file in slabs, so that many small frames cost one read."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._slab = b""
        self._start = 0  # the slab's position in the file
        self._ahead = SLAB_BYTES  # size of the next slab

    def read(self, position: int, length: int) -> bytes:
        """Return `length` bytes, or fewer at the end of the file."""
        begin = position - self._start
        if len(self._slab) < begin + length:
            self._slab, self._start, begin = self._file.read(position, max(length, self._ahead)), position, 0
        return self._slab[begin : begin + length]

    def read_payload(self, position: int, length: int) -> bytes:
        """As `read`. A large payload is read by itself: in a slab it would be copied twice."""
        if length < LARGE_BYTES:
            self._ahead = SLAB_BYTES
            return self.read(position, length)
        self._ahead = HEADER_SIZE  # behind a large frame there is mostly another large one
        # A damaged length may claim 64 MiB, which a read would allocate before it reaches the file's end.
        return self._file.read(position, min(length, max(0, self._file.size() - position)))


def _only_zeros(file: File, position: int) -> bool:
    """Whether the file has nothing but zeros from `position` on."""
    while slab := file.read(position, SLAB_BYTES):
        if slab != bytes(len(slab)):
            return False
        position += len(slab)
    return True

"""The requests of a log to the disk: frozen values, made on the loop and carried out by the writer in their order.

Each value has everything that its request needs (paths, positions, bytes), so the writer never looks at a log that the
loop changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinymq.base.value import value
from tinymq.format.entry import Entry
from tinymq.log.broker_files.durability_marks import DurabilityMark

SMALL_BYTES = 16 * 1024


@value
class Create:
    """Begin a new segment. Its directory exists."""

    directory: str
    path: str
    header: bytes


@value
class Write:
    """Write frames at the end of a segment."""

    path: str
    position: int
    chunks: Sequence[bytes]


@value
class Truncate:
    """Remove the entries above `mark.index`: cut `path` to `size`, and remove the later files.

    Before that, the group's durable mark must be at or below `mark`.
    """

    directory: str
    path: str
    size: int
    removed: tuple[str, ...]
    mark: DurabilityMark


@value
class Remove:
    """Remove the oldest segments as a whole, with their indexes and snapshots.

    Before that, the group's durable mark must say `first_index`.
    """

    directory: str
    paths: tuple[str, ...]
    first_index: int


@value
class Seal:
    """A segment is full: cut off the zeros behind its end, and write its index file."""

    directory: str
    path: str
    size: int
    index_path: str
    index: bytes


@value
class PutSnapshot:
    """Write a packed snapshot."""

    directory: str
    path: str
    data: bytes


Operation = Create | Write | Truncate | Remove | Seal | PutSnapshot


class OperationQueue:
    """The operations that a log has queued since the last sync batch, in order. Consecutive frames of one segment are
    one Write, whose chunks grow until another operation follows."""

    __slots__ = ("_chunks", "_operations")

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._chunks: list[bytes] | None = None  # those of the last operation, if it is a Write

    def add(self, operation: Operation) -> None:
        """Queue any operation but a Write."""
        self._operations.append(operation)
        self._chunks = None

    def write(self, path: str, position: int, entry: Entry) -> None:
        """Queue the frame of `entry`, which lies at `position`, the end of the segment at `path`."""
        chunks = self._chunks
        if chunks is None:
            chunks = self._chunks = []
            self._operations.append(Write(path, position, chunks))
        chunks.append(entry.head)
        if entry.payload:
            chunks.append(entry.payload)

    def take(self) -> list[Operation]:
        """Return all operations, and leave none. No chunk is added to them any more."""
        operations, self._operations, self._chunks = self._operations, [], None
        return operations


def is_small(operations: Sequence[Operation]) -> bool:
    """Whether the operations write one small entry, and nothing else."""
    if len(operations) != 1 or not isinstance(operations[0], Write):
        return False
    chunks = operations[0].chunks
    return len(chunks) <= 2 and sum(map(len, chunks)) <= SMALL_BYTES


def mark_before(operations: Iterable[Operation], mark: DurabilityMark) -> DurabilityMark:
    """The mark that must be durable before any of `operations` is carried out. It is `mark` if they remove nothing."""
    for operation in operations:
        if isinstance(operation, Truncate):
            mark = mark.lowered_to(operation.mark)
        elif isinstance(operation, Remove):
            mark = mark.lowered_to(DurabilityMark(mark.group, index=mark.index, first_index=operation.first_index))
    return mark

"""The synced part of a disk, which every power cut leaves: synced sectors under synced names."""

from __future__ import annotations

from collections.abc import Iterable

from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.log.files.layout import SEGMENT, SNAPSHOT, first_index_of, group_directory
from tinymq.log.segment.segment import Segment
from tinymq.simulation.faulty_files import FaultyFiles
from tinymq.simulation.faulty_inodes import FaultyDirectory, Inode


class SyncedFiles:
    """The durable part of one disk, read-only: as much of `Files` as reading votes needs."""

    def __init__(self, files: FaultyFiles) -> None:
        self._files = files
        self._found: dict[str, int] = {}  # by path: the end of the last frame that was looked for

    def open(self, path: str) -> SyncedFile:
        node = self.node(path)
        if not isinstance(node, Inode):
            raise FileNotFoundError(path)
        return SyncedFile(node)

    def node(self, path: str) -> Inode | FaultyDirectory | None:
        node: Inode | FaultyDirectory | None = self._files._root
        for name in path.split("/"):
            node = node.durable.get(name) if isinstance(node, FaultyDirectory) else None
        return node

    def holds(self, group: GroupId, entry: Entry) -> bool:
        """Return whether the disk holds this entry, or a log that begins after it."""
        path = group_directory(group)
        folder = self.node(path)
        names = folder.durable if isinstance(folder, FaultyDirectory) else {}
        firsts = sorted((first, name) for name in names if (first := first_index_of(name, SEGMENT)) is not None)
        seen = self._files._node(path)
        begins = _firsts(seen.names if isinstance(seen, FaultyDirectory) else {}, SEGMENT)[:1]
        both = {*_firsts(names, SEGMENT)} & {*_firsts(names, SNAPSHOT)}
        if begins and begins[0] > entry.index and begins[0] in both:
            return True  # a snapshot replaces it, whether or not the removal of the log's head is synced
        below = [(first, name) for first, name in firsts if first <= entry.index]
        if not below:
            return bool(firsts)
        name = below[-1][1]
        node = names[name]
        return isinstance(node, Inode) and self._has_frame(f"{path}/{name}", node.durable, entry)

    def _has_frame(self, path: str, content: bytearray, entry: Entry) -> bool:
        at = content.find(entry.head, self._found.get(path, 0))
        if at < 0:
            at = content.find(entry.head)
        begin = at + len(entry.head)
        end = begin + len(entry.payload)
        if at < 0 or content[begin:end] != entry.payload:
            return False
        self._found[path] = end
        return True

    def holds_segment(self, segment: Segment) -> bool:
        """Return whether the disk holds all used bytes of the segment, as programs see them."""
        node = self.node(segment.path)
        if not isinstance(node, Inode) or node is not self._files._node(segment.path):
            return False
        return node.durable[: segment.end] == node.content[: segment.end]


def _firsts(names: Iterable[str], kind: str) -> list[int]:
    """Return the first indexes of a group's files of one kind."""
    return sorted(first for name in names if (first := first_index_of(name, kind)) is not None)


class SyncedFile:
    """A file as the disk holds it."""

    def __init__(self, inode: Inode) -> None:
        self._inode = inode

    def size(self) -> int:
        return len(self._inode.durable)

    def read(self, position: int, length: int) -> bytes:
        return bytes(memoryview(self._inode.durable)[position : position + length])

    def close(self) -> None:
        pass

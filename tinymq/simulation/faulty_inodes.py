"""The state of a faulty disk: files by sector and directories by name, as programs see them and as the disk has
them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

SECTOR_BYTES = 512


@dataclass(slots=True, eq=False)
class Inode:
    """The content of one file, under any name."""

    content: bytearray = field(default_factory=bytearray)  # as programs see it
    durable: bytearray = field(default_factory=bytearray)  # as the disk has it
    dirty: set[int] = field(default_factory=set)  # sectors of `content` that a sync would write
    sized: bool = False  # the size changed since the last sync

    def touch(self, start: int, end: int) -> None:
        self.dirty.update(range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def write(self, position: int, data: bytes) -> None:
        """Write as a program does. A gap before `position` is filled with zeros."""
        end = position + len(data)
        if len(self.content) < end:
            self.touch(len(self.content), end)
            resize(self.content, end)
            self.sized = True
        self.content[position:end] = data
        self.touch(position, end)

    def truncate(self, size: int) -> None:
        if size != len(self.content):
            self.touch(min(size, len(self.content)), max(size, len(self.content)))
            resize(self.content, size)
            self.sized = True

    def sync(self, sectors: Iterable[int], size: int) -> None:
        """Make these sectors and this size durable."""
        resize(self.durable, size)
        start = end = 0
        for sector in sorted(sectors):  # adjacent sectors together: a preallocated file has thousands
            if sector * SECTOR_BYTES != end:
                self._copy(start, min(end, size))
                start = sector * SECTOR_BYTES
            end = (sector + 1) * SECTOR_BYTES
        self._copy(start, min(end, size))

    def _copy(self, start: int, end: int) -> None:
        if start < end:
            part = self.content[start:end]
            self.durable[start : start + len(part)] = part

    def clean(self) -> None:
        self.dirty.clear()
        self.sized = False


def resize(content: bytearray, size: int) -> None:
    if len(content) > size:
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


@dataclass(slots=True, eq=False)
class FaultyDirectory:
    """One directory. A directory that is removed and made again is a new object: a sync of its names concerns the new
    one only, and a removal that a power cut undoes the old one only."""

    names: dict[str, Inode | FaultyDirectory] = field(default_factory=dict)  # as programs see them
    durable: dict[str, Inode | FaultyDirectory] = field(default_factory=dict)  # as the disk has them

    def files(self, prefix: str = "") -> Iterator[tuple[str, Inode]]:
        """Paths and files in this directory and below, as programs see them."""
        for name, node in self.names.items():
            if isinstance(node, FaultyDirectory):
                yield from node.files(f"{prefix}{name}/")
            else:
                yield prefix + name, node

    def restart(self) -> None:
        """Forget everything that the disk does not have, here and below."""
        self.names = dict(self.durable)
        for node in self.names.values():
            if isinstance(node, FaultyDirectory):
                node.restart()


@dataclass(frozen=True, slots=True)
class NameChange:
    """A name that was made, replaced or (`node` None) removed. Programs see it at once, and the disk has it later."""

    directory: FaultyDirectory
    name: str
    node: Inode | FaultyDirectory | None
    old: tuple[FaultyDirectory, str] | None = None  # the name that `node` had before, gone in the same step

    def show(self) -> None:
        """Let programs see the change."""
        if self.old is not None:
            self.old[0].names.pop(self.old[1])
        if self.node is None:
            self.directory.names.pop(self.name)
        else:
            self.directory.names[self.name] = self.node

    def keep(self) -> None:
        """Let the disk have the change."""
        if self.old is not None and self.old[0].durable.get(self.old[1]) is self.node:
            del self.old[0].durable[self.old[1]]
        if self.node is None:
            self.directory.durable.pop(self.name, None)
        else:
            self.directory.durable[self.name] = self.node

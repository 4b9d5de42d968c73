"""What a faulty disk remembers: files sector by sector and folders name by name, as programs see them and as the
disk holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

SECTOR_BYTES = 512


@dataclass(slots=True, eq=False)
class Inode:
    """One file, whatever its names."""

    content: bytearray = field(default_factory=bytearray)  # as programs see it
    durable: bytearray = field(default_factory=bytearray)  # as the disk holds it
    dirty: set[int] = field(default_factory=set)  # sectors of `content` that a sync would write
    sized: bool = False  # the size changed since the last sync

    def touch(self, start: int, end: int) -> None:
        self.dirty.update(range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def write(self, position: int, data: bytes) -> None:
        """As programs do; a gap before it is zeros."""
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
        for sector in sorted(sectors):  # neighbours together: a preallocated file has thousands
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
class Directory:
    """One folder. One that was removed and made again is another one: syncing the new one's names, or losing the
    removal, concerns the new one alone, or the old one alone."""

    names: dict[str, Inode | Directory] = field(default_factory=dict)  # as programs see them
    durable: dict[str, Inode | Directory] = field(default_factory=dict)  # as the disk holds them

    def files(self, prefix: str = "") -> Iterator[tuple[str, Inode]]:
        """Paths and files in it and below, as programs see them."""
        for name, node in self.names.items():
            if isinstance(node, Directory):
                yield from node.files(f"{prefix}{name}/")
            else:
                yield prefix + name, node

    def restart(self) -> None:
        """Nothing but the disk is left, here and below."""
        self.names = dict(self.durable)
        for node in self.names.values():
            if isinstance(node, Directory):
                node.restart()


@dataclass(frozen=True, slots=True)
class Change:
    """A name that was made, replaced, or (`node` None) removed: seen at once, and durable later."""

    folder: Directory
    name: str
    node: Inode | Directory | None
    old: tuple[Directory, str] | None = None  # the name that `node` had before, gone in the same step

    def show(self) -> None:
        """Programs see it."""
        if self.old is not None:
            self.old[0].names.pop(self.old[1])
        if self.node is None:
            self.folder.names.pop(self.name)
        else:
            self.folder.names[self.name] = self.node

    def keep(self) -> None:
        """The disk has it."""
        if self.old is not None and self.old[0].durable.get(self.old[1]) is self.node:
            del self.old[0].durable[self.old[1]]
        if self.node is None:
            self.folder.durable.pop(self.name, None)
        else:
            self.folder.durable[self.name] = self.node

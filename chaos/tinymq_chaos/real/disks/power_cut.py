"""A power cut on the data directory of a dead broker: unsynced changes are lost, all or some of them.

Of unsynced content any sectors of 512 bytes survive, of an unsynced size either one or a size between, of unsynced
names each change or not, as the random source decides. These are the rules of the simulator's disk, whose tree of names
it uses (tinymq/simulation/faulty_inodes.py).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinymq.simulation.faulty_inodes import SECTOR_BYTES, FaultyDirectory, Inode, NameChange
from tinymq_chaos.real.disks import unsynced_changes as unsynced
from tinymq_chaos.real.disks.unsynced_changes import NAMES, ChangeKind, JournalRecord

_CONTENT = frozenset({ChangeKind.WRITE, ChangeKind.TRUNCATE, ChangeKind.SYNCED, ChangeKind.SYNC_FAILED})
_CHANGES = frozenset({ChangeKind.WRITE, ChangeKind.TRUNCATE})


@dataclass(frozen=True, slots=True)
class PowerCutLoss:
    """The losses of a power cut."""

    sectors: int  # sectors with older content now
    sizes: int  # files that are longer or shorter
    names: int  # undone changes of names
    at_stake: int = 0  # unsynced sectors, sizes and names, all of which it might have taken

    @property
    def text(self) -> str:
        return f"{self.sectors + self.sizes + self.names} lost of {self.at_stake} that were not synced"

    def __str__(self) -> str:
        return f"{self.sectors} sectors, {self.sizes} sizes, {self.names} names lost"


@dataclass(slots=True, eq=False)
class _Content:
    """The journal's records of one file, in order."""

    records: list[JournalRecord] = field(default_factory=list)
    dirty: dict[int, tuple[int, int]] = field(default_factory=dict)  # by sector: first and last unsynced change
    lost: set[int] = field(default_factory=set)  # sectors that a failed sync marked clean
    synced: dict[int, int] = field(default_factory=dict)  # by sector: the disk has its content from after this change
    sizes: dict[int, int] = field(default_factory=dict)  # by change: the size after it
    resized: bool = False  # since the last sync
    durable_size: int | None = None  # None: it never changed


class DeadDirectory:
    """A dead broker's data directory, and its unsynced changes. It only reads, until `lose`."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._records = list(unsynced.read(data))
        self._root = FaultyDirectory()
        self._sources: dict[Inode, Path] = {}
        self._files: dict[int, Inode] = {}  # by their number in the journal
        # by the sequence of a change of names: the node that it names
        self._nodes: dict[int, Inode | FaultyDirectory | None] = {}
        self._replaced: dict[int, Inode] = {}
        self._pending: list[tuple[int, NameChange]] = []
        self._scan(data, self._root)
        self._go_back()
        self._make_durable(self._root)
        for record in self._records:
            self._go_forward(record)
        self._contents: dict[Inode, _Content] = {}
        for record in self._records:
            if record.kind in _CONTENT and record.file in self._files:
                _take(self._contents.setdefault(self._files[record.file], _Content()), record)

    @property
    def unsynced(self) -> bool:
        """Return whether a power cut may take anything away."""
        return bool(self._pending) or any(c.dirty or c.lost or c.resized for c in self._contents.values())

    def lose(self, rng: random.Random) -> PowerCutLoss:
        """Cut the power at the moment of the process's death.

        The data directory then is what the disk holds, with another boot id.
        """
        names, at_stake = 0, len(self._pending)
        for _, change in self._pending:
            if rng.random() < 0.5:
                change.keep()
            else:
                names += 1
        self._root.restart()
        sectors = sizes = 0
        for inode in dict.fromkeys(inode for _, inode in self._root.files()):
            content, source = self._contents.get(inode), self._sources.get(inode)
            if content is not None and source is not None:
                at_stake += len({*content.dirty, *content.lost}) + content.resized
                lost, resized = _cut(content, source, rng)
                sectors, sizes = sectors + lost, sizes + resized
        self._settle()
        unsynced.forget(self._data, rng.randbytes(16))
        return PowerCutLoss(sectors, sizes, names, at_stake)

    def tear(self, rng: random.Random) -> PowerCutLoss:
        """Like `lose`, but keep names and sizes, and tear the last write of one file off at any byte."""
        torn = [(inode, content) for inode, content in self._contents.items() if inode in self._sources]
        torn = [(inode, content) for inode, content in torn if _unsynced_writes(content)]
        lost = 0
        if torn:
            inode, content = rng.choice(torn)
            lost = _tear(content, self._sources[inode], rng)
        unsynced.forget(self._data, rng.randbytes(16))
        return PowerCutLoss(lost, 0, 0, lost)

    # The tree of names

    def _scan(self, path: Path, folder: FaultyDirectory) -> None:
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                if path != self._data or entry.name != unsynced.FOLDER:
                    inner = folder.names[entry.name] = FaultyDirectory()
                    self._scan(path / entry.name, inner)
            else:
                folder.names[entry.name] = inode = Inode()
                self._sources[inode] = path / entry.name

    def _go_back(self) -> None:
        """Go back to the names at the beginning of the journal."""
        last = next((record for record in reversed(self._records) if record.kind in NAMES), None)
        if last is not None and not self._was_done(last):
            self._records.remove(last)
        for record in reversed(self._records):
            if record.kind is ChangeKind.OPEN:
                node = self._folder(record.path)[0].names.get(_name(record.path))
                if isinstance(node, Inode):
                    self._files.setdefault(record.file, node)
            elif record.kind in NAMES:
                self._undo(record)

    def _was_done(self, last: JournalRecord) -> bool:
        folder, name = self._folder(last.path)
        there = name in folder.names
        return there if last.kind in (ChangeKind.CREATE, ChangeKind.MAKE_FOLDER) else not there

    def _undo(self, record: JournalRecord) -> None:
        folder, name = self._folder(record.path)
        if record.kind in (ChangeKind.CREATE, ChangeKind.MAKE_FOLDER):
            node: Inode | FaultyDirectory | None = folder.names.pop(name)
            if isinstance(node, Inode):
                self._files.setdefault(record.file, node)
        elif record.kind is ChangeKind.REMOVE_FOLDER:
            folder.names[name] = node = FaultyDirectory()
            self._nodes[record.sequence] = None
            return
        elif record.kind is ChangeKind.REMOVE:
            folder.names[name] = self._gone(record.file)
            node = None
        else:
            new_folder, new_name = self._folder(record.new_path)
            node = new_folder.names.pop(new_name)
            assert isinstance(node, Inode), record
            self._files.setdefault(record.file, node)
            folder.names[name] = node
            if record.a:
                new_folder.names[new_name] = self._gone(record.a)
        self._nodes[record.sequence] = node

    def _gone(self, file: int) -> Inode:
        """Add a file whose name was removed: its content is there if the removal is not durable."""
        if file not in self._files:
            inode = self._files[file] = Inode()
            if (kept := unsynced.kept_path(self._data, file)).exists():
                self._sources[inode] = kept
        return self._files[file]

    def _go_forward(self, record: JournalRecord) -> None:
        if record.kind is ChangeKind.SYNCED_FOLDER:
            folder = self._node(record.path)
            keeping = [change for at, change in self._pending if change.directory is folder and at <= record.a]
            for change in keeping:
                change.keep()
            self._pending = [(at, change) for at, change in self._pending if change not in keeping]
        elif record.kind in NAMES:
            node = self._nodes[record.sequence]
            if record.kind is ChangeKind.RENAME:
                change = NameChange(*self._folder(record.new_path), node, old=self._folder(record.path))
            else:
                change = NameChange(*self._folder(record.path), node)
            change.show()
            self._pending.append((record.sequence, change))

    def _make_durable(self, folder: FaultyDirectory) -> None:
        folder.durable = dict(folder.names)
        for node in folder.names.values():
            if isinstance(node, FaultyDirectory):
                self._make_durable(node)

    def _node(self, path: str) -> Inode | FaultyDirectory | None:
        node: Inode | FaultyDirectory | None = self._root
        for name in path.split("/") if path else ():
            node = node.names.get(name) if isinstance(node, FaultyDirectory) else None
        return node

    def _folder(self, path: str) -> tuple[FaultyDirectory, str]:
        """Return the directory of a path, and the name in it."""
        folder = self._node(path.rpartition("/")[0])
        assert isinstance(folder, FaultyDirectory), path
        return folder, _name(path)

    def _settle(self) -> None:
        """Make the data directory match the tree."""
        stage = self._data / unsynced.FOLDER / "stage"
        stage.mkdir(parents=True)
        wanted: dict[str, Inode] = dict(self._root.files())
        staged: dict[Inode, Path] = {}
        for number, (inode, source) in enumerate(self._sources.items()):
            path = source.relative_to(self._data).as_posix()
            if wanted.get(path) is not inode:
                staged[inode] = stage / str(number)
                os.rename(source, staged[inode])
        for folder, _, _ in sorted(os.walk(self._data), reverse=True):
            path = Path(folder).relative_to(self._data).as_posix()
            if (
                path != "."
                and path.split("/")[0] != unsynced.FOLDER
                and not isinstance(self._node(path), FaultyDirectory)
            ):
                os.rmdir(folder)
        for path in _folders(self._root):
            (self._data / path).mkdir(exist_ok=True)
        for (
            path,
            inode,
            # a file has two names if it was created under one, renamed, and only the rename is durable
        ) in wanted.items():
            if not (target := self._data / path).exists():
                os.link(staged.get(inode, self._sources[inode]), target)
        for left in stage.iterdir():
            left.unlink()
        stage.rmdir()


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _folders(folder: FaultyDirectory, prefix: str = "") -> Iterator[str]:
    """Return the paths of directories, outer ones first."""
    for name, node in folder.names.items():
        if isinstance(node, FaultyDirectory):
            yield prefix + name
            yield from _folders(node, f"{prefix}{name}/")


# The content of a file


def _take(content: _Content, record: JournalRecord) -> None:
    """Add one more record."""
    content.records.append(record)
    if record.kind in _CHANGES:
        for sector in _sectors(record):
            first, _ = content.dirty.get(sector, (record.sequence, 0))
            content.dirty[sector] = (first, record.sequence)
        if content.durable_size is None:
            content.durable_size = record.c
        if (size := _size_after(record)) != record.c:
            content.sizes[record.sequence] = size
            content.resized = True
        return
    upto, good = record.a, record.kind is ChangeKind.SYNCED
    for sector, (first, last) in list(content.dirty.items()):
        if first > upto:
            continue
        if good:
            content.synced[sector] = upto
            content.lost.discard(sector)
        else:
            content.lost.add(sector)
        if last <= upto:
            del content.dirty[sector]
        else:
            content.dirty[sector] = (upto + 1, last)
    covered = [size for at, size in content.sizes.items() if at <= upto]
    if covered and good:  # also after a failed sync: a sync of the size covers the present one
        content.durable_size = covered[-1]
    content.resized = len(covered) < len(content.sizes)


def _size_after(record: JournalRecord) -> int:
    return (
        record.a if record.kind is ChangeKind.TRUNCATE else max(record.c, record.a + record.b) if record.b else record.c
    )


def _sectors(record: JournalRecord) -> range:
    """Return the sectors that a change touches: a write behind the end also touches the zeros before it."""
    if record.kind is ChangeKind.TRUNCATE:
        start, end = sorted((record.a, record.c))
    else:
        start, end = min(record.a, record.c), record.a + record.b
        if not record.b:
            return range(0)
    return range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES))


class _Sparse:
    """Some sectors of a file."""

    def __init__(self, source: Path, sectors: Sequence[int]) -> None:
        self.sectors: dict[int, bytearray] = {}
        with open(source, "rb") as file:
            for sector in sectors:
                file.seek(sector * SECTOR_BYTES)
                self.sectors[sector] = bytearray(file.read(SECTOR_BYTES).ljust(SECTOR_BYTES, b"\0"))

    def put(self, position: int, data: bytes) -> None:
        """Put bytes where they fall into these sectors."""
        end = position + len(data)
        for number in range(position // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            if (sector := self.sectors.get(number)) is not None:
                base = number * SECTOR_BYTES
                start, stop = max(position, base), min(end, base + SECTOR_BYTES)
                sector[start - base : stop - base] = data[start - position : stop - position]

    def undo(self, record: JournalRecord) -> None:
        if record.kind is ChangeKind.TRUNCATE:
            if record.a < record.c:
                self.put(record.a, record.payload or bytes(record.c - record.a))
        else:
            over = max(0, min(record.b, record.c - record.a))
            self.put(record.a, (record.payload or bytes(over)).ljust(record.b, b"\0"))


def _durable(content: _Content, source: Path) -> dict[int, bytes]:
    """Return, by sector, what the disk may hold instead of what programs see."""
    needed = sorted({*content.dirty, *content.lost})
    sparse, found = _Sparse(source, needed), dict[int, bytes]()
    for record in reversed([r for r in content.records if r.kind in _CHANGES]):
        for sector in _sectors(record):
            if sector in sparse.sectors and sector not in found and content.synced.get(sector, -1) >= record.sequence:
                found[sector] = bytes(sparse.sectors[sector])
        sparse.undo(record)
    return {sector: found.get(sector, bytes(sparse.sectors[sector])) for sector in needed}


def _cut(content: _Content, source: Path, rng: random.Random) -> tuple[int, int]:
    """Lose sectors and sizes; return how many of each."""
    now = source.stat().st_size
    size = now if content.durable_size is None else content.durable_size
    if content.resized:
        low, high = sorted((size, now))
        size = rng.choice((low, high, rng.randint(low, high)))
    durable = _durable(content, source)
    lost = [sector for sector in sorted(durable) if sector not in content.dirty or rng.random() >= 0.5]
    with open(source, "r+b") as file:
        file.truncate(size)
        for sector, data in durable.items():
            at = sector * SECTOR_BYTES
            begin = at if sector in lost else max(at, now)  # bytes that were cut off return with the size
            if begin < size:
                file.seek(begin)
                file.write(data[begin - at : size - at])
    return len(lost), int(size != now)


def _unsynced_writes(content: _Content) -> list[JournalRecord]:
    upto = max((record.a for record in content.records if record.kind is ChangeKind.SYNCED), default=0)
    return [r for r in content.records if r.kind is ChangeKind.WRITE and r.sequence > upto and r.b]


def _tear(content: _Content, source: Path, rng: random.Random) -> int:
    """Take back the end of the last write; return the touched sectors."""
    writes = _unsynced_writes(content)
    at = rng.randrange(len(writes))
    kept = rng.randrange(writes[at].b)
    over = [r for r in content.records if r.kind in _CHANGES and r.sequence >= writes[at].sequence]
    touched = sorted({sector for record in over for sector in _sectors(record)})
    sparse = _Sparse(source, touched)
    first = _Sparse(source, touched)
    for record in reversed(over):
        if record is writes[at]:
            first.sectors = {number: bytearray(sector) for number, sector in sparse.sectors.items()}
        sparse.undo(record)
    start = writes[at].a
    written = b"".join(bytes(first.sectors[number]) for number in _sectors(writes[at]))
    base = _sectors(writes[at]).start * SECTOR_BYTES
    sparse.put(start, written[start - base : start - base + kept])
    size = source.stat().st_size
    with open(source, "r+b") as file:
        for number, sector in sparse.sectors.items():
            position = number * SECTOR_BYTES
            if position < size:
                file.seek(position)
                file.write(bytes(sector)[: size - position])
    return len(touched)

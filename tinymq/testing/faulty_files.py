"""Files in memory that fail as disks do: power cuts, failed syncs, flipped bits, full disks, crashes at any point.

What is remembered of each file is its content as programs see it and its content as the disk holds it, sector by
sector. A power cut keeps what was synced, and of the rest any subset: each unsynced sector of 512 bytes, each
unsynced size and each unsynced name survives or not, as the random source says. A failed sync calls its sectors
clean without having written them, as Linux does: only writing them again makes them durable.
"""

from __future__ import annotations

import errno
import fnmatch
import posixpath
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tinymq.errors import DiskFull, FolderInUse, StorageError
from tinymq.log.files import File, Lock, sync_failed

SECTOR_BYTES = 512
Paths = list[str]  # named, because a method below is called `list`


class Crash(BaseException):
    """The machine stopped here. Not an Exception: nothing may handle it and go on."""


@dataclass(slots=True, eq=False)
class _Inode:
    """One file, whatever its names."""

    content: bytearray = field(default_factory=bytearray)  # as programs see it
    durable: bytearray = field(default_factory=bytearray)  # as the disk holds it
    dirty: set[int] = field(default_factory=set)  # sectors of `content` that a sync would write
    sized: bool = False  # the size changed since the last sync

    def touch(self, start: int, end: int) -> None:
        self.dirty.update(range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def sync(self, sectors: Iterable[int], size: int) -> None:
        """Make these sectors and this size durable."""
        _resize(self.durable, size)
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


def _resize(content: bytearray, size: int) -> None:
    if len(content) > size:
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


@dataclass(frozen=True, slots=True)
class _Change:
    """A name that was made, removed or replaced, and is not durable yet."""

    what: str  # link, unlink, mkdir, rmdir
    path: str
    inode: _Inode | None = None
    old: str = ""  # link: the name that it had before, gone in the same step

    def apply(self, names: dict[str, _Inode], folders: set[str], seen: dict[str, _Inode]) -> None:
        """Carry it out on `names` and `folders`; `seen` are the names that programs see by now."""
        if self.what == "link":
            assert self.inode is not None
            names.pop(self.old, None)
            names[self.path] = self.inode
        elif self.what == "unlink":
            names.pop(self.path, None)
        elif self.what == "mkdir":
            folders.add(self.path)
        else:
            folders.discard(self.path)
            for name in [n for n in names if n.startswith(self.path + "/")]:
                if seen.get(name) is not names[name]:  # else it is in a new folder of the same name
                    del names[name]


class FaultyFile:
    """An open file; dead after a power cut or kill."""

    def __init__(self, files: FaultyFiles, inode: _Inode, path: str) -> None:
        self._files = files
        self._inode = inode
        self._path = path
        self._epoch = files.epoch
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def inode(self) -> _Inode:
        if self._epoch != self._files.epoch:
            raise Crash(f"{self._path} was open when the machine stopped")
        if self._closed:
            raise StorageError(f"{self._path} is closed")
        return self._inode

    def write(self, position: int, chunks: Sequence[bytes]) -> None:
        inode = self.inode()
        data = b"".join(chunks)
        kept = self._files.step(f"write {self._path}", len(data))  # less than all of it: a crash
        room = self._files.room(len(inode.content), position + len(data))
        part = data[: min(kept, max(0, room - position))]
        end = position + len(part)
        if part:
            if len(inode.content) < end:
                inode.touch(len(inode.content), end)
                _resize(inode.content, end)
                inode.sized = True
            inode.content[position:end] = part
            inode.touch(position, end)
        self._files.check_alive()
        if len(part) < len(data):
            raise DiskFull(f"no room to write {self._path}", path=self._path)

    def read(self, position: int, length: int) -> bytes:
        inode = self.inode()
        self._files.check_read(self._path)
        return bytes(inode.content[position : position + length])

    def size(self) -> int:
        return len(self.inode().content)

    def truncate(self, size: int) -> None:
        inode = self.inode()
        self._files.step(f"truncate {self._path}")
        if size != len(inode.content):
            inode.touch(min(size, len(inode.content)), max(size, len(inode.content)))
            _resize(inode.content, size)
            inode.sized = True

    def close(self) -> None:
        self._closed = True


class _Held:
    def __init__(self, files: FaultyFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._epoch = files.epoch

    def close(self) -> None:
        if self._epoch == self._files.epoch:
            self._files.locked.discard(self._path)


class FaultyFiles:
    """One disk. Faults are asked for by methods; without any it is a disk that works."""

    def __init__(self, rng: random.Random) -> None:
        self.epoch = 0  # machine starts so far: what was opened before the last one is dead
        self.operations = 0  # that change the disk, so far; `crash_after` counts them
        self.trace: list[str] = []  # what they were
        self.locked: set[str] = set()
        self._rng = rng
        self._names: dict[str, _Inode] = {}
        self._folders: set[str] = {""}
        self._durable_names: dict[str, _Inode] = {}
        self._durable_folders: set[str] = {""}
        self._pending: list[_Change] = []  # in order
        self._crash_at: int | None = None
        self._crash_bytes = 0
        self._crashed = False
        self._bytes_left: int | None = None
        self._failing_syncs: list[tuple[str, bool]] = []  # pattern, once
        self._failing_reads: list[str] = []

    # Faults

    def crash_after(self, operations: int, *, bytes_written: int = 0) -> None:
        """Raise Crash instead of doing the operation after the next `operations`; of a write, do the first bytes."""
        self._crash_at = self.operations + operations
        self._crash_bytes = bytes_written

    def fail_sync(self, pattern: str, *, once: bool = True) -> None:
        """The next sync (all of them, without `once`) of a file or folder whose path matches fails with EIO."""
        self._failing_syncs.append((pattern, once))

    def fail_read(self, pattern: str) -> None:
        """Reads of files whose path matches fail with EIO."""
        self._failing_reads.append(pattern)

    def disk_full(self, bytes_left: int | None) -> None:
        """Files may grow by this much altogether; None: as much as they like."""
        self._bytes_left = bytes_left

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Damage what is stored, in the cache and on the disk."""
        inode = self._names[path]
        for content in (inode.content, inode.durable):
            if position < len(content):
                content[position] ^= 1 << bit

    def kill(self) -> None:
        """The process is gone, the machine is not: all that was written is still seen, synced or not."""
        self._restart()

    def power_cut(self) -> None:
        """What was synced is kept, and a random part of what was not."""
        self._restart()
        rng = self._rng
        for change in self._pending:
            if rng.random() < 0.5:
                change.apply(self._durable_names, self._durable_folders, self._names)
        self._pending.clear()
        self._durable_folders = {f for f in self._durable_folders if self._rooted(f)}
        self._durable_names = {n: i for n, i in self._durable_names.items() if self._rooted(posixpath.dirname(n))}
        self._names = dict(self._durable_names)
        self._folders = set(self._durable_folders)
        for inode in dict.fromkeys(self._names.values()):
            size = len(inode.durable)
            if inode.sized:
                low, high = sorted((size, len(inode.content)))
                size = rng.choice((low, high, rng.randint(low, high)))
            inode.sync([s for s in sorted(inode.dirty) if rng.random() < 0.5], size)
            inode.content = bytearray(inode.durable)
            inode.clean()

    def _restart(self) -> None:
        self.epoch += 1
        self.locked.clear()
        self._crashed = False
        self._crash_at = None
        self._bytes_left = None
        self._failing_syncs.clear()
        self._failing_reads.clear()

    def _rooted(self, folder: str) -> bool:
        """Whether the folder and all above it are durable."""
        while folder:
            if folder not in self._durable_folders:
                return False
            folder = posixpath.dirname(folder)
        return True

    # What files ask before they do something

    def step(self, what: str, length: int = 0) -> int:
        """Count an operation that changes the disk; how many of `length` bytes it gets to do before a crash."""
        self.check_alive()
        self.operations += 1
        self.trace.append(what)
        if self._crash_at is None or self.operations <= self._crash_at:
            return length
        self._crashed = True
        if not length:
            raise Crash(what)
        return min(self._crash_bytes, length)

    def check_alive(self) -> None:
        if self._crashed:
            raise Crash("the machine has stopped")

    def check_read(self, path: str) -> None:
        self.check_alive()
        if any(fnmatch.fnmatch(path, pattern) for pattern in self._failing_reads):
            raise StorageError(f"cannot read {path}: Input/output error", path=path)

    def room(self, size: int, end: int) -> int:
        """Where a write up to `end` has to stop in a file of `size`."""
        if self._bytes_left is None or end <= size:
            return end
        grown = min(self._bytes_left, end - size)
        self._bytes_left -= grown
        return size + grown

    # Files

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        self.check_alive()
        if path not in self._names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self._check_folder(path)
            self.step(f"create {path}")
            self._change(_Change("link", path, _Inode()))
        return FaultyFile(self, self._names[path], path)

    def exists(self, path: str) -> bool:
        self.check_alive()
        return path in self._names or path in self._folders

    def list(self, folder: str) -> list[str]:
        self.check_alive()
        names = (*self._names, *self._folders)
        return sorted(posixpath.basename(n) for n in names if n and posixpath.dirname(n) == folder)

    def make_folder(self, path: str) -> None:
        parent = posixpath.dirname(path)
        if parent not in self._folders:
            self.make_folder(parent)
        if path not in self._folders:
            self.step(f"mkdir {path}")
            self._change(_Change("mkdir", path))

    def remove(self, path: str) -> None:
        self.check_alive()
        if path in self._names:
            self.step(f"remove {path}")
            self._change(_Change("unlink", path))

    def remove_tree(self, path: str) -> None:
        self.check_alive()
        for name in [n for n in self._names if n.startswith(path + "/")]:
            self.remove(name)
        for folder in sorted((f for f in self._folders if f == path or f.startswith(path + "/")), reverse=True):
            self.step(f"rmdir {folder}")
            self._change(_Change("rmdir", folder))

    def rename(self, old: str, new: str) -> None:
        self.check_alive()
        if old not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self.step(f"rename {old} {new}")
        self._change(_Change("link", new, self._names[old], old=old))

    def sync(self, files: Sequence[File]) -> None:
        inodes = []
        for file in files:
            assert isinstance(file, FaultyFile), "a file of another Files"
            inodes.append(file.inode())
        self.step("sync " + " ".join(file.path for file in files))
        failed: dict[str, OSError] = {}
        for file, inode in zip(files, inodes, strict=True):
            if self._fails(file.path):
                failed[file.path] = OSError(errno.EIO, "Input/output error")
            else:
                inode.sync(inode.dirty, len(inode.content))
            inode.clean()
        if failed:
            raise sync_failed(failed)

    def sync_folder(self, path: str) -> None:
        self.step(f"sync folder {path}")
        if self._fails(path) or path not in self._folders:
            raise sync_failed({path: OSError(errno.EIO, "Input/output error")})
        for change in self._pending:
            if posixpath.dirname(change.path) == path:
                change.apply(self._durable_names, self._durable_folders, self._names)
        self._pending = [c for c in self._pending if posixpath.dirname(c.path) != path]

    def lock(self, path: str) -> Lock:
        self.check_alive()
        if path in self.locked:
            raise FolderInUse(f"another process holds {path}")
        self.open(path, create=True).close()
        self.locked.add(path)
        return _Held(self, path)

    # For tests to look at and into

    def content(self, path: str) -> bytes:
        """What programs see of it."""
        return bytes(self._names[path].content)

    def put(self, path: str, content: bytes) -> None:
        """Replace what is stored, in the cache and on the disk."""
        inode = self._names[path]
        inode.content, inode.durable = bytearray(content), bytearray(content)
        inode.clean()

    def paths(self) -> Paths:
        """All files."""
        return sorted(self._names)

    def _change(self, change: _Change) -> None:
        change.apply(self._names, self._folders, self._names)
        self._pending.append(change)

    def _check_folder(self, path: str) -> None:
        if posixpath.dirname(path) not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)

    def _fails(self, path: str) -> bool:
        for at, (pattern, once) in enumerate(self._failing_syncs):
            if fnmatch.fnmatch(path, pattern):
                if once:
                    del self._failing_syncs[at]
                return True
        return False

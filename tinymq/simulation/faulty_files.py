"""Files in memory that fail as disks do: power cuts, failed syncs, flipped bits, full disks, crashes at any point.

Each file has its content as programs see it, and its content as the disk has it, sector by sector. A power cut keeps
everything that was synced, and any subset of the rest: each unsynced sector of 512 bytes, each unsynced size and each
unsynced name survives or not, as the random source says. A failed sync calls its sectors clean without having written
them, as Linux does: they become durable only when they are written again.
"""

from __future__ import annotations

import errno
import fnmatch
import posixpath
import random
from collections.abc import Sequence

from tinymq.base.errors import DiskFull, FolderInUse, OutOfDescriptors, StorageError
from tinymq.log.files.files import File, Lock, sync_failed
from tinymq.simulation.disk_errors import DiskErrors, Operation
from tinymq.simulation.faulty_inodes import SECTOR_BYTES, FaultyDirectory, Inode, NameChange

__all__ = ["SECTOR_BYTES", "Crash", "FaultyFile", "FaultyFiles"]

Paths = list[str]  # named, because a method below is called `list`


class Crash(BaseException):
    """The machine has stopped. It is no Exception, because nothing may handle it and continue."""


class FaultyFile:
    """An open file. After a power cut or kill every use of it raises Crash."""

    def __init__(self, files: FaultyFiles, inode: Inode, path: str) -> None:
        self._files = files
        self._inode = inode
        self._path = path
        self._epoch = files.epoch
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def inode(self) -> Inode:
        if self._epoch != self._files.epoch:
            raise Crash(f"{self._path} was open when the machine stopped")
        if self._closed:
            raise StorageError(f"{self._path} is closed")
        return self._inode

    def write(self, position: int, chunks: Sequence[bytes]) -> None:
        inode = self.inode()
        self._files.begin("write", self._path)
        data = b"".join(chunks)
        done = self._files.step(f"write {self._path}", len(data))  # less than all of it: a crash
        end = self._files.writable_end(len(inode.content), position + len(data))
        part = data[: min(done, max(0, end - position))]
        if part:
            inode.write(position, part)
        self._files.check_alive()
        if len(part) < len(data):
            raise DiskFull(f"no room to write {self._path}", path=self._path)

    def read(self, position: int, length: int) -> bytes:
        inode = self.inode()
        self._files.check_read(self._path)
        self._files.begin("read", self._path)
        return bytes(inode.content[position : position + length])

    def size(self) -> int:
        return len(self.inode().content)

    def truncate(self, size: int) -> None:
        inode = self.inode()
        self._files.begin("truncate", self._path)
        self._files.step(f"truncate {self._path}")
        inode.truncate(size)

    def close(self) -> None:
        self._closed = True


class _Lock:
    def __init__(self, files: FaultyFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._epoch = files.epoch

    def close(self) -> None:
        if self._epoch == self._files.epoch:
            self._files.locked.discard(self._path)


class FaultyFiles:
    """One disk. Its methods order faults; without any, the disk works."""

    def __init__(self, rng: random.Random) -> None:
        self.boots = 0  # power cuts so far
        self.epoch = 0  # restarts so far: a file that was opened in an earlier epoch is dead
        self.operations = 0  # changes of the disk so far; `crash_after` counts them
        self.trace: list[str] = []  # these changes, in words
        self.locked: set[str] = set()
        self._rng = rng
        self._root = FaultyDirectory()
        self._pending: list[NameChange] = []  # changes of names that are not durable yet, in order
        self._crash_at: int | None = None
        self._bytes_left: int | None = None
        self._crashed, self._crash_bytes = False, 0
        self._failing_syncs: list[tuple[str, bool]] = []  # (pattern of paths, once)
        self._failing_reads: list[str] = []
        self._not_opened = ""  # paths that match this pattern cannot be opened
        self.errors = DiskErrors()
        self.watched = ""  # a pattern of paths
        self.reached = False  # an operation on a watched path has begun since the owner last set this to False

    # Faults

    def crash_after(self, operations: int, *, bytes_written: int = 0) -> None:
        """Let the next `operations` changes happen, and raise Crash at the one after. If that is a write, its first
        `bytes_written` bytes are written."""
        self._crash_at = self.operations + operations
        self._crash_bytes = bytes_written

    def fail_sync(self, pattern: str, *, once: bool = True) -> None:
        """Let the next sync, or without `once` every sync, of a path that matches `pattern` fail with EIO."""
        self._failing_syncs.append((pattern, once))

    def fail_read(self, pattern: str) -> None:
        """Let every read of a file whose path matches `pattern` fail with EIO."""
        self._failing_reads.append(pattern)

    def out_of_descriptors(self, pattern: str) -> None:
        """Let opening fail for every path that matches `pattern`; "": let all of them open again."""
        self._not_opened = pattern

    def disk_full(self, bytes_left: int | None) -> None:
        """Let all files together grow by `bytes_left`; None: without a bound."""
        self._bytes_left = bytes_left

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Damage a byte in the cache and on the disk."""
        inode = self._inode(path)
        for content in (inode.content, inode.durable):
            if position < len(content):
                content[position] ^= 1 << bit

    def kill(self) -> None:
        """End the process, and not the machine: everything that was written is still there, synced or not."""
        self._restart()

    def power_cut(self) -> None:
        """Keep everything that was synced, and a random part of the rest."""
        self._restart()
        self.boots += 1
        rng = self._rng
        for change in self._pending:
            if rng.random() < 0.5:
                change.keep()
        self._pending.clear()
        self._root.restart()
        for inode in dict.fromkeys(inode for _, inode in self._root.files()):
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
        self._crash_at = self._bytes_left = None
        self._failing_syncs.clear()
        self._failing_reads.clear()

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self._restart()
        self._root = FaultyDirectory()
        self._pending.clear()

    # Called by open files, before they do something

    def step(self, what: str, length: int = 0) -> int:
        """Count a change of the disk. Returns how many of its `length` bytes it can write before a crash."""
        self.check_alive()
        self.operations += 1
        self.trace.append(what)
        if self._crash_at is None or self.operations <= self._crash_at:
            return length
        self._crashed = True
        if not length:
            raise Crash(what)
        return min(self._crash_bytes, length)

    def begin(self, operation: Operation, path: str) -> None:
        """Begin an operation on a path: note it if the path is watched, and fail if an error was ordered."""
        self.check_alive()
        if self.watched and fnmatch.fnmatchcase(path, self.watched):
            self.reached = True
        self.errors.check(operation, path)

    def check_alive(self) -> None:
        if self._crashed:
            raise Crash("the machine has stopped")

    def check_read(self, path: str) -> None:
        self.check_alive()
        if any(fnmatch.fnmatch(path, pattern) for pattern in self._failing_reads):
            raise StorageError(f"cannot read {path}: Input/output error", path=path)

    def check_descriptors(self, path: str) -> None:
        if self._not_opened and fnmatch.fnmatch(path, self._not_opened):
            raise OutOfDescriptors(f"no file descriptor left to open {path}", path=path)

    def writable_end(self, size: int, end: int) -> int:
        """The position at which a write up to `end` has to stop in a file of `size`."""
        if self._bytes_left is None or end <= size:
            return end
        grown = min(self._bytes_left, end - size)
        self._bytes_left -= grown
        return size + grown

    # Files

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        self.check_alive()
        self.check_descriptors(path)
        node = self._node(path)
        if node is not None or create:
            self.begin("open", path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            place = self._place(path)
            self.begin("create", path)
            self.step(f"create {path}")
            node = Inode()
            self._change(NameChange(*place, node))
        if isinstance(node, FaultyDirectory):
            raise StorageError(f"{path} is a directory", path=path)
        return FaultyFile(self, node, path)

    def exists(self, path: str) -> bool:
        self.check_alive()
        return self._node(path) is not None

    def list(self, directory: str) -> list[str]:
        self.check_alive()
        self.check_descriptors(directory)
        self.begin("list", directory)
        node = self._node(directory)
        return sorted(node.names) if isinstance(node, FaultyDirectory) else []

    def make_directory(self, path: str) -> None:
        self.check_alive()
        if self._node(path) is None:
            self.make_directory(posixpath.dirname(path))
            self.begin("make", path)
            self.step(f"mkdir {path}")
            self._change(NameChange(*self._place(path), FaultyDirectory()))

    def remove(self, path: str) -> None:
        self.check_alive()
        if isinstance(self._node(path), Inode):
            self.begin("remove", path)
            self.step(f"remove {path}")
            self._change(NameChange(*self._place(path), None))

    def remove_tree(self, path: str) -> None:
        self.check_alive()
        node = self._node(path)
        if not isinstance(node, FaultyDirectory):
            return
        for name, child in tuple(node.names.items()):
            (self.remove_tree if isinstance(child, FaultyDirectory) else self.remove)(f"{path}/{name}")
        self.step(f"rmdir {path}")
        self._change(NameChange(*self._place(path), None))

    def rename(self, old: str, new: str) -> None:
        self.check_alive()
        node = self._node(old)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        place = self._place(new)
        self.begin("rename", old)
        self.step(f"rename {old} {new}")
        self._change(NameChange(*place, node, old=self._place(old)))

    def sync(self, files: Sequence[File]) -> None:
        inodes = [file.inode() for file in files if isinstance(file, FaultyFile)]
        assert len(inodes) == len(files), "a file of another Files"
        self.step("sync " + " ".join(file.path for file in files))
        self.reached = self.reached or any(self.watched and fnmatch.fnmatchcase(f.path, self.watched) for f in files)
        failed: dict[str, OSError] = {}
        for file, inode in zip(files, inodes, strict=True):
            if self._fails(file.path):
                failed[file.path] = OSError(errno.EIO, "Input/output error")
            else:
                inode.sync(inode.dirty, len(inode.content))
            inode.clean()
        if failed:
            raise sync_failed(failed)

    def sync_directory(self, path: str) -> None:
        self.check_descriptors(path)
        self.step(f"sync folder {path}")
        directory = self._node(path)
        if self._fails(path) or not isinstance(directory, FaultyDirectory):
            raise sync_failed({path: OSError(errno.EIO, "Input/output error")})
        for change in self._pending:
            if change.directory is directory:
                change.keep()
        self._pending = [c for c in self._pending if c.directory is not directory]

    def boot_id(self) -> bytes:
        return self.boots.to_bytes(16, "little")

    def lock(self, path: str) -> Lock:
        self.check_alive()
        if path in self.locked:
            raise FolderInUse(f"another process holds {path}")
        self.open(path, create=True).close()
        self.locked.add(path)
        return _Lock(self, path)

    # For tests

    def content(self, path: str) -> bytes:
        """The content of a file as programs see it."""
        return bytes(self._inode(path).content)

    def put(self, path: str, content: bytes) -> None:
        """Replace the content of a file in the cache and on the disk."""
        inode = self._inode(path)
        inode.content, inode.durable = bytearray(content), bytearray(content)
        inode.clean()

    def paths(self) -> Paths:
        """The paths of all files."""
        return sorted(path for path, _ in self._root.files())

    def _change(self, change: NameChange) -> None:
        change.show()
        self._pending.append(change)

    def _node(self, path: str) -> Inode | FaultyDirectory | None:
        node: Inode | FaultyDirectory | None = self._root
        for name in path.split("/") if path else ():
            node = node.names.get(name) if isinstance(node, FaultyDirectory) else None
        return node

    def _inode(self, path: str) -> Inode:
        node = self._node(path)
        assert isinstance(node, Inode), path
        return node

    def _place(self, path: str) -> tuple[FaultyDirectory, str]:
        """The directory that has the name, and the name in it."""
        parent, name = posixpath.split(path)
        directory = self._node(parent)
        if not isinstance(directory, FaultyDirectory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return directory, name

    def _fails(self, path: str) -> bool:
        for number, (pattern, once) in enumerate(self._failing_syncs):
            if fnmatch.fnmatch(path, pattern):
                if once:
                    del self._failing_syncs[number]
                return True
        return False

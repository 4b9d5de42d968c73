"""A broker's real files, with the faults of disks: full, slow, unreadable, failing to sync, without power.

The faults are in the place of `Files`, and not in FUSE or LD_PRELOAD, because the product reaches its data directory
through that one protocol. A replacement there needs no root, no kernel module and no compiler, works wherever the
product does, names the product's own paths in errors, and sees which sync covers what. It does not test the layers
below: how a kernel, a file system and a real disk keep the promises that `Files` asks of them (`RealFiles` is three
calls deep).

Every write goes through to the real files, so a killed process loses nothing that it wrote. A journal beside them
(unsynced_changes.py) records how to take back every change that is not synced. A power cut kills the process and then
calls `lose_power`, while nothing writes. The journal outlives the process: a write that was never synced before a kill
-9 is lost in a later power cut. Like a kernel, the disk counts a write as stored after WRITEBACK_S, or when more than
JOURNAL_BYTES_MAX are unsynced.
"""

from __future__ import annotations

import errno
import math
import os
import posixpath
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tinymq.base.errors import DiskFull, SyncFailed
from tinymq.log.files.files import File, Files, Lock, failed_paths, sync_failed
from tinymq_chaos.real.disks import unsynced_changes as unsynced
from tinymq_chaos.real.disks.disk_faults import DiskFaults
from tinymq_chaos.real.disks.unsynced_changes import ChangeKind, Journal

WRITEBACK_S = 30.0
JOURNAL_BYTES = 1 << 20  # above this size, the journal is cleared as soon as it has no young record
JOURNAL_BYTES_MAX = 64 << 20
_ZEROS = bytes(64 << 10)

Names = list[str]  # an alias, because a method below is called `list`


@dataclass(slots=True, eq=False)
class Node:
    """A file, whatever its names."""

    number: int  # in the journal
    named_in: int = -1  # number of the journal, from 0, that has a record of the file's number
    written: int = 0  # sequence of the last finished change
    failed: bool = False  # a sync failed: some bytes will never be written


class FaultyFile:
    """An open file of a `FaultyDisk`."""

    def __init__(self, disk: FaultyDisk, inner: File, node: Node) -> None:
        self._disk = disk
        self.inner = inner
        self.node = node

    @property
    def path(self) -> str:
        return self.inner.path

    def write(self, position: int, chunks: Sequence[bytes]) -> None:
        faults, length, size = self._disk.faults, sum(map(len, chunks)), self.inner.size()
        room = faults.room(size, position + length) - position
        allowed = faults.step(f"write {self.path}", length)
        taken = max(0, min(length, room, allowed))
        if taken < length:
            chunks = [b"".join(chunks)[:taken]]
        before = self._read(position, min(taken, size - position)) if position < size else b""
        sequence = self._disk.change(self, ChangeKind.WRITE, position, taken, size, before)
        self.inner.write(position, chunks)
        self.node.written = sequence
        if allowed < length:
            faults.die()
        if taken < length:
            raise DiskFull(f"no room to write {self.path}", path=self.path)

    def truncate(self, size: int) -> None:
        faults, before = self._disk.faults, self.inner.size()
        faults.room(before, size, whole=f"truncate {self.path}")
        faults.step(f"truncate {self.path}")
        cut = self._read(size, before - size) if size < before else b""
        sequence = self._disk.change(self, ChangeKind.TRUNCATE, size, 0, before, cut)
        self.inner.truncate(size)
        self.node.written = sequence

    def _read(self, position: int, length: int) -> bytes:
        """Return the bytes that are about to be lost; b"" if they are zeros."""
        data = self.inner.read(position, length)
        zeros = _ZEROS.startswith(data) if len(data) <= len(_ZEROS) else data == bytes(len(data))
        return b"" if zeros else data

    def read(self, position: int, length: int) -> bytes:
        self._disk.faults.check_read(self.path)
        return self.inner.read(position, length)

    def size(self) -> int:
        return self.inner.size()

    def close(self) -> None:
        self.inner.close()


class FaultyDisk:
    """The files of one data directory, with `faults`."""

    def __init__(self, inner: Files, root: Path, faults: DiskFaults | None = None) -> None:
        """`root` is the data directory of `inner`."""
        self.faults = faults or DiskFaults()
        self._inner = inner
        self._root = root
        self._lock = threading.RLock()  # guards the journal, and names together with their records
        self._journal = Journal(root)
        self._journals = 0
        self._kept = self._journal.bytes > 0
        self._nodes: dict[str, Node] = {}  # by path
        self._dirty: dict[Node, float] = {}  # since when, monotonic
        self._pending: dict[str, float] = {}  # directories with changed names, and the time of the last change
        if self._journal.bytes:  # of a killed process: its changes are recent, and have no times of their own
            self._pending["*"] = time.monotonic()

    @property
    def unsynced(self) -> tuple[Names, Names]:
        """Return the paths of files with content, and of directories with names, that a power cut may take back.

        "*": some of an earlier process.
        """
        with self._lock:
            return sorted(p for p, node in self._nodes.items() if node in self._dirty), sorted(self._pending)

    @property
    def journal_bytes(self) -> int:
        return self._journal.bytes

    def change(self, file: FaultyFile, kind: ChangeKind, a: int, b: int, c: int, before: bytes) -> int:
        """Begin a change of the content; return its sequence number."""
        node = file.node
        with self._lock:
            if node.named_in != self._journals and self._nodes.get(file.path) is node:
                self._name(node, file.path)
            if node not in self._dirty:
                self._dirty[node] = time.monotonic()
            return self._journal.add(kind, node.number, a, b, c, before)

    # Files

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        with self._lock:
            if create and not self._inner.exists(path):
                self.faults.step(f"create {path}")
                node = Node(self._journal.new_file(), self._journals)
                with self._changing_name(ChangeKind.CREATE, path, node):
                    inner = self._inner.open(path, create=True)
                self._nodes[path] = node
            else:
                inner = self._inner.open(path, create=create)
            return FaultyFile(self, inner, self._node(path))

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def list(self, folder: str) -> list[str]:
        return [name for name in self._inner.list(folder) if folder or name != unsynced.FOLDER]

    def make_directory(self, path: str) -> None:
        with self._lock:
            if not self._inner.exists(path):
                self.make_directory(posixpath.dirname(path))
                self.faults.step(f"mkdir {path}")
                with self._changing_name(ChangeKind.MAKE_FOLDER, path):
                    self._inner.make_directory(path)

    def remove(self, path: str) -> None:
        with self._lock:
            if not self._inner.exists(path):
                return
            self.faults.step(f"remove {path}")
            self.faults.freed((self._root / path).stat().st_size)
            with self._changing_name(ChangeKind.REMOVE, path, self._keep(path)):
                self._inner.remove(path)
            self._nodes.pop(path)

    def remove_tree(self, path: str) -> None:
        with self._lock:
            if not self._inner.exists(path):
                return
            for name in self._inner.list(path):
                child = f"{path}/{name}"
                (self.remove_tree if (self._root / child).is_dir() else self.remove)(child)
            self.faults.step(f"rmdir {path}")
            with self._changing_name(ChangeKind.REMOVE_FOLDER, path):
                self._inner.remove_tree(path)

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            if not self._inner.exists(old):
                raise FileNotFoundError(errno.ENOENT, "no such file", old)
            self.faults.step(f"rename {old} {new}")
            replaced = self._keep(new) if self._inner.exists(new) else None
            with self._changing_name(ChangeKind.RENAME, new, self._named(old), replaced, old=old):
                self._inner.rename(old, new)
            self._nodes[new] = self._nodes.pop(old)

    def sync(self, files: Sequence[File]) -> None:
        ours = [file for file in files if isinstance(file, FaultyFile)]
        assert len(ours) == len(files), "a file of another Files"
        written = {file.node: file.node.written for file in ours}  # later writes are not covered
        self.faults.step("sync " + " ".join(file.path for file in ours))
        failed = {
            file.path: OSError(errno.EIO, os.strerror(errno.EIO)) for file in ours if self.faults.fails(file.path)
        }
        self.faults.wait([file.path for file in ours])
        good = [file for file in ours if file.path not in failed]
        why: SyncFailed | None = sync_failed(failed) if failed else None
        try:
            self._inner.sync([file.inner for file in good])
        except SyncFailed as error:
            why, really = error, failed_paths(error)
            failed.update({path: OSError(errno.EIO, os.strerror(errno.EIO)) for path in really})
        with self._lock:
            for file in ours:
                self._synced(file.node, written[file.node], failed=file.path in failed)
            self._clear_journal()
        if why is not None:
            raise why

    def sync_directory(self, path: str) -> None:
        with self._lock:  # every change in the journal has been made
            upto, began_s = self._journal.sequence, time.monotonic()
        self.faults.step(f"sync folder {path}")
        fails = self.faults.fails(path)
        self.faults.wait([path])
        if fails:
            raise sync_failed({path: OSError(errno.EIO, os.strerror(errno.EIO))})
        self._inner.sync_directory(path)
        with self._lock:
            if self._journal.bytes:
                self._journal.add(ChangeKind.SYNCED_FOLDER, a=upto, payload=path.encode())
            if self._pending.get(path, began_s) < began_s:
                del self._pending[path]
            self._clear_journal()

    def boot_id(self) -> bytes:
        return unsynced.read_boot(self._root) or self._inner.boot_id()

    def lock(self, path: str) -> Lock:
        self.open(path, create=True).close()
        return self._inner.lock(path)

    # The journal

    def _node(self, path: str) -> Node:
        if path not in self._nodes:
            self._nodes[path] = Node(self._journal.new_file())
        return self._nodes[path]

    def _named(self, path: str) -> Node:
        """Return the file at `path`, with its number in the journal."""
        node = self._node(path)
        if node.named_in != self._journals:
            self._name(node, path)
        return node

    def _name(self, node: Node, path: str) -> None:
        self._journal.add(ChangeKind.OPEN, node.number, payload=path.encode())
        node.named_in = self._journals

    def _keep(self, path: str) -> Node:
        node = self._named(path)
        self._journal.keep(self._root / path, node.number)
        self._kept = True
        return node

    @contextmanager
    def _changing_name(
        self, kind: ChangeKind, path: str, node: Node | None = None, replaced: Node | None = None, old: str = ""
    ) -> Iterator[None]:
        """Record a change of names before the block makes it, and remove the record if the block fails."""
        before = self._journal.bytes
        file, other = (each.number if each is not None else 0 for each in (node, replaced))
        self._journal.add(kind, file, other, payload=f"{old}\0{path}".encode() if old else path.encode())
        try:
            yield
        except BaseException:
            self._journal.cut(before)
            raise
        self._pending[posixpath.dirname(path)] = time.monotonic()

    def _synced(self, node: Node, upto: int, *, failed: bool) -> None:
        if node not in self._dirty:
            return
        self._journal.add(ChangeKind.SYNC_FAILED if failed else ChangeKind.SYNCED, node.number, upto)
        if failed:
            node.failed = True
            self._dirty[node] = math.inf
        elif node.written == upto and not node.failed:
            del self._dirty[node]

    def _clear_journal(self) -> None:
        """Clear the journal when none of its records matters any more."""
        size = self._journal.bytes
        if size < JOURNAL_BYTES and not self._kept:
            return
        old_s = time.monotonic() - WRITEBACK_S
        live = (*self._dirty.values(), *self._pending.values())
        if size < JOURNAL_BYTES_MAX and any(since_s > old_s for since_s in live):
            return
        self._journal.clear()
        self._journals += 1
        self._kept = False
        self._pending.clear()
        for node in self._dirty:
            node.failed = False
        self._dirty.clear()

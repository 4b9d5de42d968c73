"""The disk as an argument: the contract for files, and the real implementation.

This module knows bytes and names, and not what is stored in them. Paths are relative to the data directory, with "/"
between their parts. Every call blocks. The callers are the writer job, the executor and opening, never the loop.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tinymq.base.errors import DiskFull, FolderInUse, OutOfDescriptors, StorageError, SyncFailed
from tinymq.base.private_files import DIRECTORY_MODE, FILE_MODE
from tinymq.net.descriptors import OUT_OF_DESCRIPTORS, Reserve

SYNC_THREADS_MAX = 16  # 333 files of 4 KiB: 52 ms one by one, 18 ms with 16 threads
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # Linux only
_IOV_MAX = 1024  # Linux: buffers per pwritev


class File(Protocol):
    """An open file. Two threads may call `read` at once, and nothing else."""

    @property
    def path(self) -> str:
        """As given to `Files.open`."""
        ...

    def write(self, position: int, chunks: Sequence[bytes]) -> None:
        """Write the chunks one after the other from `position`. They survive a power cut only after `Files.sync`.

        Raises DiskFull or StorageError, with any part of them written.
        """
        ...

    def read(self, position: int, length: int) -> bytes:
        """Read `length` bytes, or fewer at the file's end. Raises StorageError."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to `size`. Durable after `Files.sync`."""
        ...

    def close(self) -> None:
        """Close the file without a sync. Idempotent."""
        ...


class Lock(Protocol):
    def close(self) -> None: ...


class Files(Protocol):
    """One data directory. A change survives a power cut only after a sync: of contents by `sync`, of names (created,
    renamed, removed) by `sync_directory` of their directory.

    Raises StorageError: DiskFull if there is no room, OutOfDescriptors if no file can be opened. A missing path raises
    FileNotFoundError.
    """

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. `create` makes a missing file, and leaves an existing one as it is."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """The names in `directory`, sorted; [] if it does not exist."""
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents, unless it exists."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and everything in it, if it exists."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file, and replace `new` if it exists. Atomic, also across a power cut."""
        ...

    def sync(self, files: Sequence[File]) -> None:
        """Make the contents of all files durable, side by side.

        Raises SyncFailed, whose `detail["files"]` names the files that failed, one per line. Never repeat the sync of
        such a file: a second one may succeed without writing anything.
        """
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in the directory durable; "" is the data directory. Raises SyncFailed, OutOfDescriptors."""
        ...

    def boot_id(self) -> bytes:
        """Identify the present start of the machine, in 16 bytes.

        The id changes with every event that loses unsynced writes, and stays the same when a process ends. b"" means
        that it is not known, and counts as another start each time.
        """
        ...

    def lock(self, path: str) -> Lock:
        """Lock the file at `path`, which is made if missing, until the lock is closed. Raises FolderInUse if another
        process holds it."""
        ...


@contextmanager
def storage_errors(what: str, path: str) -> Iterator[None]:
    """Raise our own errors in the place of OSError, but let FileNotFoundError pass."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no room to {what} {path}", path=path) from error
        if error.errno in OUT_OF_DESCRIPTORS:
            raise OutOfDescriptors(f"no file descriptor left to {what} {path}", path=path) from error
        raise StorageError(f"cannot {what} {path}: {error.strerror or error}", path=path) from error


class RealFile:
    """A file behind a descriptor."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd  # invariant: -1 once closed
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        return self._fd

    def write(self, position: int, chunks: Sequence[bytes]) -> None:
        with storage_errors("write", self._path):
            for start in range(0, len(chunks), _IOV_MAX):
                part = chunks[start : start + _IOV_MAX]
                length = sum(map(len, part))
                written = os.pwritev(self._fd, part, position)
                position += written
                if written < length:  # a nearly full disk, or over 2 GiB: write the rest one by one, until it raises
                    position = self._write_rest(part, written, position)

    def _write_rest(self, part: Sequence[bytes], written: int, position: int) -> int:
        for chunk in part:
            if written >= len(chunk):
                written -= len(chunk)
                continue
            rest = memoryview(chunk)[written:]
            written = 0
            while rest:
                count = os.pwrite(self._fd, rest, position)
                position += count
                rest = rest[count:]
        return position

    def read(self, position: int, length: int) -> bytes:
        with storage_errors("read", self._path):
            data = os.pread(self._fd, length, position)
            if len(data) == length or not data:
                return data
            parts = [data]
            done = len(data)
            while done < length and (data := os.pread(self._fd, length - done, position + done)):
                parts.append(data)
                done += len(data)
            return b"".join(parts)

    def load(self, position: int, length: int) -> None:
        """Let the system read a part into its memory, so that sending the part waits for no disk.

        If the part is there already, this takes 0.03 ms/MB, a third of a read. Raises StorageError.
        """
        with storage_errors("read", self._path):
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            try:
                while length and (done := os.sendfile(null, self._fd, position, length)):
                    position, length = position + done, length - done
            finally:
                os.close(null)

    def size(self) -> int:
        with storage_errors("measure", self._path):
            return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        with storage_errors("truncate", self._path):
            os.ftruncate(self._fd, size)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def open_to_read(path: Path) -> RealFile:
    """Open a file for reading that belongs to no open data directory. Raises StorageError, FileNotFoundError."""
    with storage_errors("open", str(path)):
        return RealFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), str(path))


class RealFiles:
    """A directory of the machine's file system."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # an existing directory keeps its mode: see `open_to_others`
            root.mkdir(DIRECTORY_MODE)
        self._reserve = Reserve()
        self._threads = ThreadPoolExecutor(SYNC_THREADS_MAX, thread_name_prefix="tinymq-sync")

    def _opened(self, path: str, flags: int) -> int:
        """Return a new descriptor of the file or directory `path`. Raises OSError."""
        return self._reserve.use(lambda: os.open(self._absolute(path), flags, FILE_MODE))

    def _absolute(self, path: str) -> str:
        return os.path.join(self._root, path)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        with storage_errors("open", path):
            return RealFile(self._opened(path, flags), path)

    def exists(self, path: str) -> bool:
        return os.path.exists(self._absolute(path))

    def list(self, directory: str) -> list[str]:
        with storage_errors("list", directory):
            try:
                return sorted(self._reserve.use(lambda: os.listdir(self._absolute(directory))))
            except FileNotFoundError:
                return []

    def make_directory(self, path: str) -> None:
        with storage_errors("make", path):
            made = self._root
            for name in Path(path).parts:  # os.makedirs gives its mode to the last directory only
                made /= name
                if not made.is_dir():
                    made.mkdir(DIRECTORY_MODE, exist_ok=True)

    def remove(self, path: str) -> None:
        with storage_errors("remove", path):
            try:
                os.unlink(self._absolute(path))
            except FileNotFoundError:
                return

    def remove_tree(self, path: str) -> None:
        with storage_errors("remove", path):
            try:
                shutil.rmtree(self._absolute(path))
            except FileNotFoundError:
                return

    def rename(self, old: str, new: str) -> None:
        with storage_errors("rename", old):
            os.replace(self._absolute(old), self._absolute(new))

    def sync(self, files: Sequence[File]) -> None:
        real = [f for f in files if isinstance(f, RealFile)]
        assert len(real) == len(files), "a file of another Files"
        later = [(f, self._threads.submit(os.fdatasync, f.fileno())) for f in real[1:]]
        failed: dict[str, OSError] = {}
        if real:
            try:  # the first file in this thread: a lone file needs no other one
                os.fdatasync(real[0].fileno())
            except OSError as error:
                failed[real[0].path] = error
        for file, future in later:
            raised = future.exception()
            if isinstance(raised, OSError):
                failed[file.path] = raised
            elif raised is not None:
                raise raised
        if failed:
            raise sync_failed(failed)

    def sync_directory(self, path: str) -> None:
        try:
            fd = self._opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:  # nothing was synced, and nothing is known to be lost
                raise OutOfDescriptors(f"no file descriptor left to sync {path}", path=path) from error
            raise sync_failed({path: error}) from error

    def boot_id(self) -> bytes:
        try:
            return bytes.fromhex(BOOT_ID.read_text().strip().replace("-", ""))
        except (OSError, ValueError):
            return b""

    def lock(self, path: str) -> Lock:
        file = self.open(path, create=True)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise FolderInUse(f"another process holds {self._absolute(path)}") from error
        return file


def sync_failed(failed: dict[str, OSError]) -> SyncFailed:
    """The error that names every path that could not be synced, and why."""
    why = "; ".join(f"{path or 'the data directory'}: {error.strerror or error}" for path, error in failed.items())
    return SyncFailed(f"fsync failed: {why}", files="\n".join(failed))


def failed_paths(error: SyncFailed) -> frozenset[str]:
    """Paths that `error` names."""
    return frozenset(error.detail.get("files", "").split("\n"))

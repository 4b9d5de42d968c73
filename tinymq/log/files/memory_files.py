"""Files in memory, for topics that are stored there. They end with the process, and need no sync.

Only the loop's thread uses them: every call takes microseconds.
"""

from __future__ import annotations

import errno
import posixpath
from bisect import bisect_right
from collections.abc import Sequence

from tinymq.base.errors import FolderInUse
from tinymq.log.files.files import File, Lock, sync_failed

LARGE_BYTES = 4 * 1024  # a chunk of this size is stored as it is
PIECE_BYTES = 64 * 1024  # smaller chunks are joined to pieces of about this size
Names = list[str]  # named, because a method below is called `list`


class _Content:
    """The content of a file, in pieces that follow one another.

    It is not one buffer: growing a large buffer copies it, and large chunks are shared with the tail of the log. Small
    chunks are joined, so that the objects cost little compared with their bytes.
    """

    __slots__ = ("linked", "pieces", "size", "starts")

    def __init__(self) -> None:
        self.linked = True  # a name leads to it, so its bytes count
        self.size = 0
        self.pieces: list[bytes | bytearray] = []  # only the last one may be a bytearray, which grows
        self.starts: list[int] = []  # position of each piece

    def append(self, chunk: bytes) -> None:
        last = self.pieces[-1] if self.pieces else b""
        if len(chunk) >= LARGE_BYTES or not isinstance(last, bytearray):
            self._freeze()
            self.starts.append(self.size)
            self.pieces.append(bytes(chunk) if len(chunk) >= LARGE_BYTES else bytearray(chunk))
        else:
            last += chunk
            if len(last) >= PIECE_BYTES:
                self._freeze()
        self.size += len(chunk)

    def _freeze(self) -> None:
        if self.pieces and isinstance(self.pieces[-1], bytearray):
            self.pieces[-1] = bytes(self.pieces[-1])

    def read(self, position: int, length: int) -> bytes:
        end, parts = min(position + length, self.size), []
        chunk = max(0, bisect_right(self.starts, position) - 1)
        while position < end:
            start, piece = self.starts[chunk], self.pieces[chunk]
            parts.append(bytes(piece[position - start : end - start]))
            position, chunk = start + len(piece), chunk + 1
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cut(self, size: int) -> None:
        """Cut the content to `size` bytes."""
        chunk = max(0, bisect_right(self.starts, size) - 1)
        start = self.starts[chunk] if self.starts else 0
        kept = self.read(start, size - start)
        del self.starts[chunk:], self.pieces[chunk:]
        self.size = start
        if kept:
            self.append(kept)


class MemoryFile:
    """An open file. It can still be read after its removal."""

    def __init__(self, files: MemoryFiles, content: _Content, path: str) -> None:
        self._files = files
        self._content = content
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def write(self, position: int, chunks: Sequence[bytes]) -> None:
        content, before = self._content, self._content.size
        rest = b""
        if position < before:  # recovery writes again what it has read
            rest = content.read(position + sum(map(len, chunks)), before)
            content.cut(position)
        elif position > before:
            content.append(bytes(position - before))
        for chunk in (*chunks, rest):
            if chunk:
                content.append(chunk)
        self._files.resized(content, before)

    def read(self, position: int, length: int) -> bytes:
        return self._content.read(position, length)

    def size(self) -> int:
        return self._content.size

    def truncate(self, size: int) -> None:
        content, before = self._content, self._content.size
        if size < before:
            content.cut(size)
        elif size > before:
            content.append(bytes(size - before))
        self._files.resized(content, before)

    def close(self) -> None:
        """Do nothing: there is no descriptor."""


class _Lock:
    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path

    def close(self) -> None:
        self._locked.discard(self._path)


class MemoryFiles:
    """See Files. Paths are stored as they are: there are few directories, and they are seldom listed."""

    def __init__(self) -> None:
        self.bytes = 0  # of all files that have a name
        self._files: dict[str, _Content] = {}
        self._directories: dict[str, dict[str, None]] = {"": {}}  # names in each
        self._locked: set[str] = set()

    def resized(self, content: _Content, before: int) -> None:
        """Called by an open file whose size was `before`."""
        if content.linked:
            self.bytes += content.size - before

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        content = self._files.get(path)
        if content is None:
            if not create or posixpath.dirname(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            content = _Content()
            self._link(path, content)
        return MemoryFile(self, content, path)

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def list(self, directory: str) -> Names:
        return sorted(self._directories.get(directory, ()))

    def make_directory(self, path: str) -> None:
        if path not in self._directories:
            parent, name = posixpath.split(path)
            self.make_directory(parent)
            self._directories[parent][name] = None
            self._directories[path] = {}

    def remove(self, path: str) -> None:
        content = self._files.pop(path, None)
        if content is not None:
            content.linked = False
            self.bytes -= content.size
            parent, name = posixpath.split(path)
            del self._directories[parent][name]

    def remove_tree(self, path: str) -> None:
        if path not in self._directories:
            return
        for name in tuple(self._directories[path]):
            (self.remove_tree if f"{path}/{name}" in self._directories else self.remove)(f"{path}/{name}")
        parent, name = posixpath.split(path)
        del self._directories[path], self._directories[parent][name]

    def rename(self, old: str, new: str) -> None:
        content = self._files.get(old)
        if content is None or posixpath.dirname(new) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self.remove(old)
        self.remove(new)
        self._link(new, content)

    def _link(self, path: str, content: _Content) -> None:
        parent, name = posixpath.split(path)
        self._files[path] = content
        self._directories[parent][name] = None
        content.linked = True
        self.bytes += content.size

    def sync(self, files: Sequence[File]) -> None:
        assert all(isinstance(file, MemoryFile) for file in files), "a file of another Files"

    def sync_directory(self, path: str) -> None:
        if path not in self._directories:
            raise sync_failed({path: OSError(errno.ENOENT, "no such directory")})

    def boot_id(self) -> bytes:
        return bytes(16)  # always the same start: another process never sees these files

    def lock(self, path: str) -> Lock:
        if path in self._locked:
            raise FolderInUse(f"another process holds {path}")
        self._locked.add(path)
        return _Lock(self._locked, path)

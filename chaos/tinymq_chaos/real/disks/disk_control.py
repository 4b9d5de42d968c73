"""Control of a broker's disk through a Unix socket: lines of JSON, one request and one answer each.

    {"do": "fail_sync", "pattern": "groups/*"}    ->    {"operations": 815, "files": [], "folders": []}

The requests are the methods of `DiskFaults`, with their arguments; "look" does nothing. The broker's end is a thread of
its own, which answers while the process lives and is not stopped. The faults end with the process.

A file beside the socket counts what the faults did. It outlives the process, because a fault may end a broker.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinymq_chaos.real.disks.disks import FaultyDisk

ASK_S_MAX = 5.0
LINE_BYTES_MAX = 1 << 20
DOES = ("slow_sync", "fail_sync", "fail_read", "disk_full", "die_at", "mend", "look")
_PATH_BYTES_MAX = 100  # of a socket's address; systems allow 104 or 108


@dataclass(frozen=True, slots=True)
class DiskState:
    """The state of a disk."""

    operations: int  # operations that changed it, or tried to, since its process began
    files: tuple[str, ...]  # files with content that a power cut may take back
    # directories with names that a power cut may take back; "*": also changes of an earlier process
    folders: tuple[str, ...]


class DiskControl:
    """The harness's end. Each call is a connection of its own, from any thread.

    All methods raise ConnectionError if there is no broker, or a stopped one, and ValueError for a request that the
    broker does not understand.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def slow_sync(self, seconds: float, pattern: str = "*") -> DiskState:
        return self._ask("slow_sync", seconds=seconds, pattern=pattern)

    def fail_sync(self, pattern: str = "*", *, once: bool = False) -> DiskState:
        return self._ask("fail_sync", pattern=pattern, once=once)

    def fail_read(self, pattern: str = "*") -> DiskState:
        return self._ask("fail_read", pattern=pattern)

    def disk_full(self, bytes_left: int = 0) -> DiskState:
        return self._ask("disk_full", bytes_left=bytes_left)

    def die_at(self, pattern: str = "*", *, operations: int = 0, bytes_written: int = 0) -> DiskState:
        return self._ask("die_at", pattern=pattern, operations=operations, bytes_written=bytes_written)

    def mend(self, what: str = "") -> DiskState:
        """End this fault, or all of them."""
        return self._ask("mend", what=what)

    def look(self) -> DiskState:
        return self._ask("look")

    def counts(self) -> Counter[str]:
        """Return what the disk's faults did since its process began, even if it has ended; the names are those of
        disk_faults.py.
        """
        try:
            return Counter(json.loads(_counts(self._path).read_text()))
        except FileNotFoundError:
            return Counter()

    def _ask(self, do: str, /, **arguments: Any) -> DiskState:
        try:
            with socket.socket(socket.AF_UNIX) as connection, _address(self._path) as address:
                connection.settimeout(ASK_S_MAX)
                connection.connect(address)
                connection.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
                with connection.makefile("rb") as answers:
                    line = answers.readline(LINE_BYTES_MAX)
        except OSError as error:
            raise ConnectionError(f"the disk at {self._path} does not answer: {error}") from error
        if not line.endswith(b"\n"):
            raise ConnectionError(f"the disk at {self._path} is gone")
        answer = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        return DiskState(answer["operations"], tuple(answer["files"]), tuple(answer["folders"]))


def serve(disk: FaultyDisk, path: Path) -> None:
    """Run the broker's end until the process ends. The socket listens on return."""
    listener = socket.socket(socket.AF_UNIX)
    for old in (path, _counts(path)):
        with contextlib.suppress(FileNotFoundError):
            old.unlink()  # the socket of a killed process
    disk.faults.on_effect = lambda counts: _keep(path, counts)
    with _address(path) as address:
        listener.bind(address)
    listener.listen()
    threading.Thread(target=_accept, args=(disk, listener), name="disk-control", daemon=True).start()


def _keep(path: Path, counts: Mapping[str, int]) -> None:
    new = _counts(path).with_suffix(".new")
    new.write_text(json.dumps(counts))
    new.replace(_counts(path))


def _counts(path: Path) -> Path:
    return path.with_name(f"{path.name}.counts")


def _accept(disk: FaultyDisk, listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        connection.settimeout(ASK_S_MAX)
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as lines:
            for line in iter(lambda: lines.readline(LINE_BYTES_MAX), b""):
                connection.sendall(json.dumps(_answer(disk, line)).encode() + b"\n")


def _answer(disk: FaultyDisk, line: bytes) -> dict[str, Any]:
    try:
        arguments = json.loads(line)
        what = arguments.pop("do")
        if what not in DOES:
            return {"error": f"{what!r} is not one of {', '.join(DOES)}"}
        if what != "look":
            getattr(disk.faults, what)(**arguments)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return {"error": f"not understood: {error}"}
    files, folders = disk.unsynced
    return {"operations": disk.faults.operations, "files": files, "folders": folders}


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """Return the address of a socket at `path`. Linux accepts a long path through an open directory."""
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)

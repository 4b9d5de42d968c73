"""The connections of this machine's processes, according to the system (Linux)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

ESTABLISHED = "01"


def dialled() -> Iterator[tuple[int, str]]:
    """Return every IPv4 connection as (port it connects to, inode of its socket)."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == ESTABLISHED:
            yield int(fields[2].rpartition(":")[2], 16), fields[9]


def inodes(pid: int) -> set[str]:
    """Return the inodes of the sockets that a process has open."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            name = os.readlink(fd)
            if name.startswith("socket:["):
                found.add(name[len("socket:[") : -1])
    return found

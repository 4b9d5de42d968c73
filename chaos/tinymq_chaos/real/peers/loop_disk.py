"""A file system of its own, in a file, whose power can be cut: for programs whose writes we cannot stand between.

ext4 on a loop device, mounted with its defaults. A cut is ext4's own `shutdown` without a flush of its log, which file
system tests use for the same: from then on nothing reaches the device, and what only memory held is lost. Mounted
again, the journal is replayed, as after a real power cut. What the device itself got is kept, synced or not: a cut here
is kinder than one that also takes a disk's own cache.

Linux, and the rights to mount. `why_not` says what is missing. Who is ended by SIGKILL leaves a mounted folder behind.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

SIZE_BYTES = 1 << 30  # sparse
COMMAND_S = 60.0
_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125  # _IOR('X', 125, __u32), linux/fs/ext4/ext4.h
_WITHOUT_FLUSH = 2  # EXT4_GOING_FLAGS_NOLOGFLUSH


def why_not() -> str:
    """Why there can be no such disk here; "" when there can."""
    if sys.platform != "linux":
        return "loop devices are Linux's"
    if missing := [program for program in ("mkfs.ext4", "mount", "umount") if shutil.which(program) is None]:
        return f"there is no {', '.join(missing)} (Debian: apt install e2fsprogs mount)"
    if os.geteuid() != 0:
        return "mounting needs root"
    return "" if Path("/dev/loop-control").exists() else "there is no /dev/loop-control"


class LoopDisk:
    """Mounted from its making to `close`."""

    def __init__(self, image: Path, at: Path) -> None:
        """Raises RuntimeError where it cannot be had."""
        if reason := why_not():
            raise RuntimeError(f"no disk whose power can be cut: {reason}")
        self._image = image
        self._at = at
        with image.open("wb") as file:
            file.truncate(SIZE_BYTES)
        at.mkdir(parents=True, exist_ok=True)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
        self._mount()
        atexit.register(self.close)

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self._at))
        with contextlib.suppress(FileNotFoundError):
            (self._at / "lost+found").rmdir()  # nobody's data

    def cut(self) -> None:
        """From now on nothing is written, and every write fails."""
        folder = os.open(self._at, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH))
        finally:
            os.close(folder)

    def mount_again(self) -> None:
        """As a machine finds it when it starts again. Nobody may have a file open on it."""
        _run("umount", str(self._at))
        self._mount()

    def close(self) -> None:
        atexit.unregister(self.close)
        if os.path.ismount(self._at):
            _run("umount", str(self._at))
        self._image.unlink(missing_ok=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")

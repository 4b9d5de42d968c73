"""A file system of its own, in a file, whose power can be cut: for programs whose writes the harness cannot intercept.

It is ext4 on a loop device, mounted with its defaults. A cut is ext4's own `shutdown` without a flush of its log, as in
file system tests: from then on nothing reaches the device, and everything that only memory held is lost. The next mount
replays the journal, as after a real power cut. The device keeps everything that it got, synced or not, so a cut here is
kinder than one that also takes a disk's cache.

It needs Linux and the right to mount; `why_not` tells what is missing. A harness that SIGKILL ends leaves a mounted
directory.
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
    """Return why such a disk is impossible here; "" if it is possible."""
    if sys.platform != "linux":
        return "loop devices are Linux's"
    if missing := [program for program in ("mkfs.ext4", "mount", "umount") if shutil.which(program) is None]:
        return f"there is no {', '.join(missing)} (Debian: apt install e2fsprogs mount)"
    if os.geteuid() != 0:
        return "mounting needs root"
    return "" if Path("/dev/loop-control").exists() else "there is no /dev/loop-control"


class LoopDisk:
    """A disk that is mounted from its creation to `close`."""

    def __init__(self, image: Path, at: Path) -> None:
        """Create and mount the disk. Raises RuntimeError where that is impossible."""
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
            (self._at / "lost+found").rmdir()  # not part of the data

    def cut(self) -> None:
        """From now on nothing is written, and every write fails."""
        folder = os.open(self._at, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH))
        finally:
            os.close(folder)

    def mount_again(self) -> None:
        """Mount the disk as a machine finds it at its next start. No process may have a file open on it."""
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

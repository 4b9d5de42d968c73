"""The audit log on disk: JSON lines in audit.jsonl, with mode 0600, and older files beside it.

audit.jsonl    the newest lines
audit.1.jsonl  the file before it, and so on
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import structlog

from tinymq.access.audit import Audit
from tinymq.base.clock import Clock
from tinymq.base.config import BrokerConfig
from tinymq.base.errors import UnsafePath
from tinymq.base.private_files import DIRECTORY_MODE, open_private
from tinymq.log.files.runner import Runner

FILE_BYTES_MAX = 16 << 20
FILES_MAX = 8
GATHER_S = 0.1  # lines of this time are written together

logger = structlog.get_logger("tinymq.access")


class AuditFile:
    """The files of one broker, below `directory`, which is made with mode 0700. All calls block."""

    def __init__(self, directory: Path, bytes_max: int = FILE_BYTES_MAX, files_max: int = FILES_MAX) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._files_max = files_max

    @property
    def path(self) -> Path:
        """The path of the newest lines."""
        return self._directory / "audit.jsonl"

    def append(self, lines: Iterable[bytes]) -> None:
        """Append whole lines. Raises OSError, UnsafePath."""
        self._directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        data = b"".join(lines)
        if self.path.exists() and self.path.stat().st_size + len(data) > self._bytes_max:
            self._rotate()
        fd = open_private(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)

    def _older(self, number: int) -> Path:
        return self._directory / f"audit.{number}.jsonl"

    def _rotate(self) -> None:
        for number in range(self._files_max - 1, 0, -1):
            newer = self._older(number - 1) if number > 1 else self.path
            if newer.exists():
                newer.replace(self._older(number))


def open_audit_log(
    config: BrokerConfig, audit: Audit, runner: Runner, clock: Clock,
    spawn: Callable[[Coroutine[Any, Any, None]], object],
) -> AuditLog:  # fmt: skip
    """The audit log of a broker of this configuration. Its directory is made with the first line."""
    directory = Path(config.audit_dir or Path(config.data_dir) / "audit")
    return AuditLog(audit, AuditFile(directory), runner, clock, spawn)


class AuditLog:
    """Writes the lines of an Audit to its files, several at a time, in a thread."""

    def __init__(
        self, audit: Audit, file: AuditFile, runner: Runner, clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:  # fmt: skip
        self._audit = audit
        self._file = file
        self._runner = runner
        self._clock = clock
        audit.wake = lambda: spawn(self._write_soon())

    async def close(self) -> None:
        """Write what waits, and nothing more."""
        self._audit.wake = lambda: None
        await self.flush()

    async def _write_soon(self) -> None:
        await self._clock.sleep(GATHER_S)
        await self.flush()

    async def flush(self) -> None:
        """Write every line that waits. Lines that cannot be written are lost, and the broker's log says so."""
        lines = self._audit.take()
        if not lines:
            return
        try:
            await self._runner.run(lambda: self._file.append(lines))
        except (OSError, UnsafePath) as error:
            logger.error("audit_lines_lost", lines=len(lines), path=str(self._file.path), reason=str(error))

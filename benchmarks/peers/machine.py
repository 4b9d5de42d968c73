"""The machine that a page of figures was measured on, and how busy it was."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from benchmarks.measure import memory_bytes

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Machine:
    """For the head of a page."""

    measured: datetime
    commit: str
    load: Sequence[float]  # load averages, before and after
    aged_s: float
    took_s: float

    @classmethod
    def this(cls, load: Sequence[float], aged_s: float, took_s: float) -> Self:
        """`load`: the averages of the last minute, before and after. `aged_s`: touching the memory took so long."""
        command = ["git", "describe", "--always", "--dirty"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return cls(datetime.now(UTC), done.stdout.strip() or "unknown", load, aged_s, took_s)

    @property
    def lines(self) -> list[str]:
        """Markdown, a list."""
        before, after = self.load
        return [
            f"- {self.measured:%Y-%m-%d %H:%M} UTC, commit {self.commit}, {self.took_s / 60:.0f} minutes in all",
            f"- {os.cpu_count()} cores, {memory_bytes() / 1e9:.0f} GB, Linux {platform.release()}, "
            f"Python {platform.python_version()}",
            f"- load average {before:.1f} before and {after:.1f} after; "
            + (f"memory touched first ({self.aged_s:.0f} s)" if self.aged_s > 0.1 else "memory not touched first"),
        ]

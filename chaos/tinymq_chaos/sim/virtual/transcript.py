"""The transcript of a run, line by line in virtual time: faults, log lines of brokers, and how calls ended.

Two runs of one seed give the same bytes. Log lines come from structlog, with the process that wrote them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from tinymq_chaos.history import History
from tinymq_chaos.sim.virtual.event_loop import VirtualLoop, running_process

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Transcript:
    """Lines with their times, in order."""

    def __init__(self) -> None:
        self.broken: list[str] = []  # invariants that brokers found broken: they fail the run
        self._loop: VirtualLoop | None = None
        self._lines: list[tuple[float, str]] = []

    def add(self, at_s: float, line: str) -> None:
        self._lines.append((at_s, ADDRESS.sub("", line)))

    def lines(self, history: History) -> list[str]:
        """Return all lines, with the ends of all calls."""
        calls = [(c.ended_s if c.ended_s is not None else c.deadline_s, f"call {c}") for c in history.calls]
        merged = sorted([*self._lines, *calls], key=lambda line: line[0])
        return [f"{at_s:10.6f} {line}" for at_s, line in merged]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record the log lines of brokers, and print none of them."""

        def take(logger: object, name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
            if self._loop is not None:
                self._take(self._loop.time(), dict(event))
            raise structlog.DropEvent

        structlog.configure(processors=[take])
        try:
            yield
        finally:
            structlog.reset_defaults()

    def begin(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def end(self) -> None:
        self._loop = None

    def _take(self, at_s: float, event: dict[str, Any]) -> None:
        process = running_process()
        error = event.pop("exc_info", None)
        what = event.pop("event")
        event.pop("broker", None) if process is not None and what == "broker_state" else None
        facts = "".join(f" {name}={value}" for name, value in event.items())
        line = f"{process.name if process is not None else 'nobody'}: {what}{facts}"
        if isinstance(error, BaseException):
            line += f" {error!r}"
            if process is None or process.alive:
                self.broken.append(f"t={at_s:.3f} {ADDRESS.sub('', line)}")
        self.add(at_s, line)


def digest(lines: list[str]) -> str:
    """Return the digest of a complete transcript."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()

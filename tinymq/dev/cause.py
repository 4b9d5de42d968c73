"""Finds out from a broker's log why the broker did not start, in one line. Pure except for reading the log.

The error that ended the process takes precedence; then the last logged error; then the last warning about a condition
that a retry does not cure; then the last warning. Retriable warnings come last, because an unreachable broker is
usually a consequence of the cause.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinymq.base.errors import BY_CODE, TinymqError
from tinymq.base.private_files import open_private

STARTED = "process_started"  # the event that is logged before each start of the process
LINES_MAX = 2_000
FOLLOWED_BYTES_MAX = 1 << 20

_ENDED = re.compile(r"error: (?P<reason>.*) \[(?P<code>\w+)\]")  # the format of tinymq.cli.common.exits.explain


@dataclass(frozen=True, slots=True)
class StartFailure:
    """The reason of a failure, and what to do about it if that is known."""

    message: str
    hint: str = ""


def mark_start(log: Path, broker: int, timestamp: str) -> None:
    """Mark in the log that a process starts here: the lines before the mark belong to an earlier process."""
    event = {"broker": broker, "event": STARTED, "level": "info", "timestamp": timestamp}
    with os.fdopen(open_private(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a") as file:
        file.write(json.dumps(event) + "\n")


def tail(path: Path, lines: int) -> list[str]:
    """Return the last `lines` lines of a log, or none if there is no log."""
    if not path.exists():
        return []
    with os.fdopen(open_private(path, os.O_RDONLY), errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, maxlen=lines)]


def lines_from(path: Path, position: int) -> tuple[list[str], int]:
    """Return the complete lines of a log from a position on, and the position after them.

    Reads at most FOLLOWED_BYTES_MAX bytes; a line longer than that is cut.
    """
    with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
        file.seek(position)
        read = file.read(FOLLOWED_BYTES_MAX)
    whole = read[: read.rfind(b"\n") + 1] or (read if len(read) == FOLLOWED_BYTES_MAX else b"")
    return whole.decode(errors="replace").removesuffix("\n").split("\n") if whole else [], position + len(whole)


def of_log(path: Path) -> StartFailure:
    """Find out from a log why the process that was started last did not come up."""
    return of_lines(tail(path, LINES_MAX))


def of_lines(lines: Sequence[str]) -> StartFailure:
    """Find the cause in the lines of a log, as `of_log` does. Pure."""
    lines = _since_start(lines)
    for i in range(len(lines) - 1, -1, -1):
        if ended := _ENDED.fullmatch(lines[i]):
            hint = lines[i + 1].removeprefix("hint: ") if lines[i + 1 : i + 2] and "hint: " in lines[i + 1] else ""
            return StartFailure(f"{ended['code']}: {ended['reason']}", hint)
    events = [event for event in map(_event, lines) if "reason" in event or "exception" in event]
    errors = [event for event in events if event.get("level") in ("error", "critical")]
    warnings = [event for event in events if event.get("level") == "warning"]
    permanent = [event for event in warnings if not _kind(event).retriable]
    for candidates in (errors, permanent, warnings):
        if candidates:
            return _cause(candidates[-1])
    plain = [line for line in lines if line and not _event(line)]
    return StartFailure(plain[-1] if plain else "its log does not say why")


def _since_start(lines: Sequence[str]) -> Sequence[str]:
    starts = [i for i, line in enumerate(lines) if _event(line).get("event") == STARTED]
    return lines[starts[-1] + 1 :] if starts else lines


def _event(line: str) -> dict[str, Any]:
    """Parse a line as an event. Returns {} for a line that is not an event."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _code(event: dict[str, Any]) -> str:
    return str(event.get("code") or event.get("error") or "")


def _kind(event: dict[str, Any]) -> type[TinymqError]:
    return BY_CODE.get(_code(event), TinymqError)


def _cause(event: dict[str, Any]) -> StartFailure:
    reason = str(event.get("reason") or _last_line(str(event.get("exception", "")).splitlines()))
    name = _code(event) or str(event.get("event", ""))
    return StartFailure(f"{name}: {reason}", str(event.get("hint") or _kind(event).default_hint))


def _last_line(lines: Iterable[str]) -> str:
    return next(reversed(list(lines)), "")

"""The audit log: who did what on which resource, from where, and whether it was allowed. JSON lines without secrets.

    {"time":"2026-11-27T18:02:11.123Z","who":"alice","proof":"token","from":"10.0.0.7","client":"etl-17",
     "call":"Broker.Produce","operation":"write","resource":"topic:orders","allowed":true}

Denials and changes are always recorded; equal denials within REPEAT_S make one further line with their `count`. A
caller's reads and writes are recorded once for each stream and topic; those of single calls, once in READ_S. Lines are
collected here in memory, up to LINES_MAX, and a `sink` writes them; lines beyond are counted, and the next line tells.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tinymq.base.clock import Clock

REPEAT_S = 10.0
READ_S = 600.0
LINES_MAX = 10_000  # that wait to be written
KEYS_MAX = 10_000  # remembered denials, and remembered reads and writes

QUIET = frozenset({"read", "write"})  # recorded once; "describe" is recorded only when it is denied


@dataclass(frozen=True, slots=True)
class Event:
    """One decision."""

    who: str  # "": nobody
    proof: str
    host: str
    client: str  # as the client names itself
    call: str
    operation: str
    resource: str
    allowed: bool


class Audit:
    """The events of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.wake: Callable[[], object] = lambda: None  # called when the first line of several waits to be written
        self._lines: list[bytes] = []
        self._lost = 0
        self._denied: OrderedDict[Event, list[float]] = OrderedDict()  # [when it was recorded, repeats since then]
        self._seen: OrderedDict[Event, float] = OrderedDict()  # reads and writes, and when they were recorded

    def note(self, event: Event, *, once: bool = False, **more: Any) -> None:
        """Record a decision, unless a line of a moment ago says the same. `once`: the caller repeats nothing."""
        now_s = self._clock.monotonic()
        if not event.allowed:
            self._note_denial(event, now_s)
        elif once or event.operation not in QUIET:
            if event.operation != "describe":
                self._write(event, more)
        elif now_s - self._seen.get(event, -READ_S) >= READ_S:
            _remember(self._seen, event, now_s)
            self._write(event, more)

    def take(self) -> list[bytes]:
        """Return the lines that wait, and forget them."""
        lines, self._lines = self._lines, []
        return lines

    def _note_denial(self, event: Event, now_s: float) -> None:
        known = self._denied.get(event)
        if known is not None and now_s - known[0] < REPEAT_S:
            known[1] += 1
            return
        repeats = known[1] if known is not None else 0
        _remember(self._denied, event, [now_s, 0])
        self._write(event, {"count": int(repeats)} if repeats else {})

    def _write(self, event: Event, more: dict[str, Any]) -> None:
        if len(self._lines) >= LINES_MAX:
            self._lost += 1
            return
        if self._lost:
            more, self._lost = {**more, "lost_before": self._lost}, 0
        at = datetime.fromtimestamp(self._clock.wall_us() / 1e6, UTC)
        line = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "who": event.who,
            "proof": event.proof,
            "from": event.host,
            "client": event.client,
            "call": event.call,
            "operation": event.operation,
            "resource": event.resource,
            "allowed": event.allowed,
            **more,
        }
        self._lines.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        if len(self._lines) == 1:
            self.wake()


def _remember(seen: OrderedDict[Event, Any], event: Event, value: Any) -> None:
    seen[event] = value
    seen.move_to_end(event)
    if len(seen) > KEYS_MAX:
        seen.popitem(last=False)

"""The leaders over time, from the brokers' log files: each change of a replica's role is a line there.

The files are read as they grow, several times a second, and a line counts as an event of the present. So no change is
missed, however short, and however little CPU time the harness gets; but every event is late by the time to write and
read a line (Slack in verdict.py). A stopped or killed broker writes nothing: its process shows that it leads nothing.
(The alternative, to ask /status ten times a second, misses shorter terms and gets no answer from a stopped broker.)
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tinymq.dev.cause import STARTED
from tinymq_chaos.history import METADATA, History, LeaderSpan, Log
from tinymq_chaos.real.system.target import Target

UNNAMED = "?"  # the first character of the TOPIC of a line that has only the beginning of its id
LEADER = "leader"
DAMAGE = ("replica_repairs", "follower_lost_entries")


@dataclass(slots=True)
class FileTail:
    """A file that grows."""

    path: Path
    _at: int = 0
    _rest: bytes = b""

    def lines(self) -> Iterator[str]:
        """Return the complete lines since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                found = file.read()
        except FileNotFoundError:
            return
        self._at += len(found)
        *whole, self._rest = (self._rest + found).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")


@dataclass(slots=True)
class LeaderLog:
    """The log files of all brokers of a target."""

    target: Target
    history: History
    _tails: dict[int, FileTail] = field(default_factory=dict)

    def look(self, hurt: Collection[int] = ()) -> None:
        """Read the new lines. `hurt`: brokers whose disks faults have damaged, and that may report it."""
        for broker in self.target.brokers:
            tail = self._tails.setdefault(broker, FileTail(self.target.log_file(broker)))
            for line in tail.lines():
                event = event_of(line)
                if event is not None:
                    self._happened(broker, event, broker in hurt)
            if not self.target.running(broker):
                self.history.leads_no_more(broker)

    def _happened(self, broker: int, event: Mapping[str, Any], hurt: bool) -> None:
        kind = event.get("event")
        if kind == STARTED:
            self.history.leads_no_more(broker)  # it was another process, which may have ended between two looks
        log = log_of(str(event.get("group", "")))
        if log is None:
            return
        if kind == "replica_changed":
            term = int(event["term"])
            self._leads(broker, log, term if event["role"] == LEADER else None)
        elif kind in DAMAGE and not hurt:
            self.history.damaged(log, broker, f"{kind}: {event.get('reason', '')}")

    def _leads(self, broker: int, log: Log, term: int | None) -> None:
        known = [led for led in self.history.leaders.values() if (led.log, led.broker) == (log, broker)]
        for led in known:
            if led.until_s is None and led.term != term:
                led.until_s = self.history.now()
        if term is not None:
            self.history.led(log, term, broker)


def event_of(line: str) -> Mapping[str, Any] | None:
    """Return a line of a broker's log as JSON; None: it is something else."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def log_of(group: str) -> Log | None:
    """Return the log that a line names: `metadata`, or the beginning of a topic's id and a partition."""
    if group == "metadata":
        return METADATA
    topic, _, number = group.partition("/")
    return (f"{UNNAMED}#{topic}", int(number)) if topic and number.isdigit() else None


def name_logs(history: History, topics: Mapping[str, str]) -> int:
    """Give the observed logs their TOPIC:

    `topics` has them by id, in hex. Topics without a known name (neither their creation nor their deletion had an
    answer) are left out; return the number of their terms.
    """
    named = {topic_id[:8]: topic for topic_id, topic in topics.items()}
    leaders: dict[tuple[Log, int, int], LeaderSpan] = {}
    unnamed = 0
    for led in history.leaders.values():
        log = _named(led.log, named)
        if log is None:
            unnamed += 1
        else:
            leaders[log, led.term, led.broker] = replace(led, log=log)
    history.leaders = leaders
    history.found = [replace(found, log=_named(found.log, named) or found.log) for found in history.found]
    return unnamed


def _named(log: Log, topics: Mapping[str, str]) -> Log | None:
    name, _, beginning = log[0].partition("#")
    if name != UNNAMED:
        return log
    return (topics[beginning], log[1]) if beginning in topics else None

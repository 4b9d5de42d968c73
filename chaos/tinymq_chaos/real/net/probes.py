"""What a fault of the network did, seen from before it begins until it ends: at lines of the harness's own through the
proxies that it is done to (probe_connections.py). A fault that did nothing is told from one that was survived.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from tinymq_chaos.real.net.network import Direction, Network
from tinymq_chaos.real.net.probe_connections import ProbeConnection, ProbeReading

CALM_S_MAX = 1.0  # for what is sent before
CALM_TRIES = 5
SLOW_TRIES = 3  # a toxic that comes or goes beside another lets what that one holds back through at once
SILENT_S = 0.3  # nothing came for so long: it is cut
GRACE_S = 1.0  # a fault lasts so much longer, if what it does has not been seen yet: the machine is busy
SLOW_S = 0.1  # that what is sent is meant to take
BYTES_MAX = 64 << 10
SLICES_MAX = 256
CLOSE_S = 0.3  # an end that is so late was held back


@dataclass(frozen=True, slots=True)
class ProbeTraffic:
    """What is sent along a line while the fault lasts."""

    size: int = 1  # bytes
    hang_up: bool = False  # nothing is sent, and the line ended
    within_s: float = SILENT_S
    slow_s: float = 0.0  # what is sent takes at least this long, as the fault is meant


class Probe:
    """`begin` when the fault has begun, `effect` before it ends, `close` after it."""

    def __init__(self, net: Network, directions: Iterable[Direction], question: ProbeTraffic) -> None:
        """Opens lines where it can, and sees that they carry something."""
        self._net = net
        self._question = question
        self._enough = threading.Event()
        self._lines: list[tuple[Direction, ProbeConnection]] = []
        self._seen: list[ProbeReading] = []
        self._asking: list[threading.Thread] = []
        self.before_s = 0.0  # that it took when all was well, on most lines: one may be slow by itself
        for direction in directions:
            with suppress(OSError):
                line = net.line(direction)
                self._lines.append((direction, line))
        size = question.size if question.slow_s else 1
        tries = CALM_TRIES if question.slow_s else 1  # the best of some: a busy machine is slow now and then
        calm = [
            (pair, min((pair[1].send(size, CALM_S_MAX) for _ in range(tries)), key=lambda seen: seen.took_s))
            for pair in self._lines
        ]
        self._good = [pair for pair, seen in calm if seen.arrived == size]
        self.before_s = median([seen.took_s for _, seen in calm if seen.arrived == size] or [0.0])

    def begin(self) -> None:
        self._asking = [threading.Thread(target=self._ask, args=pair, daemon=True) for pair in self._good]
        for thread in self._asking:
            thread.start()

    def seen(self, grace_s: float = 0.0) -> Sequence[ProbeReading]:
        """On every line, until now, or for so much longer where it is not over. Nothing: there is no line on which it
        could have been seen."""
        until_s = time.monotonic() + grace_s
        for thread in self._asking:
            thread.join(max(0.0, until_s - time.monotonic()))
        self._enough.set()
        for thread in self._asking:
            thread.join()
        return self._seen

    def close(self) -> None:
        for _, line in self._lines:
            line.close()

    def _ask(self, direction: Direction, line: ProbeConnection) -> None:
        asked = self._question
        if asked.hang_up:
            self._seen.append(line.hang_up(asked.within_s, self._enough))
            return
        seen = line.send(asked.size, asked.within_s, self._enough)
        if seen.ended and asked.slow_s:  # its proxy was begun anew: slow it is all the same
            with suppress(OSError):
                self._lines.append((direction, again := self._net.line(direction)))
                line, seen = again, again.send(asked.size, asked.within_s, self._enough)
        for _ in range(SLOW_TRIES - 1):
            if not asked.slow_s or seen.took_s >= asked.slow_s or seen.ended:
                break
            seen = line.send(asked.size, asked.within_s, self._enough)
        self._seen.append(seen)


def question(kind: str, how: Mapping[str, float]) -> ProbeTraffic:
    """That shows a toxic of this kind with these attributes."""
    if kind == "latency":
        return ProbeTraffic(1, within_s=10.0, slow_s=max(0.5, how["latency"] - how.get("jitter", 0.0)) / 1000)
    if kind == "bandwidth":
        size = max(1, min(BYTES_MAX, round(how["rate"] * 1000 * 2 * SLOW_S)))
        return ProbeTraffic(size, within_s=10.0, slow_s=size / (how["rate"] * 1000) / 2)
    if kind == "slicer":
        slices = max(2, min(SLICES_MAX, round(2 * SLOW_S * 1e6 / max(1.0, how["delay"]))))
        return ProbeTraffic(round(slices * how["average_size"]), within_s=10.0, slow_s=slices * how["delay"] / 1e6 / 2)
    if kind == "slow_close":
        return ProbeTraffic(hang_up=True, within_s=how["delay"] / 1000 + CALM_S_MAX)
    size = round(how["bytes"]) + 1 if kind == "limit_data" else 1
    return ProbeTraffic(size, within_s=how.get("timeout", 0.0) / 1000 + 10.0)


def silent(probe: Probe) -> str | None:
    """In words, of a cut; "": nothing was; None: there was nothing to see it by."""
    seen = probe.seen(GRACE_S)
    found = sum(each.arrived == 0 and not each.ended for each in seen)
    return _told(seen, f"nothing arrived in {found} of {len(seen)} directions" if found else "")


def slower(probe: Probe, slow_s: float, size: int) -> str | None:
    """Of what makes a direction slow."""
    seen = [each for each in probe.seen(2 * GRACE_S) if each.arrived]  # else another fault has cut it
    took_s = median([each.took_s for each in seen] or [0.0])  # one line may have been begun anew, and slow before
    slow = took_s >= slow_s and took_s > probe.before_s
    words = f"{size} bytes took {took_s * 1000:.0f} ms, and {probe.before_s * 1000:.1f} ms before"
    return _told(seen, words if slow else "")


def late(probe: Probe) -> str | None:
    """Of what holds back the end of a connection."""
    seen = probe.seen(2 * CLOSE_S)
    took_s = min((each.took_s for each in seen), default=0.0)
    return _told(seen, f"the end of a connection was held back for {took_s:.2f} s" if took_s >= CLOSE_S else "")


def ended(probe: Probe) -> str | None:
    """Of what ends connections."""
    seen = probe.seen(GRACE_S)
    found = [each for each in seen if each.ended]
    words = f"{len(found)} of {len(seen)} connections ended, after {found[0].took_s:.2f} s" if found else ""
    return _told(seen, f"{words} and {found[0].arrived} bytes" if found else "")


def _told(seen: Sequence[ProbeReading], words: str) -> str | None:
    return words if seen else None


def teller(kind: str, asked: ProbeTraffic) -> Callable[[Probe], str | None]:
    """Who says in words what a toxic of this kind did."""
    if asked.slow_s:
        return lambda probe: slower(probe, asked.slow_s, asked.size)
    return late if kind == "slow_close" else ended

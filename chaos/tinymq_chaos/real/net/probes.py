"""Observe the effect of a network fault from before it begins until it ends, with connections through the affected
proxies (probe_connections.py). So a fault without effect differs from a fault that the cluster survived.
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

CALM_S_MAX = 1.0  # for bytes that are sent before the fault
CALM_TRIES = 5
SLOW_TRIES = 3  # when a toxic comes or goes, another one lets the bytes that it holds back pass at once
SILENT_S = 0.3  # without a byte for so long, a direction is cut
GRACE_S = 1.0  # a fault without an observed effect lasts so much longer: the machine may be busy
SLOW_S = 0.1  # the intended duration of a slow transfer
BYTES_MAX = 64 << 10
SLICES_MAX = 256
CLOSE_S = 0.3  # an end of a connection that is so late was held back


@dataclass(frozen=True, slots=True)
class ProbeTraffic:
    """The traffic of a probe while the fault lasts."""

    size: int = 1  # bytes
    hang_up: bool = False  # send nothing, and close the connection
    within_s: float = SILENT_S
    slow_s: float = 0.0  # the fault should make the transfer take at least this long


class Probe:
    """Call `begin` when the fault has begun, `effect` before it ends, and `close` after it."""

    def __init__(self, net: Network, directions: Iterable[Direction], traffic: ProbeTraffic) -> None:
        """Open connections where possible, and check that they carry bytes."""
        self._net = net
        self._traffic = traffic
        self._enough = threading.Event()
        self._lines: list[tuple[Direction, ProbeConnection]] = []
        self._seen: list[ProbeReading] = []
        self._asking: list[threading.Thread] = []
        self.before_s = 0.0  # the time of a transfer without the fault, on most connections: one may be slow by itself
        for direction in directions:
            with suppress(OSError):
                line = net.line(direction)
                self._lines.append((direction, line))
        size = traffic.size if traffic.slow_s else 1
        tries = CALM_TRIES if traffic.slow_s else 1  # take the best of several: a busy machine is slow now and then
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
        """Return the readings of all connections, now or so much later if a transfer has not ended.

        Empty: no connection could show anything.
        """
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
        asked = self._traffic
        if asked.hang_up:
            self._seen.append(line.hang_up(asked.within_s, self._enough))
            return
        seen = line.send(asked.size, asked.within_s, self._enough)
        if seen.ended and asked.slow_s:  # the proxy was replaced; the direction is slow all the same
            with suppress(OSError):
                self._lines.append((direction, again := self._net.line(direction)))
                line, seen = again, again.send(asked.size, asked.within_s, self._enough)
        for _ in range(SLOW_TRIES - 1):
            if not asked.slow_s or seen.took_s >= asked.slow_s or seen.ended:
                break
            seen = line.send(asked.size, asked.within_s, self._enough)
        self._seen.append(seen)


def traffic_for(kind: str, how: Mapping[str, float]) -> ProbeTraffic:
    """Return the traffic that shows a toxic of this kind with these attributes."""
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


def describe_silence(probe: Probe) -> str | None:
    """Describe the effect of a cut; "": it had none; None: it could not be observed."""
    seen = probe.seen(GRACE_S)
    found = sum(each.arrived == 0 and not each.ended for each in seen)
    return _effect(seen, f"nothing arrived in {found} of {len(seen)} directions" if found else "")


def describe_slowness(probe: Probe, slow_s: float, size: int) -> str | None:
    """Describe the effect of a fault that slows a direction down."""
    seen = [each for each in probe.seen(2 * GRACE_S) if each.arrived]  # otherwise another fault cuts the direction
    took_s = median([each.took_s for each in seen] or [0.0])  # one connection may have been replaced, and slow before
    slow = took_s >= slow_s and took_s > probe.before_s
    effect = f"{size} bytes took {took_s * 1000:.0f} ms, and {probe.before_s * 1000:.1f} ms before"
    return _effect(seen, effect if slow else "")


def describe_late_end(probe: Probe) -> str | None:
    """Describe the effect of a fault that delays the end of a connection."""
    seen = probe.seen(2 * CLOSE_S)
    took_s = min((each.took_s for each in seen), default=0.0)
    return _effect(seen, f"the end of a connection was held back for {took_s:.2f} s" if took_s >= CLOSE_S else "")


def describe_ends(probe: Probe) -> str | None:
    """Describe the effect of a fault that ends connections."""
    seen = probe.seen(GRACE_S)
    found = [each for each in seen if each.ended]
    effect = f"{len(found)} of {len(seen)} connections ended, after {found[0].took_s:.2f} s" if found else ""
    return _effect(seen, f"{effect} and {found[0].arrived} bytes" if found else "")


def _effect(seen: Sequence[ProbeReading], effect: str) -> str | None:
    return effect if seen else None


def describer_of(kind: str, asked: ProbeTraffic) -> Callable[[Probe], str | None]:
    """Return the function that describes the effect of a toxic of this kind."""
    if asked.slow_s:
        return lambda probe: describe_slowness(probe, asked.slow_s, asked.size)
    return describe_late_end if kind == "slow_close" else describe_ends

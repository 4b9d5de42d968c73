"""The health of each broker: how it answered lately, and when to ask it again. Pure: the time is an argument.

This module answers two questions. *Which of several brokers is asked?* `cost` ranks them. A broker that was slow goes
behind the others for a while, by RocketMQ's latency fault tolerance: an answer after 550, 1800, 3000, 5000 or 15000 ms
counts for 2, 5, 6, 10 or 30 s. A broker that failed goes behind them for a time that doubles with each failure in a
row. *When is the only broker that can answer asked again?* A partition has one leader, and `retry_s` says when to try
it. Only failures in a row delay the next attempt, by at most 0.25 s (RECONNECT). A slow answer delays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.base.retry import Backoff

SLOW = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))  # (latency_s, avoided for these seconds)
AVOIDED = Backoff(0.02, 2.0)  # how long a broker goes behind the others, by its failures in a row
RECONNECT = Backoff(0.02, 0.25)  # between two attempts to connect to the only broker that can answer
SMOOTHING = 0.2


@dataclass(slots=True)
class BrokerHealth:
    """The health of one broker."""

    latency_s: float = 0.0  # smoothed; 0: it has not answered yet
    failures: int = 0  # in a row, since its last answer
    failed_s: float = 0.0  # when the last failure was
    avoided_until_s: float = 0.0
    reason: str = ""  # why it is avoided


class ClusterHealth:
    """The brokers of one client, by address."""

    def __init__(self) -> None:
        self._records: dict[str, BrokerHealth] = {}

    def answered(self, address: str, latency_s: float, now_s: float) -> None:
        """Note an answer after `latency_s`. The time that a fetch waits for records is not latency."""
        record = self._timed(address, latency_s)
        if record.failures:
            record.failures, record.avoided_until_s, record.reason = 0, 0.0, ""
        for slow_s, avoided_s in SLOW:
            if latency_s >= slow_s:
                record.avoided_until_s = max(record.avoided_until_s, now_s + avoided_s)
                record.reason = f"answered after {latency_s:.1f} s"
                break

    def served(self, address: str, latency_s: float) -> None:
        """Note an answer with many records after `latency_s`.

        The time of a large answer tells which broker is faster. It is no reason to avoid one.
        """
        self._timed(address, latency_s)

    def _timed(self, address: str, latency_s: float) -> BrokerHealth:
        record = self._records.setdefault(address, BrokerHealth())
        record.latency_s += SMOOTHING * (latency_s - record.latency_s) if record.latency_s else latency_s
        return record

    def failed(self, address: str, reason: str, now_s: float) -> None:
        """Note that a broker refused a connection, broke it, or stayed silent."""
        record = self._records.setdefault(address, BrokerHealth())
        record.failures += 1
        record.failed_s = now_s
        record.avoided_until_s = max(record.avoided_until_s, now_s + AVOIDED.pause_s(record.failures))
        record.reason = reason

    def suspect(self, address: str, silent_s: float, now_s: float) -> None:
        """Note that a broker has kept a request waiting, and may still answer. One silence counts as one failure."""
        if not self.cost(address, now_s)[0]:
            self.failed(address, f"silent for {silent_s:.1f} s", now_s)

    def forgive(self, address: str) -> None:
        """Forget the failures of a broker, because something shows that it is alive."""
        record = self._records.get(address)
        if record is not None:
            record.failures, record.avoided_until_s, record.reason = 0, 0.0, ""

    def cost(self, address: str, now_s: float) -> tuple[float, float]:
        """Return (seconds for which a broker is still avoided, its usual latency in seconds)."""
        record = self._records.get(address)
        if record is None:
            return (0.0, 0.0)
        return (max(0.0, record.avoided_until_s - now_s), record.latency_s)

    def failing(self, address: str) -> bool:
        """Has the broker failed since its last answer?"""
        record = self._records.get(address)
        return record is not None and record.failures > 0

    def retry_s(self, address: str, now_s: float) -> float:
        """Return the seconds until the only broker that can answer may be tried again; 0: now."""
        record = self._records.get(address)
        if record is None or not record.failures:
            return 0.0
        return max(0.0, record.failed_s + RECONNECT.pause_s(record.failures) - now_s)

    def reason(self, address: str) -> str:
        """Return why a broker is avoided; "" if it is not."""
        record = self._records.get(address)
        return record.reason.removeprefix(f"{address}: ") if record is not None else ""

"""Logs that are synced at intervals: which of them have unsynced writes, and when their next sync is due."""

from __future__ import annotations

from collections.abc import Callable

from tinymq.base.clock import Clock, Timer
from tinymq.log.replica_log.log import Log

NEVER = float("inf")
AHEAD = 0.5  # a log joins a sync when this share of its interval is left: many files are synced as fast as one


class IntervalSync:
    """Owned by the writer, on the loop. Times are those of the broker's monotonic clock; one timer serves all logs."""

    def __init__(self, clock: Clock, on_due: Callable[[], None]) -> None:
        self.next_s = NEVER  # the next sync of any log is due then
        self._clock = clock
        self._on_due = on_due
        self._timer: Timer | None = None
        self._timer_s = NEVER  # the timer fires then
        self._due_s: dict[Log, float] = {}  # logs with unsynced writes, in the order of the first of these writes

    def __contains__(self, log: Log) -> bool:
        return log in self._due_s

    def __bool__(self) -> bool:
        return bool(self._due_s)

    def logs(self) -> list[Log]:
        return list(self._due_s)

    def wrote(self, log: Log, now_s: float) -> None:
        """Note that a sync batch which began at `now_s` wrote the log and did not sync it.

        The interval may have been altered since the first unsynced write. The earlier of the two due times counts, so
        that neither promise is broken.
        """
        due_s = min(self._due_s.get(log, NEVER), now_s + log.config.sync_interval_s)
        self._due_s[log] = due_s
        self.next_s = min(self.next_s, due_s)

    @property
    def anybody_due(self) -> bool:
        return self.next_s <= self._clock.monotonic()

    def due(self, now_s: float) -> list[Log]:
        """Return the logs that the sync batch which begins now syncs."""
        if now_s < self.next_s:
            return []
        due = [log for log, due_s in self._due_s.items() if due_s - AHEAD * log.config.sync_interval_s <= now_s]
        self.next_s = min((due_s for log, due_s in self._due_s.items() if log not in due), default=NEVER)
        return due

    def drop(self, log: Log) -> None:
        """Forget the log: it is synced, has failed, or is closed."""
        self._due_s.pop(log, None)

    def set_timer(self) -> None:
        """Let `on_due` be called when the next sync is due.

        If one is due already, no timer is set: the sync batch that includes it calls this again.
        """
        now_s = self._clock.monotonic()
        if now_s < self.next_s < self._timer_s:
            self.stop()
            self._timer_s = self.next_s
            self._timer = self._clock.call_later(self.next_s - now_s, self._timer_due)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = None, NEVER

    def _timer_due(self) -> None:
        self._timer, self._timer_s = None, NEVER
        if self.anybody_due:
            self._on_due()
        else:
            self.set_timer()

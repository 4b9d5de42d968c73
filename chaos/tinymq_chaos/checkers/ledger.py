"""What every replica applied, judged as it happens: one sequence per group, for all time.

Stronger than any look at the end, because what diverged may be mended by then; for a simulator, which can watch.
"""

from __future__ import annotations

from collections.abc import Callable

from tinymq_chaos.checkers.anomaly import Anomaly, Kind
from tinymq_chaos.history import Log


class Ledger:
    """Told of every entry that any replica applies, and of every leader."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.anomalies: list[Anomaly] = []
        self._now = now
        self._chosen: dict[Log, dict[int, tuple[int, int, int]]] = {}  # index: (term, header crc, first broker)
        self._leaders: dict[tuple[Log, int], int] = {}

    def applied(self, log: Log, broker: int, index: int, term: int, header_crc: int) -> None:
        """A replica applied an entry."""
        first = self._chosen.setdefault(log, {}).setdefault(index, (term, header_crc, broker))
        if first[:2] != (term, header_crc):
            what = f"broker {broker} applies an entry of term {term} as entry {index}, which was one of term {first[0]}"
            self._note(Kind.TWO_ENTRIES, what, log, (first[2], broker))

    def led(self, log: Log, broker: int, term: int) -> None:
        """A broker leads."""
        first = self._leaders.setdefault((log, term), broker)
        if first != broker:
            self._note(Kind.TWO_LEADERS, f"both lead term {term}", log, (first, broker))

    def end(self, log: Log) -> int:
        """The last index that was applied anywhere; 0: none."""
        return max(self._chosen.get(log, {0: ()}))

    def _note(self, kind: Kind, what: str, log: Log, brokers: tuple[int, ...]) -> None:
        self.anomalies.append(Anomaly(kind, what, log, brokers=brokers, times_s=(self._now(),)))

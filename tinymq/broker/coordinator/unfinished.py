"""How many transactions are not over, and how old the oldest ones are: for the metrics of the coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.sink_application import SetsTransaction
from tinymq.broker.transactions.transactional_id import Phase, TransactionalId


class Unfinished(NamedTuple):
    """The transactions of partitions of `__coordinator` that are not over."""

    open: int = 0
    decided: int = 0  # that a partition has not confirmed yet
    open_s: float = 0.0  # age of the oldest open one
    decided_s: float = 0.0  # since the oldest decision that is not confirmed everywhere, as far as this leader saw it

    def beside(self, other: Unfinished) -> Unfinished:
        """Both together."""
        return Unfinished(
            open=self.open + other.open,
            decided=self.decided + other.decided,
            open_s=max(self.open_s, other.open_s),
            decided_s=max(self.decided_s, other.decided_s),
        )


class UnfinishedWatch:
    """Looks at one replica that leads. The state has no time of a decision, so the watch keeps when it first saw it."""

    def __init__(self) -> None:
        self.seen = Unfinished()
        self._decided_s: dict[TransactionId, float] = {}  # monotonic time at which each was first seen decided

    def look(
        self, unfinished: Iterable[TransactionalId], sets: Iterable[SetsTransaction], now_us: int, now_s: float
    ) -> None:
        """Take the ids with a transaction that is not over, and the sets that are not. `now_us` is the append clock's
        time. Open sets do not count: they may stay open for a day."""
        open_, oldest_us, decided = 0, now_us, dict[TransactionId, float]()
        for state in unfinished:
            for each in state.transactions.values():
                if each.phase is Phase.OPEN:
                    open_ += 1
                    oldest_us = min(oldest_us, state.used_us)  # its beginning is the newest call that counts as use
                else:
                    transaction = state.id_of(each)
                    decided[transaction] = self._decided_s.get(transaction, now_s)
        for waiting in sets:
            if waiting.phase is not Phase.OPEN:
                decided[waiting.id] = self._decided_s.get(waiting.id, now_s)
        self._decided_s = decided
        decided_s = now_s - min(decided.values(), default=now_s)
        self.seen = Unfinished(open_, len(decided), (now_us - oldest_us) / 1e6, decided_s)

"""Operators' decisions on transactions whose own decision may be lost. A part of the coordinator's state.

After an accepted loss of a part of the coordinator's log, a partition may hold batches of a transaction that the
coordinator does not know (Standing.UNRESOLVED). An operator decides once for all its partitions. The coordinator keeps
the decision for partitions whose leaders it could not reach at that time. It keeps RESOLVED_MAX decisions and forgets
the oldest first: a partition that still holds batches of a forgotten transaction waits for an operator again.
"""

from __future__ import annotations

from collections.abc import Iterable

from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.message_parts import pack_ref, parse_ref
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.proto import transaction_pb2 as pb

RESOLVED_MAX = 10_000  # in one partition of `__coordinator`: 300 KB


class Resolutions:
    """The decisions by transaction, the oldest first."""

    def __init__(self) -> None:
        self._publish: dict[TransactionId, bool] = {}

    def resolve(self, transaction: TransactionId, *, publish: bool) -> Refusal | None:
        """Decide about a transaction. A decision is never changed: returns the earlier one if it differs."""
        before = self._publish.get(transaction)
        if before is None:
            self._publish[transaction] = publish
            if len(self._publish) > RESOLVED_MAX:
                del self._publish[next(iter(self._publish))]
        elif before is not publish:
            return Refusal.COMMITTED if before else Refusal.ABORTED
        return None

    def standing(self, transaction: TransactionId) -> Standing:
        """The answer to a partition that holds batches of a transaction which the coordinator does not know."""
        match self._publish.get(transaction):
            case None:
                return Standing.UNRESOLVED
            case publish:
                return Standing.PUBLISH if publish else Standing.DISCARD

    # ---- as bytes

    def dump(self) -> list[pb.ResolvedTransaction]:
        return [
            pb.ResolvedTransaction(transaction=pack_ref(transaction), publish=publish)
            for transaction, publish in self._publish.items()
        ]

    @classmethod
    def load(cls, stored: Iterable[pb.ResolvedTransaction]) -> Resolutions:
        loaded = cls()
        loaded._publish = {parse_ref(each.transaction): each.publish for each in stored}
        return loaded

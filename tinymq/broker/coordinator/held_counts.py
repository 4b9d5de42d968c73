"""How much of an open transaction its partitions hold: the coordinator asks their leaders before it decides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tinymq.base.clock import Clock
from tinymq.base.errors import DeadlineExceeded
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator.transaction_ends import PartitionLeaders
from tinymq.broker.coordinator.transaction_topics import TransactionTopics
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.state.staged import TransactionId

RETRY_S = 0.2  # between two questions to partitions' leaders


class HeldCounts:
    """One per coordinator."""

    def __init__(self, leaders: PartitionLeaders, topics: TransactionTopics, clock: Clock) -> None:
        self._leaders = leaders
        self._topics = topics
        self._clock = clock

    async def ask(
        self,
        replica: CoordinatorReplica,
        transaction: TransactionId,
        places_now: Callable[[], Collection[PartitionId] | None],
        decide_s: float,
        sets: Collection[int] | None = None,
    ) -> Mapping[PartitionId, int]:
        """How many batches each partition holds, of all writers or of some sets. Deleted partitions are missing, and
        hold nothing.

        `places_now` returns the partitions of the transaction, and None once it is no longer open. The result is then
        empty, and the command that follows raises the reason. Raises DeadlineExceeded, NotLeader.
        """
        until_s = self._clock.monotonic() + decide_s
        held: dict[PartitionId, int] = {}
        while (places := places_now()) is not None:
            missing = {place for place in places if place not in held}
            if missing:
                held |= await self._leaders.held(transaction, missing, sets)
                missing -= held.keys()
            if not missing or await self._topics.deleted(missing):
                return held
            if self._clock.monotonic() >= until_s:
                raise DeadlineExceeded(f"{len(missing)} partitions have not said what they hold of the transaction")
            await self._clock.sleep(RETRY_S)
            replica.check_leading()
        return {}

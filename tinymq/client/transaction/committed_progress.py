"""The progress that a transaction commits beside its records: offsets of consumers, and acks of workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping

from tinymq.base.errors import TinymqError
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.transactional_id_calls import Place, TransactionalIdCalls
from tinymq.client.transaction.acked_jobs import AckedJobs
from tinymq.client.transaction.consumed_offsets import ConsumedOffsets
from tinymq.client.transaction.owner import Begun
from tinymq.client.transaction.state import TransactionState


class CommittedProgress:
    """One object per transaction that has begun."""

    def __init__(self, cluster: Cluster, calls: TransactionalIdCalls, begun: Begun) -> None:
        self.offsets = ConsumedOffsets(cluster, calls, begun)
        self.jobs = AckedJobs(cluster, calls, begun)

    def with_batches(self, batches: Mapping[Place, int]) -> Mapping[Place, int]:
        """How many batches, offsets and acks were staged, by partition."""
        return Counter(batches) + self.offsets.counts + self.jobs.counts

    async def stage(self, timeout_s: float, on_failed: Callable[[TinymqError], None]) -> None:
        """Stage the offsets and the acks. `on_failed` is told why the transaction cannot be committed."""
        both = (self.offsets.stage(timeout_s), self.jobs.stage(timeout_s))
        for error in await asyncio.gather(*both, return_exceptions=True):  # wait for both before rolling back
            if isinstance(error, TinymqError):
                on_failed(error)
            elif error is not None:
                raise error

    def ended(self, state: TransactionState) -> None:
        """The transaction is over, or its outcome is not known."""
        self.offsets.ended(committed=state is TransactionState.COMMITTED)
        self.jobs.ended(committed=None if state is TransactionState.UNKNOWN else state is TransactionState.COMMITTED)

"""The jobs of workers that one transaction acks: staged in their partitions, and counted for the commit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

from tinymq.base.errors import LeaseLost, TransactionAborted
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.transactional_id_calls import Place, TransactionalIdCalls
from tinymq.client.consume import cursors
from tinymq.client.transaction.owner import Begun
from tinymq.client.work.job import Job, JobState
from tinymq.client.work.transactional_jobs import StagedTogether, divided, note_staged
from tinymq.proto import tinymq_pb2 as pb


class AckedJobs:
    """The jobs that were acked by the time of the commit."""

    def __init__(self, cluster: Cluster, calls: TransactionalIdCalls, begun: Begun) -> None:
        self.counts: Counter[Place] = Counter()  # of requests that were staged, by partition
        self._cluster = cluster
        self._calls = calls
        self._transaction, self._coordinator, _ = begun
        self._in_hand: dict[Job, JobState] = {}  # not staged, with the state that each comes back to
        self._staged: list[Job] = []

    def add(self, jobs: Iterable[Job]) -> None:
        """Ack jobs with the transaction. From any thread. Raises LeaseLost, InvalidRequest, and what has ended their
        worker; then none of them is acked."""
        new: dict[Job, JobState] = {}
        try:
            for job in jobs:
                if job not in self._in_hand and job not in new:
                    job._partition_work.worker.check_transactional(self._cluster)
                    new[job] = job._stage()
        except BaseException:
            for job, before in new.items():
                job._take_back(before)
            raise
        self._in_hand |= new

    async def stage(self, timeout_s: float) -> None:
        """Stage the acks. Raises why the transaction cannot be committed."""
        left = self._cluster.countdown(timeout_s)
        for job in self._in_hand:
            job._partition_work.worker.check_transactional(self._cluster)  # the worker may have been closed
            if job._loss is not None:
                raise TransactionAborted(f"{job!r} was lost before the commit: {job._loss.message}")
        by_place: dict[Place, list[StagedTogether]] = {}
        for part in divided(list(self._in_hand)):
            by_place.setdefault((part.work.topic.topic_id, part.work.partition), []).append(part)
        if not by_place:
            return
        await self._calls.add(self._transaction, [], left(), offsets=list(by_place))
        staging = (self._stage_in(place, parts, left()) for place, parts in by_place.items())
        for error in await asyncio.gather(*staging, return_exceptions=True):  # wait for all before rolling back
            if error is not None:
                raise error

    async def _stage_in(self, place: Place, parts: Sequence[StagedTogether], timeout_s: float) -> None:
        """Stage the acks of one partition, one request after the other: they are numbered."""
        left = self._cluster.countdown(timeout_s)
        for part in parts:
            at = pb.BatchTransaction(
                transaction=self._transaction, coordinator=self._coordinator, number=self.counts[place]
            )
            self.counts[place] += 1
            try:
                await cursors.change(self._cluster, part.cursor, pb.ChannelCommand(stage_acks=part.request(at)), left())
            except LeaseLost as error:
                raise TransactionAborted(f"a job was lost before the commit: {error.message}") from error
            for job in part.jobs:
                del self._in_hand[job]
            self._staged += part.jobs
            note_staged(part.work, part.jobs)
            part.work.worker.staged(part.work)

    def ended(self, *, committed: bool | None) -> None:
        """The transaction is over. If it was rolled back, jobs whose acks were not staged are in hand again, and the
        brokers grant the others to any worker. None: the outcome is unknown."""
        in_hand, self._in_hand = self._in_hand, {}
        for job, before in in_hand.items():
            job._take_back(before)
        if committed is None:
            return
        staged, self._staged = self._staged, []
        for job in staged if not committed else ():
            job._give_back(LeaseLost("the transaction that acked it was rolled back: it is delivered again"))

"""The jobs of one queue group in one partition whose acks go into transactions; at the partition's leader.

`StagedJobs` judges an ack against the leases. This object then has the ack staged (tinymq/broker/partition/staged), and
follows the applied state. It also has the coordinator end transactions whose workers are gone: otherwise their records
would stay undelivered until the transactions time out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from tinymq.base.clock import Clock
from tinymq.base.errors import TinymqError
from tinymq.broker.groups.lease_values import Grant, Proposal
from tinymq.broker.groups.queue_leases import QueueLeases
from tinymq.broker.groups.staged_jobs import StagedJobs
from tinymq.broker.partition.partition import Partition
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.led_transactions import SentAcks
from tinymq.broker.work.applied_state import AppliedState
from tinymq.broker.work.commands import pack_acks, queue_ref

RETRY_S = 1.0  # until the next attempt to end the transactions of workers that are gone

logger = structlog.get_logger("tinymq.broker")


class AcksPlace(NamedTuple):
    """The place of some acks in a transaction, and that transaction's coordinator."""

    transaction: TransactionId
    coordinator: int
    number: int  # of the transaction's acks in this partition, from 0


class TransactionalJobs:
    """One object beside each QueueLeases of a GroupLeader."""

    def __init__(
        self, partition: Partition, name: str, group_id: int, leases: QueueLeases, applied: AppliedState, clock: Clock
    ) -> None:
        self._partition = partition
        self._name = name
        self._group_id = group_id
        self._leases = leases
        self._applied = applied
        self._clock = clock
        self._jobs = StagedJobs(leases, applied)
        self._appended = deque[tuple[int, Proposal]]()  # commands that are not applied yet, by the index of their entry
        self._ending: asyncio.Task[None] | None = None
        self._retry_s = 0.0
        self._over = False

    @property
    def taken(self) -> int:
        """How many records are leased, or have a staged ack."""
        return self._jobs.taken

    async def stage(self, session: bytes, grants: Sequence[Grant], place: AcksPlace) -> None:
        """Stage acks of a worker's jobs, all or none. Raises as `PartitionTransactions.stage_acks`."""
        sent = SentAcks(
            transaction=place.transaction,
            coordinator=place.coordinator,
            number=place.number,
            queue=queue_ref(self._name, self._group_id, self._leases.era),
            session=session,
            acked=pack_acks(grant.offset for grant in grants),
            claim=_JobClaim(self, session, grants),
        )
        await self._partition.transactions.stage_acks(sent)

    def check(self, session: bytes, grants: Sequence[Grant]) -> None:
        """See AckClaim."""
        self._jobs.check(session, grants)

    def appended(self, index: int, grants: Sequence[Grant]) -> None:
        """See AckClaim."""
        self._appended.append((index, self._jobs.stage(grants)))

    def follow(self) -> None:
        """Follow the applied state, after each commit."""
        applied_index = self._partition.state.applied_index
        while self._appended and self._appended[0][0] <= applied_index:
            self._leases.applied(self._appended.popleft()[1])
        self._jobs.follow()

    # ---- workers that are gone

    def tick(self) -> None:
        """Have the coordinator end transactions with acks of sessions that have ended."""
        if self._ending is None and self._clock.monotonic() >= self._retry_s and self._orphans():
            self._ending = asyncio.get_running_loop().create_task(self._end_orphans())

    def close(self) -> None:
        self._over = True
        if self._ending is not None:
            self._ending.cancel()

    def _orphans(self) -> list[TransactionId]:
        state = self._partition.state
        group = state.queue_groups.by_name.get(self._name)
        if self._over or group is None or not group.staged:
            return []
        return state.staged_acks.orphans(self._name, group.generation, group.sessions)

    async def _end_orphans(self) -> None:
        try:
            await self._partition.transactions.end_orphans(self._orphans)
        except TinymqError as error:
            self._retry_s = self._clock.monotonic() + RETRY_S
            logger.info(
                "orphaned_acks_wait", partition=self._partition.name, group=self._name, error=error.code,
                reason=error.message,
            )  # fmt: skip
        finally:
            self._ending = None


class _JobClaim(NamedTuple):
    """A AckClaim (tinymq/broker/transactions/led_transactions.py)."""

    jobs: TransactionalJobs
    session: bytes
    grants: Sequence[Grant]

    def check(self) -> None:
        self.jobs.check(self.session, self.grants)

    def appended(self, index: int) -> None:
        self.jobs.appended(index, self.grants)

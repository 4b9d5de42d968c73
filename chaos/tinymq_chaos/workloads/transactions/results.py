"""Jobs to results: workers of a queue group take jobs from one topic, and write one result for each to another one, in
transactions that ack the jobs (program_slots.py). Programs also hang until their jobs went to others. After a rollback
they nack the jobs in hand, or try them again.

    kind          arguments                                        result when ok
    transact      as of processors                                 as of processors
    settle        as of workers; the ack of a transaction fails    null: its partition shows it
                  for certain with it
    caught_up     as of processors                                 as of processors
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tinymq.base.errors import TinymqError
from tinymq.client import AsyncClient, Job
from tinymq_chaos.history import Call, Outcome
from tinymq_chaos.workloads.context import Context, begin, fail, recorded
from tinymq_chaos.workloads.groups import workers
from tinymq_chaos.workloads.groups.workers import (
    HANDLER_MS,
    WorkerLife,
    await_answers,
    begin_settlement,
    crash,
    record_jobs,
)
from tinymq_chaos.workloads.producers import NumberedProducer
from tinymq_chaos.workloads.transactions import program_slots
from tinymq_chaos.workloads.transactions.program_slots import (
    POLL_S,
    TRANSACTION_S,
    Member,
    ProgramSlot,
    SharedState,
    finish,
)
from tinymq_chaos.workloads.transactions.recorded import RecordedTransaction

PARTITIONS = 2, 2  # of the two topics
GROUP: Mapping[str, object] = {**workers.GROUP, "deliveries_max": 1000}  # no job becomes a dead letter
HANG_S = 0.5, 4.0  # of some workers, the jobs go to others after HANDLER_MS
NACKED = 0.3  # the share of jobs in hand after a rollback that are nacked; the others are tried again


async def results(context: Context) -> None:
    """Programs that take jobs and write results, and end in every way."""
    await program_slots.run(context, PARTITIONS, _make_program, "queue", GROUP)


def _make_program(shared: SharedState, slot: ProgramSlot, client: AsyncClient, outputs: NumberedProducer) -> Program:
    lost: set[int] = set()
    worker = client.worker(
        shared.source,
        group=shared.group,
        on_lost=lambda job, error: lost.add(id(job)),
        prefetch_records=shared.context.rng.choice((1, 4, 40)),
        max_handler_ms=shared.context.rng.choice((HANDLER_MS, 60_000.0)),
    )
    life = WorkerLife(shared.context, shared.place, outputs.process, worker, lost)
    return Program(shared, slot.transactional_id, client, Member(shared.context, worker, crash), life, outputs)


@dataclass(slots=True)
class Program:
    """One life of a program: a worker of the group, until it is fenced or ends."""

    shared: SharedState
    transactional_id: str
    client: AsyncClient
    worker: Member
    life: WorkerLife
    outputs: NumberedProducer

    async def turn(self, ending: str) -> bool:
        """Take some jobs, and write their results, in one transaction. Return whether the program goes on."""
        transaction = self.shared.transaction(self.client, self.outputs.process, self.transactional_id, ending)
        if await transaction.begin():
            await self.shared.context.clock.sleep(0.1)
            return not transaction.fenced
        jobs = await self._take()
        if jobs:
            await self._handle(transaction, jobs, ending)
        elif jobs is not None:
            await transaction.commit_nothing()
        else:
            await transaction.roll_back()
        if jobs is None or transaction.fenced or self.worker.over:
            return False
        await self._go_on_with([job for job in jobs if job.in_hand])
        return True

    async def end(self) -> None:
        await self.worker.end()

    async def _take(self) -> list[Job] | None:
        """Take some jobs, beside those that were kept. None: the worker has ended."""
        kept, self.life.kept = [job for job in self.life.kept if job.in_hand], []
        try:
            jobs: list[Job] = await self.worker.inner.poll(POLL_S, self.shared.context.rng.randint(1, 6))
        except TinymqError as error:
            fail(begin(self.shared.context, self.life.process, "read", **self.shared.place), error)
            return None
        record_jobs(self.life, jobs)
        return [*kept, *jobs]

    async def _handle(self, transaction: RecordedTransaction, jobs: Sequence[Job], ending: str) -> None:
        """Write a result for each job, ack the jobs, and end the transaction."""
        call = self.shared.begin(self.outputs, self.transactional_id, [(job.partition, job.offset) for job in jobs])
        with recorded(call):
            refused = await transaction.send(self.outputs, call.args["parts"]) or await _ack(transaction, jobs)
            if refused:
                call.failed(refused)
                return
            with self._acks(call, jobs):
                await finish(transaction, call, ending, self.worker, HANG_S)

    @contextmanager
    def _acks(self, call: Call, jobs: Sequence[Job]) -> Iterator[None]:
        """Record the acks of a transaction, which end as its call does."""
        acks = [self.life.begin(job, "settle", TRANSACTION_S, verb="ack", delay_s=None) for job in jobs]
        try:
            yield
        finally:
            for ack in acks:
                if call.outcome is Outcome.OK and call.result:
                    ack.ok()
                elif call.outcome is Outcome.FAILED:
                    ack.failed(call.error)
                else:  # perhaps not committed, or not shown yet
                    ack.unknown(call.error)

    async def _go_on_with(self, jobs: Sequence[Job]) -> None:
        """Nack some of the jobs that a rollback has left in hand, and keep the others for the next transaction."""
        calls: list[tuple[Job, Call]] = []
        for job in jobs:
            if self.shared.context.rng.random() < NACKED:
                calls.append((job, begin_settlement(self.life, job, "nack")))
            else:
                self.life.kept.append(job)
        if calls:
            await await_answers(self.life, calls)


async def _ack(transaction: RecordedTransaction, jobs: Sequence[Job]) -> str:
    """Ack jobs with a transaction. If one was lost, roll back. Return the code of the error, or ""."""
    try:
        transaction.inner.ack(*jobs)
    except TinymqError as error:
        await transaction.roll_back()
        return error.code
    return ""

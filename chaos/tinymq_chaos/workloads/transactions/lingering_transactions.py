"""Transactions that stay open while others are rolled back around them.

No record of a partition has an offset before the transaction that lingers there is committed. So retention has reached
every segment that is full: the leader copies the batches of that transaction again and again, and old segments go.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tinymq.client import AsyncClient
from tinymq_chaos.history import Outcome
from tinymq_chaos.workloads import readers
from tinymq_chaos.workloads.context import CALL_S, Context, begin, key_of, pause, recorded
from tinymq_chaos.workloads.producers import NumberedProducer
from tinymq_chaos.workloads.transactions.recorded import RecordedTransaction, look_for_unfinished, watch_coordinator
from tinymq_chaos.workloads.transactions.transfers import TRANSFER_S

PARTITIONS = 4
LINGER_S = (3.0, 10.0)  # from the first of its batches to its commit
LINGERING_RECORDS = 3  # sent in several batches, at different times
BESIDE_RECORDS_MAX = 8  # of a transaction that is rolled back
TIMEOUT_MS = 60_000  # of a transaction: none ends by it


async def lingering(context: Context) -> None:
    """In each partition, a transaction that lingers and others that are rolled back; then records that stay."""
    name = await context.topic(PARTITIONS, {"retention_ms": "none", "segment_ms": "1000"})
    reading = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, reading, name)
    partitions = [LingeringPartition(context, name, key, partition) for partition in range(PARTITIONS)]
    await asyncio.gather(
        readers.follow(context, reading, name, key, "leader"),
        readers.follow(context, reading, name, key, "follower"),
        readers.look_at_ends(context, reading, name, key),
        *(each.run() for each in partitions),
    )
    await look_for_unfinished(context, reading, [each for partition in partitions for each in partition.ids])
    for replica in ("leader", "follower"):
        await readers.drain(context, reading, name, key, replica)


@dataclass(slots=True)
class LingeringPartition:
    """The transactions of one partition."""

    context: Context
    topic: str  # name
    key: str
    partition: int

    @property
    def ids(self) -> tuple[str, str]:
        """The transactional ids of the lingering transaction, and of those that are rolled back."""
        return f"{self.context.name}-{self.partition}", f"{self.context.name}-{self.partition}-beside"

    async def run(self) -> None:
        """Let one transaction after another linger, until the run ends and one is committed."""
        lingers, beside = (Program(self, each) for each in self.ids)
        await pause(self.context, 0.0, 3.0)
        while not (self.context.stop.is_set() and lingers.committed):
            over = asyncio.Event()
            await asyncio.gather(self._linger(lingers, over), self._roll_back(beside, over))

    async def _linger(self, program: Program, over: asyncio.Event) -> None:
        linger_s = self.context.rng.uniform(*LINGER_S)
        try:
            await program.transact(LINGERING_RECORDS, linger_s, commits=True)
        finally:
            over.set()

    async def _roll_back(self, program: Program, over: asyncio.Event) -> None:
        while not over.is_set():
            await program.transact(self.context.rng.randint(1, BESIDE_RECORDS_MAX), 0.0, commits=False)
            await pause(self.context, 0.05, 0.5)


class Program:
    """One program with a transactional id of its own."""

    def __init__(self, place: LingeringPartition, transactional_id: str) -> None:
        self.committed = 0
        self._place = place
        self._transactional_id = transactional_id
        self._sender = NumberedProducer(place.context, transactional_id, place.topic, place.key, PARTITIONS)
        self._client: AsyncClient = place.context.client(request_timeout_ms=CALL_S * 1000)
        watch_coordinator(place.context, transactional_id)

    async def transact(self, count: int, linger_s: float, *, commits: bool) -> None:
        """Make a transaction of so many records, which are sent over `linger_s`, and commit it or roll it back."""
        context, sender, records = self._place.context, self._sender, self._sender.records(count)
        call = begin(
            context, sender.process, "transact", TRANSFER_S + linger_s,
            topic=sender.key, transactional_id=self._transactional_id, parts=[[self._place.partition, records]],
            idempotent=True, records=records,
        )  # fmt: skip
        transaction = RecordedTransaction.of(
            context, self._client, sender.process, self._transactional_id,
            transaction_timeout_ms=TIMEOUT_MS, linger_ms=0,
        )  # fmt: skip
        with recorded(call):
            refused = await transaction.begin()
            for number, record in enumerate(records):
                refused = refused or await transaction.send(sender, [[self._place.partition, [record]]])
                if not refused and number < count - 1:
                    await context.clock.sleep(linger_s / count)
            if refused:
                call.failed(refused)
            elif commits:
                await context.clock.sleep(linger_s / count)
                await transaction.commit(call, "visible")
            else:
                await transaction.roll_back()
                call.failed("rolled back")
        self.committed += call.outcome is Outcome.OK

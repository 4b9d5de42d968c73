"""Read, process, write: members of a stream group read one topic, and write one output for each record to another one,
in transactions that commit the offsets of what they read (program_slots.py). Programs also hang until they have lost
partitions.

    kind          arguments                                        result when ok
    transact      as of transfers, and source, group, inputs       as of transfers. `inputs` are {RECORD: [partition,
                                                                   offset]}: from which record each output was made
    caught_up     topic, group                                     null: after all faults, the group has read everything
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinymq.base.errors import TinymqError
from tinymq.client import AsyncClient
from tinymq.client.group.consumer import ConsumerCore
from tinymq_chaos.workloads.context import Context, begin, fail, recorded
from tinymq_chaos.workloads.groups.observation import callbacks
from tinymq_chaos.workloads.producers import NumberedProducer
from tinymq_chaos.workloads.transactions import program_slots
from tinymq_chaos.workloads.transactions.program_slots import POLL_S, Member, ProgramSlot, SharedState, finish
from tinymq_chaos.workloads.transactions.recorded import RecordedTransaction

PARTITIONS = 3, 2  # of the two topics
STATIC = 1  # slots whose members have an instance id
GROUP = {"rejoin_ms": 1000, "revoke_ms": 500, "static_return_ms": 2000}
CONSUMER: dict[str, Any] = {"auto_commit": False, "fetch_wait_ms": 200}
HANG_S = 0.5, 2.0  # revoke_ms is shorter


async def processors(context: Context) -> None:
    """Programs that read, process and write, and end in every way."""
    await program_slots.run(context, PARTITIONS, _make_program, "stream", GROUP)


def _make_program(shared: SharedState, slot: ProgramSlot, client: AsyncClient, outputs: NumberedProducer) -> Program:
    consumer = client.consumer(
        shared.source,
        group=shared.group,
        instance_id=f"seat-{slot.number}" if slot.number < STATIC else None,
        **callbacks(shared.context, outputs.process, shared.place),
        **CONSUMER,
    )
    return Program(shared, slot.transactional_id, client, Member(shared.context, consumer, crash), outputs)


@dataclass(slots=True)
class Program:
    """One life of a program: a member of the group, until it is fenced or ends."""

    shared: SharedState
    transactional_id: str
    client: AsyncClient
    consumer: Member
    outputs: NumberedProducer

    async def turn(self, ending: str) -> bool:
        """Read some records, and write their outputs, in one transaction. Return whether the program goes on."""
        transaction = self.shared.transaction(self.client, self.outputs.process, self.transactional_id, ending)
        if await transaction.begin():
            await self.shared.context.clock.sleep(0.1)
            return not transaction.fenced
        found = await self._read(transaction)
        if found:
            await self._process(transaction, found, ending)
        elif found is not None:
            await transaction.commit_nothing()
        return found is not None and not (transaction.fenced or self.consumer.over)

    async def end(self) -> None:
        await self.consumer.end()

    async def _read(self, transaction: RecordedTransaction) -> Sequence[Any] | None:
        """Read some records, whose offsets the transaction commits. None: the consumer has ended."""
        context, process, consumer = self.shared.context, self.outputs.process, self.consumer.inner
        try:
            await transaction.inner.commit_offsets(consumer)
            found: list[Any] = await consumer.poll(timeout=POLL_S, max_records=context.rng.randint(1, 10))
        except TinymqError as error:
            fail(begin(context, process, "read", **self.shared.place), error)
            await transaction.roll_back()
            return None
        begin(context, process, "handed_out", **self.shared.place).ok([[each.partition, each.offset] for each in found])
        return found

    async def _process(self, transaction: RecordedTransaction, found: Sequence[Any], ending: str) -> None:
        """Write an output for each record, and end the transaction."""
        places = [(each.partition, each.offset) for each in found]
        call = self.shared.begin(self.outputs, self.transactional_id, places)
        with recorded(call):
            refused = await transaction.send(self.outputs, call.args["parts"])
            if refused:
                call.failed(refused)
            else:
                await finish(transaction, call, ending, self.consumer, HANG_S)


async def crash(consumer: Any) -> None:
    """End a consumer as kill -9 does: it says nothing. One of a client with a thread ends in that thread."""
    within = getattr(consumer, "within", None)
    await (_end(consumer._core) if within is None else within(_end))


async def _end(consumer: ConsumerCore) -> None:
    consumer._closed = True
    await consumer._background.close()
    await consumer.tasks.close()
    if consumer._membership is not None:
        await consumer._membership.leave(stay=True)

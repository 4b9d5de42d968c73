"""Transfers between accounts: each takes from one account and gives to others, in one transaction over several
partitions.

A program with a transactional id makes one transfer after another. Another program takes the id over from it, at any
moment, while the first one goes on until it hears that it is fenced. Some programs end in the middle of a transfer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tinymq.client import AsyncClient
from tinymq_chaos.history import Call, Outcome
from tinymq_chaos.workloads import readers
from tinymq_chaos.workloads.context import CALL_S, Context, begin, key_of, pause, recorded, recording
from tinymq_chaos.workloads.producers import NumberedProducer, lone
from tinymq_chaos.workloads.transactions.recorded import RecordedTransaction, look_for_unfinished, watch_coordinator

PARTITIONS = 3
IDS = 2  # transactional ids, each with a program of its own
LIFE_S = 3.0  # of a program, about, until another one takes its id over
RECORDS_MAX = 4  # of one transfer in one partition
TIMEOUTS_MS = (1_000, 4_000, 60_000)  # of transactions
BEYOND_S = 1.5  # after its beginning, a transfer that overstays the shortest time-out is committed
TRANSFER_S = 30.0  # by which a transfer ends: its calls and pauses, each at its longest
LAST_S = 10.0  # after all faults: until each id has a transfer that is committed
ENDINGS = ("visible",) * 9 + ("decided",) * 5 + ("rolled back",) * 2 + ("late", "left")
"""How transfers end: by a commit that waits or does not; rolled back; committed after their time; not at all."""


async def transfers(context: Context) -> None:
    """Transfers under ids that change hands, beside records that are in no transaction."""
    name = await context.topic(PARTITIONS)
    reading = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, reading, name)
    beside = NumberedProducer(context, f"{context.name}.lone", name, key, PARTITIONS)
    accounts = [Accounts(context, f"{context.name}-{n}", name, key) for n in range(IDS)]
    await asyncio.gather(
        readers.follow(context, reading, name, key, "leader"),
        readers.follow(context, reading, name, key, "follower"),
        readers.look_at_ends(context, reading, name, key),
        lone(context, beside, context.client(request_timeout_ms=CALL_S * 1000), 0.1, 1.0),
        *(each.run() for each in accounts),
    )
    await asyncio.gather(*(each.finish() for each in accounts))
    await look_for_unfinished(context, reading, [each.transactional_id for each in accounts])
    for replica in ("leader", "follower"):
        await readers.drain(context, reading, name, key, replica)


@dataclass(slots=True)
class Accounts:
    """The transfers under one transactional id."""

    context: Context
    transactional_id: str
    topic: str  # name
    key: str
    _programs: int = 0

    async def run(self) -> None:
        """Start one program after another; none of them is told to end."""
        watch_coordinator(self.context, self.transactional_id)
        running: list[asyncio.Task[None]] = []
        while not self.context.stop.is_set():
            program = self._next_program()
            running.append(asyncio.create_task(self._live(program)))
            until_s = self.context.clock.monotonic() + self.context.rng.uniform(0.2, 2.0) * LIFE_S
            while self.context.clock.monotonic() < until_s and not (program.over or self.context.stop.is_set()):
                await self.context.clock.sleep(0.5)
        await asyncio.gather(*running)

    async def finish(self) -> None:
        """Take the id over once more, and make transfers until one is committed: all faults are over."""
        program, process = self._next_program(), f"{self.transactional_id} last"
        with recording(
            self.context, process, "last_transfer", LAST_S, transactional_id=self.transactional_id
        ) as call:  # fmt: skip
            until_s = self.context.clock.monotonic() + LAST_S
            while self.context.clock.monotonic() < until_s:
                if await program.transfer("visible"):
                    call.ok()
                    return
                await self.context.clock.sleep(0.2)
            call.failed("DeadlineExceeded")

    def _next_program(self) -> Program:
        self._programs += 1
        context, process = self.context, f"{self.transactional_id}/{self._programs}"
        sender = NumberedProducer(context, process, self.topic, self.key, PARTITIONS)
        return Program(context, sender, context.client(request_timeout_ms=CALL_S * 1000), self.transactional_id)

    async def _live(self, program: Program) -> None:
        while not self.context.stop.is_set() and not program.over:
            await program.transfer(self.context.rng.choice(ENDINGS))
            await pause(self.context, 0.0, 0.6)
        await self.context.stop.wait()
        await program.come_back()


@dataclass(slots=True)
class Program:
    """One program that uses a transactional id, until it is fenced or ends in the middle of a transfer."""

    context: Context
    sender: NumberedProducer
    client: AsyncClient
    transactional_id: str
    over: bool = False
    _left: RecordedTransaction | None = None  # the transaction in which the program ended

    async def come_back(self) -> None:
        """Roll back what the program has left open: by now another one has ended it, or nobody ever commits it."""
        if self._left is not None:
            await self._left.roll_back()

    async def transfer(self, ending: str) -> bool:
        """Make one transfer. Return whether it is committed."""
        rng = self.context.rng
        places = rng.sample(range(PARTITIONS), rng.randint(1, PARTITIONS))
        parts = [(partition, self.sender.records(rng.randint(1, RECORDS_MAX))) for partition in sorted(places)]
        call = begin(
            self.context, self.sender.process, "transact", TRANSFER_S,
            topic=self.sender.key, transactional_id=self.transactional_id,
            parts=[[partition, records] for partition, records in parts], idempotent=True,
            records=[record for _, records in parts for record in records],
        )  # fmt: skip
        transaction = RecordedTransaction.of(
            self.context, self.client, self.sender.process, self.transactional_id,
            transaction_timeout_ms=TIMEOUTS_MS[0] if ending == "late" else rng.choice(TIMEOUTS_MS),
            linger_ms=rng.choice((0, 5)),
        )  # fmt: skip
        with recorded(call):
            await self._make(transaction, call, ending)
        self.over = self.over or transaction.fenced
        return call.outcome is Outcome.OK

    async def _make(self, transaction: RecordedTransaction, call: Call, ending: str) -> None:
        """Make the transfer, and end its call by what the program knows of its outcome."""
        refused = await transaction.begin() or await transaction.send(self.sender, call.args["parts"])
        if refused:  # nobody has asked for its commit
            call.failed(refused)
        elif ending == "left":
            self.over, self._left = True, transaction
            call.failed("left")
        elif ending == "rolled back":
            await transaction.roll_back()
            call.failed("rolled back")
        else:
            if ending == "late":
                await self.context.clock.sleep(BEYOND_S)
            await transaction.commit(call, "decided" if ending == "decided" else "visible")

"""Transfers between accounts: each takes from one account and gives to others, in one transaction over several
partitions.

A program with a transactional id makes one transfer after another. Another program takes the id over from it, at any
moment, while the first one goes on until it hears that it is fenced. Some programs end in the middle of a transfer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tinymq.base.errors import Fenced, InvalidRequest, TinymqError
from tinymq.client import AsyncClient
from tinymq_chaos.history import Call, Outcome
from tinymq_chaos.workloads import readers
from tinymq_chaos.workloads.context import CALL_S, Context, begin, fail, key_of, pause, recorded, recording
from tinymq_chaos.workloads.producers import NumberedProducer, lone

PARTITIONS = 3
IDS = 2  # transactional ids, each with a program of its own
LIFE_S = 3.0  # of a program, about, until another one takes its id over
RECORDS_MAX = 4  # of one transfer in one partition
TIMEOUTS_MS = (1_000, 4_000, 60_000)  # of transactions
BEYOND_S = 1.5  # after its beginning, a transfer that overstays the shortest time-out is committed
COMMITS_MAX = 3  # of one transfer, while its outcome is unknown
TRANSFER_S = 30.0  # by which a transfer ends: its calls and pauses, each at its longest
LAST_S = 10.0  # after all faults: until each id has a transfer that is committed, and nothing is unfinished
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
    await _look_for_unfinished(context, reading, [each.transactional_id for each in accounts])
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
    _left: Any = None  # the transaction in the middle of which the program ended

    async def come_back(self) -> None:
        """Roll back what the program has left open: by now another one has ended it, or nobody ever commits it."""
        if self._left is not None:
            await self._roll_back(self._left)

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
        transaction = self.client.transaction(
            self.transactional_id,
            transaction_timeout_ms=TIMEOUTS_MS[0] if ending == "late" else rng.choice(TIMEOUTS_MS),
            linger_ms=rng.choice((0, 5)),
            block_ms_max=CALL_S * 1000,
            delivery_timeout_ms=CALL_S * 1000,
        )
        with recorded(call):
            await self._make(transaction, call, ending)
        return call.outcome is Outcome.OK

    async def _make(self, transaction: Any, call: Call, ending: str) -> None:
        """Make the transfer, and end its call by what the program knows of its outcome."""
        began = begin(
            self.context, self.sender.process, "begin_transaction", transactional_id=self.transactional_id
        )  # fmt: skip
        with recorded(began):
            await transaction.begin(timeout=CALL_S)
            began.ok()
        if began.outcome is not Outcome.OK:  # no record of it was ever sent
            self.over = began.error == Fenced.code
            call.failed(began.error)
            return
        try:
            await self._send(transaction, call.args["parts"])
        except TinymqError as error:
            await self._roll_back(transaction)
            self.over = isinstance(error, Fenced)
            call.failed(error.code)
            return
        if ending == "left":
            self.over, self._left = True, transaction
            call.failed("left")
        elif ending == "rolled back":
            await self._roll_back(transaction)
            call.failed("rolled back")
        else:
            if ending == "late":
                await self.context.clock.sleep(BEYOND_S)
            await self._commit(transaction, call, "decided" if ending == "decided" else "visible")

    async def _send(self, transaction: Any, parts: list[list[Any]]) -> None:
        """Send the records, those of different partitions mixed, in one burst or in several."""
        left = {partition: list(records) for partition, records in parts}
        slow = self.context.rng.random() < 0.4
        while left:
            partition = self.context.rng.choice(sorted(left))
            content = self.sender.content(left[partition].pop(0)).arguments()
            await transaction.send(self.sender.topic, partition=partition, **content)
            if not left[partition]:
                del left[partition]
            if slow:
                await pause(self.context, 0.0, 0.1)

    async def _commit(self, transaction: Any, call: Call, wait: str) -> None:
        """Commit, and ask again while the outcome is unknown; or give up, and roll back what may be committed."""
        for attempt in range(COMMITS_MAX):
            if attempt and self.context.rng.random() < 0.2:
                await self._roll_back_unknown(transaction, call)
                return
            commit = begin(
                self.context, self.sender.process, "commit_transaction",
                transactional_id=self.transactional_id, records=call.args["records"], wait=wait, attempt=attempt,
            )  # fmt: skip
            with recorded(commit):
                commit.ok(await transaction.commit(wait, timeout=CALL_S))
            if commit.outcome is Outcome.OK:
                call.ok(commit.result)
                return
            if commit.outcome is Outcome.FAILED:
                self.over = commit.error == Fenced.code
                call.failed(commit.error)
                return
            await pause(self.context, 0.0, 1.0)
        call.unknown(commit.error)

    async def _roll_back(self, transaction: Any) -> None:
        """Roll back a transfer whose commit nobody has asked for: whatever the answer, it is not committed."""
        with recording(
            self.context, self.sender.process, "abort_transaction", transactional_id=self.transactional_id
        ) as call:  # fmt: skip
            await transaction.abort(timeout=CALL_S)
            call.ok()

    async def _roll_back_unknown(self, transaction: Any, call: Call) -> None:
        """Roll back a transfer of unknown outcome. The answer tells the outcome."""
        with recording(
            self.context, self.sender.process, "abort_transaction", transactional_id=self.transactional_id
        ) as aborted:  # fmt: skip
            try:
                await transaction.abort(timeout=CALL_S)
            except Fenced:  # which is an InvalidRequest, too, and says nothing of the outcome
                raise
            except InvalidRequest:  # it is committed
                aborted.failed(InvalidRequest.code)
                call.ok(False)
                return
            aborted.ok()
        if aborted.outcome is Outcome.OK:
            call.failed("rolled back")
        else:
            self.over = aborted.error == Fenced.code
            call.unknown(aborted.error)


async def _look_for_unfinished(context: Context, client: AsyncClient, ids: list[str]) -> None:
    """Ask for the unfinished transactions until all of them are over."""
    with recording(context, f"{context.name} unfinished", "unfinished", LAST_S, ids=ids) as call:
        until_s = context.clock.monotonic() + LAST_S
        while True:
            try:
                found = [await client.admin.describe_transactional_id(each, timeout=CALL_S) for each in ids]
                left = [[each.transactional_id, t.number, t.state] for each in found for t in each.transactions]
                if not left or context.clock.monotonic() > until_s:
                    call.ok(left)
                    return
            except TinymqError as error:
                if context.clock.monotonic() > until_s:
                    fail(call, error)
                    return
            await context.clock.sleep(0.2)

"""Read, process, write: members of a stream group read one topic, and write one output for each record to another one,
in transactions that commit the offsets of what they read.

A slot has one program after another, under one transactional id. Programs hang until they have lost partitions, close
in the middle of a commit, and end as kill -9 does. Meanwhile another client moves the group back in one partition.

    kind          arguments                                        result when ok
    transact      as of transfers, and source, group, inputs       as of transfers. `inputs` are {RECORD: [partition,
                                                                   offset]}: from which record each output was made
    caught_up     topic, group                                     null: after all faults, the group has read everything
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinymq.base.errors import Fenced, TinymqError
from tinymq.client import AsyncClient
from tinymq.client.group.consumer import ConsumerCore
from tinymq_chaos.history import Call
from tinymq_chaos.workloads.clients.threaded_client import leave
from tinymq_chaos.workloads.context import CALL_S, Context, begin, fail, key_of, pause, recorded, recording
from tinymq_chaos.workloads.groups.changes import seek
from tinymq_chaos.workloads.groups.observation import callbacks, follow_cursors, look_at_cursors
from tinymq_chaos.workloads.producers import NumberedProducer, lone
from tinymq_chaos.workloads.readers import drain
from tinymq_chaos.workloads.transactions.recorded import RecordedTransaction, look_for_unfinished, watch_coordinator

SOURCES, TARGETS = 3, 2  # partitions of the two topics
SLOTS = 3
STATIC = 1  # slots whose members have an instance id
SOUGHT = 0  # the partition in which the group is moved back; in the others, each record has one output
GROUP = {"rejoin_ms": 1000, "revoke_ms": 500, "static_return_ms": 2000}
CONSUMER: dict[str, Any] = {"auto_commit": False, "fetch_wait_ms": 200}
POLL_S = 0.5
HANG_S = 1.0  # about; revoke_ms is shorter
TIMEOUTS_MS = (1_000, 4_000, 60_000)  # of transactions
TRANSACTION_S = 30.0  # by which a transaction ends: its calls and pauses, each at its longest
LAST_S = 20.0  # after all faults: until the group has read everything
HASTY_S = (0.02, 0.3)  # how long a hasty program waits for its commit
ENDINGS = ("visible",) * 7 + ("decided",) * 4 + ("rolled back", "hasty", "closing", "hanging") * 2 + ("left",)
"""How transactions end: by a commit that waits or does not; rolled back; by a commit whose answer is not waited for; by
one while the consumer is closed; by one after a long pause; not at all."""


async def processors(context: Context) -> None:
    """Programs that read, process and write, and end in every way."""
    source, target = await context.topic(SOURCES), await context.topic(TARGETS)
    client = context.client(request_timeout_ms=CALL_S * 1000)
    keys = [await key_of(context, client, name) for name in (source, target)]
    shared = SharedState(context, source, keys[0], target, keys[1], f"{context.name}-g")
    await shared.make_group(client)
    inputs = NumberedProducer(context, f"{context.name}.in", source, keys[0], SOURCES)
    slots = [ProgramSlot(shared, number) for number in range(SLOTS)]
    await asyncio.gather(
        lone(context, inputs, client, 0.02, 0.25),
        follow_cursors(context, client, shared.place),
        _move_back(shared),
        *(slot.run() for slot in slots),
    )
    await _catch_up(shared, client, slots)
    await look_for_unfinished(context, client, [slot.transactional_id for slot in slots])
    for topic, key in zip((source, target), keys, strict=True):
        await drain(context, client, topic, key, "leader")


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state that all programs share."""

    context: Context
    source: str  # name of the topic that they read
    source_key: str
    target: str  # name of the topic that they write to
    target_key: str
    group: str

    @property
    def place(self) -> dict[str, Any]:
        return {"topic": self.source_key, "group": self.group}

    async def make_group(self, client: AsyncClient) -> None:
        """Make the group as soon as a broker answers: faults may have begun."""
        while not self.context.stop.is_set():
            try:
                await client.admin.create_group(self.group, self.source, settings=GROUP, exist_ok=True, timeout=CALL_S)
                return
            except TinymqError:
                await self.context.clock.sleep(0.1)


@dataclass(slots=True)
class ProgramSlot:
    """A transactional id, and the programs that use it one after another."""

    shared: SharedState
    number: int
    _lives: int = 0

    @property
    def transactional_id(self) -> str:
        return f"{self.shared.context.name}-{self.number}"

    async def run(self) -> None:
        """Start one program after another until the workload stops."""
        context = self.shared.context
        watch_coordinator(context, self.transactional_id)
        while not context.stop.is_set():
            program = self._next_program()
            while not context.stop.is_set() and context.rng.random() > 0.05:
                if not await program.turn(context.rng.choice(ENDINGS)):
                    break
                await pause(context, 0.0, 0.2)
            await program.end()
            await pause(context, 0.0, 1.0)

    async def work_until(self, done: asyncio.Event) -> None:
        """Take the transactional id over once more, and process what is left."""
        while not done.is_set():
            program = self._next_program()
            while await program.turn("visible") and not done.is_set():
                pass
            await program.end()

    def _next_program(self) -> Program:
        self._lives += 1
        shared, process = self.shared, f"{self.transactional_id}/{self._lives}"
        client = shared.context.client(request_timeout_ms=CALL_S * 1000)
        consumer = client.consumer(
            shared.source,
            group=shared.group,
            instance_id=f"seat-{self.number}" if self.number < STATIC else None,
            **callbacks(shared.context, process, shared.place),
            **CONSUMER,
        )
        outputs = NumberedProducer(shared.context, process, shared.target, shared.target_key, TARGETS)
        return Program(shared, self.transactional_id, client, consumer, outputs)


@dataclass(slots=True)
class Program:
    """One life of a program: a member of the group, until it is fenced or ends."""

    shared: SharedState
    transactional_id: str
    client: AsyncClient
    consumer: Any
    outputs: NumberedProducer
    _over: list[asyncio.Task[None]] = field(default_factory=list)  # the consumer is closed, or ends without a word

    async def turn(self, ending: str) -> bool:
        """Read some records, and write their outputs, in one transaction. Return whether the program goes on."""
        context = self.shared.context
        transaction = RecordedTransaction.of(
            context, self.client, self.outputs.process, self.transactional_id,
            transaction_timeout_ms=TIMEOUTS_MS[-1] if ending == "hanging" else context.rng.choice(TIMEOUTS_MS),
            linger_ms=context.rng.choice((0, 5)),
        )  # fmt: skip
        if await transaction.begin():
            await context.clock.sleep(0.1)
            return not transaction.fenced
        found = await self._read(transaction)
        if found:
            await self._process(transaction, found, ending)
        elif found is not None:
            call = await transaction.commit_once([], "decided")
            transaction.fenced = call.error == Fenced.code
        return found is not None and not (transaction.fenced or self._over)

    async def _read(self, transaction: RecordedTransaction) -> Sequence[Any] | None:
        """Read some records, whose offsets the transaction commits. None: the consumer has ended."""
        context, shared, process = self.shared.context, self.shared, self.outputs.process
        try:
            await transaction.inner.commit_offsets(self.consumer)
            found: list[Any] = await self.consumer.poll(timeout=POLL_S, max_records=context.rng.randint(1, 10))
        except TinymqError as error:
            fail(begin(context, process, "read", **shared.place), error)
            await transaction.roll_back()
            return None
        begin(context, process, "handed_out", **shared.place).ok([[each.partition, each.offset] for each in found])
        return found

    async def _process(self, transaction: RecordedTransaction, found: Sequence[Any], ending: str) -> None:
        """Write an output for each record, and end the transaction."""
        names = self.outputs.records(len(found))
        parts: dict[int, list[str]] = {}
        for name in names:
            parts.setdefault(self.shared.context.rng.randrange(TARGETS), []).append(name)
        inputs = {name: [each.partition, each.offset] for name, each in zip(names, found, strict=True)}
        call = begin(
            self.shared.context, self.outputs.process, "transact", TRANSACTION_S,
            topic=self.outputs.key, transactional_id=self.transactional_id, parts=sorted(map(list, parts.items())),
            records=names, idempotent=True, source=self.shared.source_key, group=self.shared.group, inputs=inputs,
        )  # fmt: skip
        with recorded(call):
            await self._finish(transaction, call, ending)

    async def _finish(self, transaction: RecordedTransaction, call: Call, ending: str) -> None:
        clock, rng = self.shared.context.clock, self.shared.context.rng
        refused = await transaction.send(self.outputs, call.args["parts"])
        if refused:
            call.failed(refused)
        elif ending == "rolled back":
            await transaction.roll_back()
            call.failed("rolled back")
        elif ending == "left":
            call.failed("left")
            self._over.append(asyncio.create_task(crash(self.consumer)))
        else:
            if ending == "hanging":
                await clock.sleep(HANG_S * rng.uniform(0.5, 2.0))
            if ending == "closing":
                self._over.append(asyncio.create_task(self._close(after_s=10 ** rng.uniform(-3.0, -0.5))))
            if ending == "hasty":
                commit = await transaction.commit_once(call.args["records"], "decided", 0, rng.uniform(*HASTY_S))
                transaction.end_as(commit, call)
            else:
                await transaction.commit(call, "decided" if ending == "decided" else "visible")

    async def end(self) -> None:
        """End the consumer, unless it has ended: it leaves its group, or is found silent; a static member never tells
        its group."""
        if not self._over:
            self._over.append(asyncio.create_task(self._close()))
        await asyncio.gather(*self._over)

    async def _close(self, after_s: float = 0.0) -> None:
        way = self.shared.context.rng.random()
        await self.shared.context.clock.sleep(after_s)
        with contextlib.suppress(TinymqError):
            if way < 0.5:
                await self.consumer.close()
            else:
                await (leave(self.consumer) if way < 0.8 else crash(self.consumer))


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


async def _move_back(shared: SharedState) -> None:
    """Move the group back in one partition, now and then."""
    context = shared.context
    client = context.client(request_timeout_ms=CALL_S * 1000)
    while True:
        await pause(context, 1.0, 6.0)
        if context.stop.is_set():
            return
        await seek(context, client, f"{context.name} moves back", shared.source, shared.place, SOUGHT)


async def _catch_up(shared: SharedState, client: AsyncClient, slots: Sequence[ProgramSlot]) -> None:
    """Let programs process everything: all faults are over."""
    context, process, done = shared.context, f"{shared.context.name} end", asyncio.Event()
    working = [asyncio.create_task(slot.work_until(done)) for slot in slots]
    with recording(context, process, "caught_up", LAST_S + CALL_S, **shared.place) as call:
        until_s = context.clock.monotonic() + LAST_S
        while not await look_at_cursors(context, client, process, shared.place):
            if context.clock.monotonic() > until_s:
                call.failed("DeadlineExceeded")
                break
            await context.clock.sleep(0.2)
        else:
            call.ok()
    done.set()
    await asyncio.gather(*working)

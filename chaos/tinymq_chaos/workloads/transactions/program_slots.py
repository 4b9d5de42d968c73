"""The common part of workloads that read one topic with a group, and write one output for each record to another one,
in transactions: slots, their programs, the ends of transactions, and the end of the workload.

A slot has one program after another, under one transactional id. Programs hang, close in the middle of a commit, and
end as kill -9 does. Meanwhile another client moves the group back in one partition.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tinymq.base.errors import TinymqError
from tinymq.client import AsyncClient
from tinymq_chaos.history import Call
from tinymq_chaos.workloads.clients.threaded_client import leave
from tinymq_chaos.workloads.context import CALL_S, Context, begin, key_of, pause, recording
from tinymq_chaos.workloads.groups.changes import seek
from tinymq_chaos.workloads.groups.observation import follow_cursors, look_at_cursors
from tinymq_chaos.workloads.producers import NumberedProducer, lone
from tinymq_chaos.workloads.readers import drain
from tinymq_chaos.workloads.transactions.recorded import RecordedTransaction, look_for_unfinished, watch_coordinator

SLOTS = 3
SOUGHT = 0  # the partition in which the group is moved back; in the others, each record has one output
POLL_S = 0.5
TIMEOUTS_MS = (1_000, 4_000, 60_000)  # of transactions
TRANSACTION_S = 30.0  # by which a transaction ends: its calls and pauses, each at its longest
LAST_S = 20.0  # after all faults: until the group has read everything
HASTY = (-2.5, -0.5)  # so long some commits are waited for: powers of ten, in seconds
ENDINGS = ("visible",) * 7 + ("decided",) * 4 + ("rolled back", "hasty", "closing", "hanging") * 2 + ("left",)
"""How transactions end: by a commit that waits or does not; rolled back; by a commit whose answer is not waited for; by
one while the member of the group is closed; by one after a long pause; not at all."""


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state that all programs share."""

    context: Context
    source: str  # name of the topic that they read
    source_key: str
    target: str  # name of the topic that they write to
    target_key: str
    target_partitions: int
    group: str

    @property
    def place(self) -> dict[str, Any]:
        return {"topic": self.source_key, "group": self.group}

    def begin(self, outputs: NumberedProducer, transactional_id: str, places: Sequence[Sequence[int]]) -> Call:
        """Begin the call of a transaction with one output for each record at these places: [partition, offset]."""
        names = outputs.records(len(places))
        parts: dict[int, list[str]] = {}
        for name in names:
            parts.setdefault(self.context.rng.randrange(self.target_partitions), []).append(name)
        return begin(
            self.context, outputs.process, "transact", TRANSACTION_S,
            topic=outputs.key, transactional_id=transactional_id, parts=sorted(map(list, parts.items())),
            records=names, idempotent=True, source=self.source_key, group=self.group,
            inputs={name: list(place) for name, place in zip(names, places, strict=True)},
        )  # fmt: skip

    def transaction(self, client: AsyncClient, process: str, transactional_id: str, ending: str) -> RecordedTransaction:
        """Make a transaction, with a time-out that its ending may overstay unless it hangs."""
        return RecordedTransaction.of(
            self.context, client, process, transactional_id,
            transaction_timeout_ms=TIMEOUTS_MS[-1] if ending == "hanging" else self.context.rng.choice(TIMEOUTS_MS),
            linger_ms=self.context.rng.choice((0, 5)),
        )  # fmt: skip


class Program(Protocol):
    """One life of a program: a member of the group, until it is fenced or ends."""

    async def turn(self, ending: str) -> bool:
        """Read some records, and write their outputs, in one transaction. Return whether the program goes on."""
        ...

    async def end(self) -> None:
        """End the member of the group, if it goes on."""
        ...


MakeProgram = Callable[[SharedState, "ProgramSlot", AsyncClient, NumberedProducer], Program]


@dataclass(slots=True)
class ProgramSlot:
    """A transactional id, and the programs that use it one after another."""

    shared: SharedState
    number: int
    make_program: MakeProgram
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
        outputs = NumberedProducer(shared.context, process, shared.target, shared.target_key, shared.target_partitions)
        return self.make_program(shared, self, client, outputs)


@dataclass(slots=True)
class Member:
    """The consumer or the worker of a program, and its end."""

    context: Context
    inner: Any
    crash: Callable[[Any], Awaitable[None]]  # ends it as kill -9 does: it says nothing
    _ending: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Return whether it ends, or has ended."""
        return bool(self._ending)

    def vanish(self) -> None:
        self._ending.append(asyncio.create_task(self._crash()))

    def close_after(self, after_s: float) -> None:
        self._ending.append(asyncio.create_task(self._close(after_s)))

    async def end(self) -> None:
        """End it, if it goes on: some say so to their group, and others are missed."""
        if not self._ending:
            self.close_after(0.0)
        await asyncio.gather(*self._ending)

    async def _crash(self) -> None:
        await self.crash(self.inner)

    async def _close(self, after_s: float) -> None:
        way = self.context.rng.random()
        await self.context.clock.sleep(after_s)
        with contextlib.suppress(TinymqError):
            if way < 0.5:
                await self.inner.close()
            else:
                await (leave(self.inner) if way < 0.8 else self.crash(self.inner))


async def finish(
    transaction: RecordedTransaction, call: Call, ending: str, member: Member, hang_s: tuple[float, float]
) -> None:
    """End a transaction in which everything is sent, and its call. `hang_s`: how long it hangs before its commit, if it
    does."""
    context = transaction.context
    if ending == "rolled back":
        await transaction.roll_back()
        call.failed("rolled back")
    elif ending == "left":
        call.failed("left")
        member.vanish()
    else:
        if ending == "hanging":
            await context.clock.sleep(context.rng.uniform(*hang_s))
        if ending == "closing":
            member.close_after(10 ** context.rng.uniform(-3.0, -0.5))
        if ending == "hasty":
            commit = await transaction.commit_once(
                call.args["records"], "decided", 0, 10 ** context.rng.uniform(*HASTY)
            )
            transaction.end_as(commit, call)
        else:
            await transaction.commit(call, "decided" if ending == "decided" else "visible")


async def run(
    context: Context, partitions: tuple[int, int], make_program: MakeProgram, kind: str, settings: Mapping[str, object]
) -> None:
    """Let programs work until the workload stops, and then until everything is read and written. `partitions` of the
    topic that they read, and of the other one; `kind` and `settings` of their group."""
    source, target = await context.topic(partitions[0]), await context.topic(partitions[1])
    client = context.client(request_timeout_ms=CALL_S * 1000)
    keys = [await key_of(context, client, name) for name in (source, target)]
    shared = SharedState(
        context, source, keys[0], target, keys[1], target_partitions=partitions[1], group=f"{context.name}-g"
    )
    await _make_group(shared, client, kind, settings)
    inputs = NumberedProducer(context, f"{context.name}.in", source, keys[0], partitions[0])
    slots = [ProgramSlot(shared, number, make_program) for number in range(SLOTS)]
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


async def _make_group(shared: SharedState, client: AsyncClient, kind: str, settings: Mapping[str, object]) -> None:
    """Make the group as soon as a broker answers: faults may have begun."""
    while not shared.context.stop.is_set():
        try:
            await client.admin.create_group(
                shared.group, shared.source, kind=kind, settings=settings, exist_ok=True, timeout=CALL_S
            )
            return
        except TinymqError:
            await shared.context.clock.sleep(0.1)


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

"""Half messages: records that are stored first, and committed, rolled back, or left to the checkers of their producer
group, which look up the outcome of the sender's own transaction.

Senders also repeat what they said, contradict it, and say nothing. Checkers do not know the outcome yet, are slow, do
not answer, and close in the middle of a check; some roll back what is not decided, and leave no note of that. In the
end, an operator decides what is still open.

    kind          arguments                                        result when ok
    half          topic, partition, RECORDS (one), idempotent,     its name
                  producer_group, check_after_s
    check_half    RECORDS, number                                  "commit", "rollback" or "unknown": what the checker
                                                                   is about to answer
    end_half      RECORDS, commit, wait, attempt                   whether the partition shows it
    halves_over   group                                            [[RECORD, whether its first check has come and nobody
                                                                   was asked], ...]: what was still open
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tinymq.base.errors import NotFound, TinymqError
from tinymq.client import AsyncClient
from tinymq.client.transaction.half_check import HalfCheck, Verdict
from tinymq_chaos.history import Call, Outcome
from tinymq_chaos.workloads import readers
from tinymq_chaos.workloads.context import CALL_S, Context, begin, key_of, pause, recorded, recording
from tinymq_chaos.workloads.producers import NumberedProducer, lone
from tinymq_chaos.workloads.transactions.recorded import watch_coordinator

PARTITIONS = 2
SENDERS = 3
CHECKERS = 2
CHECK_AFTER_S = (1.0, 1.0, 1.5, 3.0)
LIFE_S = 4.0  # of a checker, about
ENDS_MAX = 3  # calls to end one half message, while the outcome is unknown
CHECKED_S = 8.0  # after all faults: until checkers have decided what they were asked about
LAST_S = 10.0  # then, until an operator has decided the rest
ENDINGS = ("visible",) * 6 + ("decided",) * 3 + ("silent",) * 6 + ("again", "contrary", "late")
"""How senders end: they say it, and wait for the partition or do not; say nothing; say it twice; say the contrary
afterwards; or say it when checkers were asked already."""
LATE_S = 4.0
COMMITTED = 0.6  # the share of the senders' own transactions that are committed
ANSWERS = ("look up",) * 12 + ("never", "hang", "leave", "roll back")
"""How a checker handles a check: it looks the outcome up; never answers; waits before it answers; closes
meanwhile; or rolls back what is not decided, without a note."""


async def halves(context: Context) -> None:
    """Senders of half messages, and checkers, beside records that are visible at once."""
    name = await context.topic(PARTITIONS)
    reading = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, reading, name)
    checkout = Checkout(context, name, key, f"{context.name}-g")
    watch_coordinator(context, checkout.group)
    beside = NumberedProducer(context, f"{context.name}.lone", name, key, PARTITIONS)
    clients = [context.client(request_timeout_ms=CALL_S * 1000) for _ in range(2)]
    senders = [NumberedProducer(context, f"{context.name}.{n}", name, key, PARTITIONS) for n in range(SENDERS)]
    await asyncio.gather(
        readers.follow(context, reading, name, key, "leader"),
        readers.follow(context, reading, name, key, "follower"),
        lone(context, beside, clients[0], 0.1, 1.0),
        *(_send(checkout, sender, clients[number % 2]) for number, sender in enumerate(senders)),
        *(_check(checkout, number) for number in range(CHECKERS)),
    )
    await _end_all(checkout, reading)
    for replica in ("leader", "follower"):
        await readers.drain(context, reading, name, key, replica)


@dataclass(slots=True)
class Checkout:
    """What senders and checkers have in common: among it the database in which the senders' own transactions are."""

    context: Context
    topic: str  # name
    key: str
    group: str
    outcomes: dict[str, bool] = field(default_factory=dict)  # by record: whether its transaction is committed
    open: dict[str, str] = field(default_factory=dict)  # by name: the records of half messages that may be open
    asked: set[str] = field(default_factory=set)  # records about which checkers were asked

    def decide(self, record: str, *, commit: bool) -> bool:
        """End the sender's transaction, unless that was done before. Return whether it is committed."""
        return self.outcomes.setdefault(record, commit)


# ---- senders --------------------------------------------------------------------------------------------------------


async def _send(checkout: Checkout, sender: NumberedProducer, client: AsyncClient) -> None:
    """Store half messages one after another, and end them in every way."""
    context, late = checkout.context, list[asyncio.Task[None]]()
    while not context.stop.is_set():
        (record,) = sender.records(1)
        half = await _store(checkout, sender, client, record)
        if half is None:
            checkout.decide(record, commit=False)
            await pause(context, 0.1, 0.5)
            continue
        ending = context.rng.choice(ENDINGS)
        if ending == "late":
            late.append(asyncio.create_task(_end_late(checkout, sender.process, half, record)))
        else:
            await pause(context, 0.0, 0.5)
            await _end(checkout, sender.process, half, record, ending)
        await pause(context, 0.2, 1.5)
    await asyncio.gather(*late)


async def _store(checkout: Checkout, sender: NumberedProducer, client: AsyncClient, record: str) -> Any:
    """Store a half message. None: nobody will ever see it."""
    context, partition = checkout.context, checkout.context.rng.randrange(PARTITIONS)
    check_after_s = context.rng.choice(CHECK_AFTER_S)
    # Its own producer: records come in the order of their decisions.
    with recording(
        context, sender.process, "half", topic=sender.key, partition=partition, records=[record], producer=record,
        idempotent=True, producer_group=checkout.group, check_after_s=check_after_s,
    ) as call:  # fmt: skip
        half = await client.half_message(
            sender.topic, **sender.content(record).arguments(), producer_group=checkout.group, context=record.encode(),
            partition=partition, check_after=check_after_s, timeout=CALL_S,
        )  # fmt: skip
        call.ok(half.name)
        checkout.open[half.name] = record
        return half
    return None


async def _end_late(checkout: Checkout, process: str, half: Any, record: str) -> None:
    await pause(checkout.context, 0.0, LATE_S / checkout.context.pace)
    await _end(checkout, process, half, record, "visible")


async def _end(checkout: Checkout, process: str, half: Any, record: str, ending: str) -> None:
    """End the sender's transaction, and say so."""
    commit = checkout.decide(record, commit=checkout.context.rng.random() < COMMITTED)
    if ending == "silent":
        return
    wait = "decided" if ending == "decided" else "visible"
    for attempt in range(ENDS_MAX):
        call = await _say(checkout, process, half, record, commit=commit, wait=wait, attempt=attempt)
        if call.outcome is not Outcome.UNKNOWN:
            break
        await pause(checkout.context, 0.0, 1.0)
    if ending in ("again", "contrary"):
        await pause(checkout.context, 0.0, 1.0)
        word = commit if ending == "again" else not commit
        if call.outcome is not Outcome.UNKNOWN:  # else the contrary may come first, which the database does not know
            await _say(checkout, process, half, record, commit=word, wait=wait, attempt=ENDS_MAX)


async def _say(
    checkout: Checkout, process: str, half: Any, record: str, *, commit: bool, wait: str, attempt: int
) -> Call:  # fmt: skip
    """Commit or roll back, once."""
    call = begin(checkout.context, process, "end_half", records=[record], commit=commit, wait=wait, attempt=attempt)
    with recorded(call):
        if commit:
            call.ok(await half.commit(wait, timeout=CALL_S))
            if call.result:
                checkout.open.pop(half.name, None)
        else:
            await half.rollback(timeout=CALL_S)
            call.ok(False)
    return call


# ---- checkers -------------------------------------------------------------------------------------------------------


async def _check(checkout: Checkout, number: int) -> None:
    """One checker after another, until the workload stops."""
    lives, context = 0, checkout.context
    while not context.stop.is_set():
        lives += 1
        client = context.client(request_timeout_ms=CALL_S * 1000)
        answering = Answering(checkout, f"{context.name} checker {number}/{lives}", asyncio.get_running_loop())
        checker = client.checker(checkout.group, answering.check)
        until_s = context.clock.monotonic() + context.rng.uniform(0.5, 2.0) * LIFE_S
        while context.clock.monotonic() < until_s and not (answering.leaves or context.stop.is_set()):
            await context.clock.sleep(0.1)
        await checker.close(timeout=0.0)
        await pause(context, 0.0, 1.0)


@dataclass(slots=True)
class Answering:
    """The handler of one checker."""

    checkout: Checkout
    process: str
    loop: asyncio.AbstractEventLoop  # of the workload: a synchronous client calls its handler on a loop of its own
    ways: tuple[str, ...] = ANSWERS
    leaves: bool = False

    async def check(self, half: HalfCheck) -> Verdict:
        """Answer a check, and write the answer down before it leaves."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._answer(half), self.loop))

    async def _answer(self, half: HalfCheck) -> Verdict:
        context, record = self.checkout.context, half.context.decode()
        self.checkout.asked.add(record)
        call = begin(context, self.process, "check_half", 4 * CALL_S, records=[record], number=half.number)
        verdict: Verdict = "unknown"
        with recorded(call):
            verdict = await self._look_up(record, context.rng.choice(self.ways))
            call.ok(verdict)
        return verdict

    async def _look_up(self, record: str, way: str) -> Verdict:
        context = self.checkout.context
        if way == "never":
            await asyncio.Event().wait()
        if way == "leave":
            self.leaves = True
        if way in ("leave", "hang"):
            await context.clock.sleep(context.rng.uniform(0.1, 2.0))
        outcome = self.checkout.outcomes.get(record)
        if outcome is None and way == "roll back":
            outcome = False
        return "unknown" if outcome is None else "commit" if outcome else "rollback"


# ---- the end --------------------------------------------------------------------------------------------------------


async def _end_all(checkout: Checkout, client: AsyncClient) -> None:
    """Let checkers that always know decide what is due, and decide the rest as an operator."""
    context, begun_us, process = checkout.context, checkout.context.clock.wall_us(), f"{checkout.context.name} operator"
    answering = Answering(checkout, f"{context.name} last checker", asyncio.get_running_loop(), ways=("look up",))
    checker = context.client(request_timeout_ms=CALL_S * 1000).checker(checkout.group, answering.check)
    with recording(context, process, "halves_over", CHECKED_S + LAST_S + 4 * CALL_S, group=checkout.group) as call:
        left = await _open_after(checkout, client, CHECKED_S, None)
        late_us = begun_us + int(CHECKED_S / 2 * 1e6)
        overdue = [
            [record, begun_us < half.check_at.timestamp() * 1e6 < late_us and record not in checkout.asked]
            for record, half in left.items()
        ]
        if await _open_after(checkout, client, LAST_S, process):
            call.failed("DeadlineExceeded")
        else:
            call.ok(overdue)
    await checker.close()


async def _open_after(checkout: Checkout, client: AsyncClient, seconds: float, operator: str | None) -> dict[str, Any]:
    """Wait until all half messages are over. Return the descriptions, by record, of those that are not, after so many
    seconds. `operator`: the process of an operator, who decides them meanwhile."""
    clock = checkout.context.clock
    until_s = clock.monotonic() + seconds
    while True:
        found: dict[str, Any] = {}
        for name, record in list(checkout.open.items()):
            try:
                found[record] = half = await client.admin.describe_half_message(name, timeout=CALL_S)
                if operator is not None:
                    await _operate(checkout, client, operator, half)
            except NotFound:
                del checkout.open[name]
            except TinymqError:  # some coordinator does not answer: it may have the half message
                await clock.sleep(0.1)
        if not checkout.open or clock.monotonic() > until_s:
            return found
        await clock.sleep(0.5)


async def _operate(checkout: Checkout, client: AsyncClient, process: str, half: Any) -> None:
    """Decide as `tinymq half commit` and `rollback` do."""
    record = half.context.decode()
    commit = checkout.decide(record, commit=False)
    with recording(
        checkout.context, process, "end_half", 2 * CALL_S, records=[record], commit=commit, wait="visible", attempt=0
    ) as call:  # fmt: skip
        call.ok(await client.admin.end_half_message(half.name, commit=commit, timeout=CALL_S))

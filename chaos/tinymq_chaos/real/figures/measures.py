"""The measured failures: each does one kind again and again under a light load, and returns a Figure.

Each one reads all records at its end: a missing acknowledged record is part of the figure.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from tinymq.base.errors import TinymqError
from tinymq.client import AsyncClient
from tinymq_chaos.real.cluster.cluster import Cluster
from tinymq_chaos.real.figures.figure import Figure, FigurePart, distribution
from tinymq_chaos.real.figures.load import AcknowledgedWrite, Load, until

TOPIC = "figures"
PARTITIONS = 6
HEAL_S = 60.0  # until everything takes part again
AFTER_S = 0.5  # for which pauses are recorded after writes have resumed
GIB = 1 << 30

Say = Callable[[str], None]


@dataclass(slots=True)
class FigureTrial:
    """A cluster, a client and a load on it, for one figure."""

    cluster: Cluster
    servers: str  # addresses for clients
    client: AsyncClient
    load: Load
    rng: random.Random
    say: Say
    failures: int = 0

    async def do(self, action: Callable[..., object], *args: int) -> None:
        """Call a blocking function on the brokers."""
        await asyncio.to_thread(action, *args)

    async def healthy(self) -> None:
        """Wait until all replicas take part and preferred brokers lead."""
        deadline = time.monotonic() + HEAL_S
        while bad := await asyncio.to_thread(self.cluster.unhealthy):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {HEAL_S:g} s: {bad}")
            await asyncio.sleep(0.1)

    async def leaders(self) -> dict[int, int]:
        """Return the leaders by partition, where there is one."""
        found = {p: await asyncio.to_thread(self.cluster.leader, TOPIC, p) for p in range(PARTITIONS)}
        return {p: broker for p, broker in found.items() if broker is not None}

    async def victim(self) -> tuple[int, list[int]]:
        """Return a broker that leads, and its partitions; each broker in turn, if leaders return in time."""
        wanted = self.cluster.brokers[self.failures % len(self.cluster.brokers)]
        deadline = time.monotonic() + HEAL_S / 2
        while wanted not in (leaders := await self.leaders()).values() and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        if wanted not in leaders.values():
            wanted = self.rng.choice(sorted(set(leaders.values())))
        return wanted, [p for p, leader in leaders.items() if leader == wanted]

    async def resumed(self, since_s: float, within_s: float = 30.0) -> None:
        """Wait until every partition accepts writes again."""
        writes = self.load.partitions
        await until(lambda: all(w.resumed(since_s) for w in writes), within_s, "every partition takes writes")
        await asyncio.sleep(AFTER_S)


@dataclass(slots=True)
class Pauses:
    """The pauses of writes, by failure."""

    # from the failure until writes resumed, at the partitions of the failed leader
    led: list[float] = field(default_factory=list)
    elsewhere: list[float] = field(default_factory=list)  # the longest pause of each of the other partitions meanwhile

    def add(self, load: Load, hit: list[int], at_s: float, done_s: float) -> None:
        """Add a failure that began at `at_s` and was complete by `done_s`: until then the old leader may have
        answered."""
        now_s = time.monotonic()
        for writes in load.partitions:
            if writes.partition in hit:
                self.led.append(writes.pause(done_s, now_s)[1] - at_s)
            else:
                began_s, ended_s = writes.pause(at_s, now_s)
                self.elsewhere.append(ended_s - began_s)


async def failover(trial: FigureTrial, failures: int) -> Figure:
    """kill -9 of a broker that leads, again and again."""
    what = "writes resume after `kill -9` of their leader, seen by a client"
    return await _failover(trial, failures, "failover", what, [(0.5, 0.6), (0.99, 1.0)])


async def failover_unseen(trial: FigureTrial, failures: int) -> Figure:
    """The same without refused connections: a proxy keeps accepting them, as if the machine were gone.

    Only silence shows the failure.
    """
    what = "the same where a proxy still accepts connections, so only silence shows the failure"
    return await _failover(trial, failures, "failover-unseen", what, [(0.5, math.inf), (0.99, 1.0)])


async def _failover(
    trial: FigureTrial, failures: int, name: str, what: str, bounds: Sequence[tuple[float, float]]
) -> Figure:
    pauses = Pauses()
    async with trial.load.running():
        for trial.failures in range(failures):
            await trial.healthy()
            victim, hit = await trial.victim()
            at_s = time.monotonic()
            await trial.do(trial.cluster.kill, victim)
            done_s = time.monotonic()
            await trial.resumed(done_s)
            pauses.add(trial.load, hit, at_s, done_s)
            trial.say(
                f"{trial.failures + 1}/{failures}: broker {victim} killed, writes again after {pauses.led[-1]:.3f} s"
            )
            await trial.do(trial.cluster.start, victim)
        await trial.healthy()
    return await _conclude(
        trial, name, what,
        distribution("", "s", pauses.led, bounds) + distribution("elsewhere", "s", pauses.elsewhere, [(0.99, 0.1)]),
        f"{failures} kills", {"led": pauses.led, "elsewhere": pauses.elsewhere},
    )  # fmt: skip


async def paused_leader(trial: FigureTrial, failures: int) -> Figure:
    """SIGSTOP of a broker that leads, for six seconds.

    When it wakes, a client that still takes it for the leader asks at once for the ends of its logs.
    """
    pauses, stale = Pauses(), 0
    async with trial.load.running():
        for trial.failures in range(failures):
            await trial.healthy()
            victim, hit = await trial.victim()
            async with AsyncClient(trial.servers) as old:
                await old.admin.offsets(TOPIC)  # the client knows the leader
                at_s = time.monotonic()
                await trial.do(trial.cluster.pause, victim)
                done_s = time.monotonic()
                await trial.resumed(done_s)
                pauses.add(trial.load, hit, at_s, done_s)
                await asyncio.sleep(max(0.0, at_s + 6.0 - time.monotonic()))
                acknowledged = {p: trial.load.partitions[p].acks[-1].offset + 1 for p in hit}
                asked = [asyncio.create_task(old.admin.offsets(TOPIC, timeout=10.0)) for _ in range(20)]
                await asyncio.sleep(0)
                await trial.do(trial.cluster.resume, victim)
                for answer in await asyncio.gather(*asked, return_exceptions=True):
                    if isinstance(answer, BaseException):
                        if not isinstance(answer, TinymqError):
                            raise answer
                        continue
                    stale += sum(answer[p].high_watermark < acknowledged[p] for p in hit if p in answer)
            trial.say(f"{trial.failures + 1}/{failures}: broker {victim} stopped, others after {pauses.led[-1]:.3f} s")
        await trial.healthy()
    return await _conclude(
        trial, "paused-leader", "after SIGSTOP of a leader for 6 s, others take over; the woken one is asked at once",
        (*distribution("", "s", pauses.led, [(1.0, 1.5)]), FigurePart("stale answers", stale, 0, "")),
        f"{failures} pauses", {"led": pauses.led, "elsewhere": pauses.elsewhere},
    )  # fmt: skip


async def chain(trial: FigureTrial, seconds: float) -> Figure:
    """Of three brokers, the first and the last cannot reach each other."""
    first, *_, last = trial.cluster.brokers
    async with trial.load.running():
        await trial.healthy()
        before = await trial.leaders()
        at_s = time.monotonic()
        await trial.do(lambda: trial.cluster.net.cut("chain", [(first, last), (last, first)]))
        changes = 0
        while (left_s := at_s + seconds - time.monotonic()) > 0:
            await asyncio.sleep(min(0.2, left_s))
            now = await trial.leaders()
            changes += sum(before.get(p, leader) != leader for p, leader in now.items())
            before |= now
        until_s = time.monotonic()
        await trial.do(lambda: trial.cluster.net.mend("chain"))
        await trial.healthy()
    away_s = [away(writes.acks, at_s, until_s) for writes in trial.load.partitions]
    share = 100 * (1 - sum(away_s) / (len(away_s) * (until_s - at_s)))
    return await _conclude(
        trial, "chain", f"a chained partition for {seconds:g} s",
        (
            FigurePart("available", share, 99.0, "% of the time", least=True),
            FigurePart("changes of leader", changes, 2, ""),
        ),
        f"{PARTITIONS} partitions", {"away": away_s},
    )  # fmt: skip


PAUSE_S = 0.25  # between two acknowledged writes: a longer pause counts as unavailable


def away(acks: list[AcknowledgedWrite], since_s: float, until_s: float) -> float:
    """Return the seconds of pauses longer than PAUSE_S."""
    at = [since_s, *(t for ack in acks if since_s < (t := ack.at_s) < until_s), until_s]
    return sum(b - a for a, b in pairwise(at) if b - a > PAUSE_S)


async def rolling_restart(trial: FigureTrial, rounds: int) -> Figure:
    """Stop and start each broker politely, with writers and a reader at work."""
    async with trial.load.running(reading=True):
        for trial.failures in range(rounds):
            for broker in trial.cluster.brokers:
                await trial.healthy()
                await trial.do(trial.cluster.stop, broker)
                await trial.do(trial.cluster.start, broker)
            trial.say(f"{trial.failures + 1}/{rounds}: all restarted, {len(trial.load.errors)} errors so far")
        await trial.healthy()
    pauses = [_longest(writes.acks) for writes in trial.load.partitions]
    return await _conclude(
        trial, "rolling-restart", "rolling restart under load: errors seen by producers and consumers",
        (FigurePart("errors", len(trial.load.errors), 0, ""), *distribution("longest pause", "s", pauses, [])),
        f"{rounds} rounds of {len(trial.cluster.brokers)} brokers, {trial.load.read:,} records read",
        {"pauses": pauses},
    )  # fmt: skip


def _longest(acks: list[AcknowledgedWrite]) -> float:
    at = [ack.at_s for ack in acks]
    return max(b - a for a, b in pairwise(at))


async def cold_start(trial: FigureTrial, rounds: int, log_bytes: int = GIB) -> Figure:
    """Kill every broker and start it again, with so many bytes in each one's log."""
    await _fill(trial, log_bytes)
    served: list[float] = []
    for trial.failures in range(rounds):
        await trial.healthy()
        await trial.do(trial.cluster.kill, *trial.cluster.brokers)
        await trial.do(trial.cluster.start, *trial.cluster.brokers)
        at_s = time.monotonic()
        async with AsyncClient(trial.servers) as client:
            await asyncio.gather(*(client.send(TOPIC, b"again", partition=p) for p in range(PARTITIONS)))
        served.append(time.monotonic() - at_s)
        trial.say(f"{trial.failures + 1}/{rounds}: every partition takes writes after {served[-1]:.3f} s")
    await trial.healthy()
    kept = min(_bytes(trial.cluster.data(broker)) for broker in trial.cluster.brokers)
    return Figure(
        "cold-start", "all brokers killed and restarted: every partition takes writes, from the last start",
        (FigurePart("max", max(served), 3.0), FigurePart("median", sorted(served)[len(served) // 2], 3.0)),
        f"{rounds} times, {kept / GIB:.2f} GiB in each data folder", {"served": served},
    )  # fmt: skip


async def _fill(trial: FigureTrial, size: int) -> None:
    rows = 1000
    batch = pa.table(
        {"value": pa.array([bytes(8) + random.Random(n).randbytes(1016) for n in range(rows)], pa.binary())}
    )
    batches = size // (rows * 1024) + 1
    async with trial.client.producer() as producer:
        waiting: set[asyncio.Task[object]] = set()
        for number in range(batches):
            delivery = await producer.send_batch(TOPIC, batch, partition=number % PARTITIONS)
            waiting.add(asyncio.ensure_future(_wait(delivery)))
            if len(waiting) >= 16:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            if number % 200 == 0:
                trial.say(f"filling the logs: {number * rows * 1024 / GIB:.2f} of {size / GIB:.2f} GiB")
        await asyncio.gather(*waiting)


async def _wait(delivery: Awaitable[object]) -> object:
    return await delivery


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.log"))


async def _conclude(
    trial: FigureTrial, name: str, what: str, parts: tuple[FigurePart, ...], basis: str, samples: dict[str, list[float]]
) -> Figure:
    """Add the outcome of the records."""
    load = trial.load
    lost, twice = await load.missing()
    parts += (
        FigurePart("acknowledged and lost", lost, 0, ""),
        FigurePart("twice", twice, 0, ""),
        FigurePart("calls without an answer", load.late, 0, ""),
    )
    return Figure(name, what, parts, f"{basis}; {load.acknowledged:,} records acknowledged", samples)

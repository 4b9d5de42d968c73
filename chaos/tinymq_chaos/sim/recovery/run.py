"""One run: load, a majority of disks lost, operators who recover, faults beside them, load again, and the verdict.

python -m tinymq_chaos.sim.recovery.run 0:50
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from tinymq.base.errors import BrokerUnreachable, OffsetOutOfRange, TinymqError
from tinymq.client import AsyncClient, Offset
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.operator_calls.cluster_recovery import Recovering, take_survey
from tinymq_chaos.records import make_content, name_of
from tinymq_chaos.sim.campaign.run import no_collection
from tinymq_chaos.sim.recovery.loss import Ack, Loss, LossHistory, judge
from tinymq_chaos.sim.virtual.event_loop import VirtualLoop, run_virtually
from tinymq_chaos.sim.virtual.transcript import Transcript
from tinymq_chaos.sim.world.brokers import SimBroker
from tinymq_chaos.sim.world.world import World, WorldOptions

TOPIC = "t"
PARTITIONS = 2
LOAD_S = (0.5, 2.5)  # before a loss
AFTER_S = 3.0  # of load, once all groups have leaders again
PATIENCE_S = 5.0  # of an operator
BEHIND = 0.75  # share of losses before which those who keep their disks are cut off
SHOWN_MAX = 10  # anomalies of one run
OPERATE_S = 90.0  # until the cluster has to be whole
SETTLE_S = 30.0
TWICE, TWO_OPERATORS = 0.3, 0.3  # shares of runs with a second loss; of losses with two operators at once
RECORD_BYTES = 100
SETTINGS = {"request_timeout_ms": 3000}
WHERE: tuple[Literal["leader", "any"], ...] = ("leader", "any")
NAMES = {pb.SurveyRequest: "Survey", pb.TakeOverRequest: "TakeOver"}


@dataclass(slots=True)
class RecoveryVerdict:
    """The verdict of a run."""

    seed: int
    story: LossHistory = field(default_factory=LossHistory)
    anomalies: list[str] = field(default_factory=list)
    lost: int = 0  # acknowledged records that the losses took
    told: int = 0  # readers that were told
    transcript: list[str] = field(default_factory=list)


class RecoveryRun:
    """One world and what is going on in it."""

    def __init__(self, world: World, seed: int, outcome: RecoveryVerdict) -> None:
        self.world = world
        self.rng = random.Random(f"{seed}/recovery")
        self.story = outcome.story
        self.outcome = outcome
        self.stop = asyncio.Event()
        self.topic_id = b""
        self._readers = self._topics = 0

    async def go(self) -> None:
        world = self.world
        await world.form()
        await world.clock.sleep(1.0)
        client = world.client(random.Random(self.rng.random()), **SETTINGS)
        await client.admin.create_topic(TOPIC, PARTITIONS, world.replication_factor, timeout=10.0)
        self.topic_id = (await client.admin.describe_topic(TOPIC)).topic_id
        tasks = [asyncio.ensure_future(self._write(partition)) for partition in range(PARTITIONS)]
        tasks += [asyncio.ensure_future(self._read(p, where)) for p in range(PARTITIONS) for where in WHERE]
        tasks += [asyncio.ensure_future(self._take_ids())]
        for _ in range(1 + (self.rng.random() < TWICE)):
            await world.clock.sleep(self.rng.uniform(*LOAD_S))
            await self._lose()
            await world.clock.sleep(AFTER_S)
        self.stop.set()
        await asyncio.gather(*tasks)
        await world.close_clients()
        if bad := await world.healthy(SETTLE_S) or await world.at_rest(SETTLE_S):
            self.outcome.anomalies.append(f"not healed: {bad}")
        await world.seen.collect(world.limits)
        world.over = True
        for replica in world.history.replicas:
            if replica.log[0] == f"{TOPIC}#{self.topic_id.hex()}":
                entries = [entry for entry in replica.entries if entry.records]
                values = {e.base_offset + n: name for e in entries for n, name in enumerate(e.records)}
                self.story.finals[replica.broker, replica.log[1]] = values
        self.outcome.anomalies += judge(self.story)
        self._count()

    def _count(self) -> None:
        contents = {partition: log for (_, partition), log in self.story.finals.items()}
        self.outcome.lost = sum(contents[ack.partition].get(ack.offset) != ack.value for ack in self.story.acks)
        last_s = max(loss.over_s for loss in self.story.losses)
        for partition in range(PARTITIONS):
            if not any(ack.partition == partition and ack.at_s > last_s for ack in self.story.acks):
                self.outcome.anomalies.append(f"partition {partition}: no write after the last recovery")

    # ---- clients --------------------------------------------------------------------------------------

    def _client(self) -> AsyncClient:
        return self.world.client(random.Random(self.rng.random()), **SETTINGS)

    async def _write(self, partition: int) -> None:
        client, count = self._client(), 0
        while not self.stop.is_set():
            count += 1
            value = f"p{partition}-{count}"
            self.story.sent.add(value)
            try:
                content = make_content(value, RECORD_BYTES, self.world.clock.wall_us())
                sent = await client.send(TOPIC, partition=partition, **content.arguments())
                self.story.acks.append(Ack(partition, sent.offset, value, self.world.loop.time()))
            except TinymqError as error:
                self.world.say(f"{value}: {error.code}")
            await self.world.clock.sleep(self.rng.uniform(0.0, 0.05))

    async def _read(self, partition: int, replica: Literal["leader", "any"]) -> None:
        client, start = self._client(), 0
        while not self.stop.is_set():
            self._readers += 1
            name = f"reader {self._readers} of {replica}"
            reads = self.story.reads.setdefault(name, [])
            reader = client.reader(TOPIC, [partition], start={partition: Offset(start)}, replica=replica)
            try:
                while not self.stop.is_set():
                    for message in await reader.poll(timeout=0.5):
                        reads.append((partition, message.offset, name_of(message)))
                        start = message.offset + 1
            except OffsetOutOfRange as error:
                self.outcome.told += 1
                self.world.say(f"{name}: {error}")
                start = min(start, int(error.detail.get("history_start") or 0))
            except TinymqError as error:
                self.world.say(f"{name}: {error.code}")
                await self.world.clock.sleep(0.1)
            await reader.close()

    async def _take_ids(self) -> None:
        """Take producer ids and topic ids all the time."""
        while not self.stop.is_set():
            client = self._client()
            self._topics += 1
            try:
                producer = client.producer()
                self.story.sent.add(value := f"id-{self._topics}")
                partition = self.rng.randrange(PARTITIONS)
                content = make_content(value, RECORD_BYTES, self.world.clock.wall_us())
                await (await producer.send(TOPIC, partition=partition, **content.arguments()))
                self.story.ids.append(("producer", str(producer._core._sender.producer_id)))
                name = f"more.{self._topics}"
                await client.admin.create_topic(name, 1, self.world.replication_factor, timeout=2.0)
                self.story.ids.append(("topic", (await client.admin.describe_topic(name)).topic_id.hex()))
            except TinymqError as error:
                self.world.say(f"ids: {error.code}")
            await client.close()
            await self.world.clock.sleep(self.rng.uniform(0.1, 0.6))

    # ---- the loss, the operators, and what goes wrong beside them --------------------------------------

    async def _lose(self) -> None:
        """Replace the disks of a majority by empty ones, and recover. Mostly the others lack the last records."""
        world, brokers = self.world, list(self.world.brokers.values())
        lost = self.rng.sample(brokers, len(brokers) // 2 + 1)
        kept = [broker for broker in brokers if broker not in lost]
        if self.rng.random() < BEHIND:
            ids = [broker.id for broker in kept]
            world.cut("behind", [pair for a in ids for b in world.brokers if a != b for pair in ((a, b), (b, a))])
            await world.clock.sleep(self.rng.uniform(0.1, 2.5))
            world.clock.call_later(self.rng.uniform(0.01, 1.0), partial(world.mend, "behind"))
        at_s = world.loop.time()
        synced = self._synced(kept)
        for broker in lost:
            broker.wanted = False
            broker.wipe()
            world.clock.call_later(self.rng.uniform(0.1, 2.0), partial(self._replace, broker))
        over = asyncio.Event()
        beside = asyncio.ensure_future(self._disturb(over))
        operators = [self._operate() for _ in range(1 + (self.rng.random() < TWO_OPERATORS))]
        await asyncio.gather(*operators)
        over.set()
        await beside
        if bad := await world.healthy(SETTLE_S):
            self.outcome.anomalies.append(f"not healed after the recovery: {bad}")
        self.story.losses.append(Loss(at_s, world.loop.time(), synced))

    def _replace(self, broker: SimBroker) -> None:
        broker.wanted = True
        broker.revive()

    def _synced(self, kept: Sequence[SimBroker]) -> dict[int, int]:
        """Return by partition the end of what is committed, as far as a broker of these has synced it."""
        ends: dict[int, int] = {}
        for group in [group for broker in kept for group in broker.groups() if group.id.topic_id == self.topic_id]:
            if group.log.durable_index >= group.commit_index:
                ends[group.id.partition] = max(ends.get(group.id.partition, 0), group.high_watermark)
        return ends

    async def _operate(self) -> None:
        """Call `tinymq cluster recover --accept-loss` until it says that all is well. It is interrupted sometimes."""
        world = self.world
        connector = world.connector()

        async def call(address: str, request: Any, timeout_s: float) -> Any:
            path = f"tinymq.v1.Admin/{NAMES[type(request)]}"
            return await connector.link(address).ask(path, request, min(timeout_s, 2.0))

        addresses = [f"memory:{n}" for n in world.brokers]
        until_s = world.loop.time() + OPERATE_S
        while world.loop.time() < until_s:
            try:
                async with asyncio.timeout(self.rng.uniform(2.0, 20.0)):
                    found = await take_survey(addresses, world.secret, PATIENCE_S, call)
                    if found.unreachable:  # a broker that is left may have what the others lost
                        raise BrokerUnreachable(str(found.unreachable))
                    recovering = Recovering(world.secret, PATIENCE_S, world.clock.monotonic, world.say, call)
                    found = await recovering.run(found, addresses)
            except (TimeoutError, TinymqError) as error:
                world.say(f"the operator: {error!r}")
            else:
                if not found.unreachable and all(surveyed.settled for surveyed in found.groups):
                    return
            await world.clock.sleep(0.2)
        self.outcome.anomalies.append("the operators did not get there")

    async def _disturb(self, over: asyncio.Event) -> None:
        """Kill, pause and cut off brokers beside the operators, for a while."""
        world = self.world
        for n in range(self.rng.randint(0, 8)):
            await world.clock.sleep(self.rng.uniform(0.1, 1.0))
            if over.is_set():
                return
            broker = self.rng.choice(list(world.brokers.values()))
            match self.rng.randrange(3):
                case 0:
                    broker.kill()
                case 1 if broker.up and not broker.process.paused:
                    process = broker.process
                    world.pause(broker)
                    world.clock.call_later(self.rng.uniform(0.2, 2.0), partial(world.resume, process))
                case _:
                    other = self.rng.choice([b.id for b in world.brokers.values() if b is not broker])
                    cut = f"beside {n}"
                    world.cut(cut, [(broker.id, other), (other, broker.id)])
                    world.clock.call_later(self.rng.uniform(0.2, 2.0), partial(world.mend, cut))


def run(seed: int) -> RecoveryVerdict:
    """Run a seed to its end."""
    outcome, transcript = RecoveryVerdict(seed), Transcript()
    nodes = random.Random(f"{seed}/brokers").choices((3, 5), (3, 1))[0]

    async def main(loop: VirtualLoop) -> None:
        transcript.begin(loop)
        world = World(loop, seed, WorldOptions(nodes, joining=False), transcript)
        try:
            await RecoveryRun(world, seed, outcome).go()
        finally:
            outcome.transcript = transcript.lines(world.history)
            transcript.end()

    with transcript.listening(), no_collection():
        try:
            run_virtually(main)
        except AssertionError as error:
            outcome.anomalies.append(f"failed: {error}")
    outcome.anomalies += [f"broken invariant: {line}" for line in transcript.broken]
    return outcome


def main(words: Sequence[str]) -> int:
    first, last = map(int, words[0].split(":"))
    failed = 0
    for seed in range(first, last):
        outcome = run(seed)
        failed += bool(outcome.anomalies)
        acks, ids = len(outcome.story.acks), len(outcome.story.ids)
        print(f"{seed}: {acks} acknowledged, {outcome.lost} lost, {outcome.told} readers told, {ids} ids", flush=True)
        for anomaly in outcome.anomalies[:SHOWN_MAX]:
            print(f"    {anomaly}", flush=True)
        if last - first == 1:
            print("\n".join(outcome.transcript))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

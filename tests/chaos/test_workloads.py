"""Workloads against a cluster in memory, in virtual time: their histories are right, and enough to be judged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import pytest

from tests.client.fake_cluster import FakeCluster, FakePartition
from tinymq.client import AsyncClient
from tinymq.client.facade.async_client import client_of
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.format.batch import parse_batch_header
from tinymq.proto import tinymq_pb2 as pb
from tinymq_chaos.checkers import AnomalyKind, check
from tinymq_chaos.history import History, Outcome
from tinymq_chaos.sim.virtual.event_loop import VirtualClock, VirtualLoop, run_virtually
from tinymq_chaos.workloads import WORKLOADS

SECONDS = 6.0
FAKED = ("idempotent", "plain", "lone", "batches", "hasty", "churn", "recreated", "metadata")
"""The workloads that a FakeCluster can run; the others run on brokers in virtual time: test_sim_workloads.py."""


class StandInContext:
    """A Context over a FakeCluster."""

    def __init__(self, loop: VirtualLoop, name: str, cluster: FakeCluster) -> None:
        self.name = name
        self.pace = 0.5
        self.rng = random.Random(name)
        self.clock = VirtualClock(loop)
        self.history = History(loop.time)
        self.stop = asyncio.Event()
        self.cluster = cluster
        self.clients: list[AsyncClient] = []

    async def topic(
        self, partitions: int = 1, settings: Mapping[str, str] | None = None, replicas: int | None = None
    ) -> str:
        self.cluster.add_topic(self.name, partitions)
        return self.name

    def watch_leader(self, topic: str, partition: int) -> None:
        raise AssertionError("a FakeCluster has no coordinators")

    def client(self, **settings: Any) -> AsyncClient:
        rng = random.Random(self.rng.random())
        core = ClientCore(self.cluster.servers, connector=self.cluster, clock=self.clock, rng=rng, **settings)
        client = client_of(core)
        self.clients.append(client)
        return client

    def caller(self) -> Any:
        raise AssertionError("a FakeCluster has no QueueService")


def run(name: str, spoil: Any = None) -> History:
    """Run one workload beside changes of leaders and lost answers; call `spoil` on the cluster half way."""

    async def main(loop: VirtualLoop) -> History:
        cluster = FakeCluster()
        context = StandInContext(loop, name, cluster)
        working = asyncio.create_task(WORKLOADS[name](context))
        for second in range(int(SECONDS)):
            await context.clock.sleep(1.0)
            if second % 3 == 1:
                cluster.kill(second % 3 + 1)
            if second % 3 == 2:
                cluster.start((second - 1) % 3 + 1)
                cluster.lose_replies = 1
            if second == SECONDS // 2 and spoil is not None:
                spoil(cluster)
        context.history.calm()
        await context.clock.sleep(1.0)
        context.stop.set()
        await working
        context.history.end()
        for client in context.clients:
            await client.close()
        return context.history

    return run_virtually(main)


good_run = lru_cache(run)


@pytest.mark.parametrize("name", FAKED)
def test_a_good_cluster_is_found_to_be_good(name: str) -> None:
    history = good_run(name)
    assert check(history) == []
    assert all(call.outcome is not Outcome.PENDING for call in history.calls)
    done = [call for call in history.calls if call.outcome is Outcome.OK]
    assert len(done) > 30


@pytest.mark.parametrize("name", ["idempotent", "plain", "lone", "batches", "hasty"])
def test_loads_write_and_read(name: str) -> None:
    history = good_run(name)
    written = {n for call in history.of("send") if call.outcome is Outcome.OK for n in call.args["records"]}
    assert len(written) > 30
    for reader in (f"{name} leader end", f"{name} follower end"):
        shown = {
            record
            for call in history.of("poll")
            if call.process == reader and call.outcome is Outcome.OK
            for _, _, records in call.result
            for record in records
        }
        assert shown >= written


def test_the_same_workload_is_the_same_history() -> None:
    assert list(run("batches").lines()) == list(good_run("batches").lines())


# ---- what a bad cluster does is in the history ----------------------------------------------------------------


def lose_a_batch(cluster: FakeCluster) -> None:
    at = cluster.topics["idempotent"][1][0]
    lost = at.frames.pop()
    at.next_offset -= int.from_bytes(lost[44:48], "little")


def write_twice(cluster: FakeCluster) -> None:
    def append(at: FakePartition, payload: bytes) -> int:
        FakePartition.append(at, payload)
        return FakePartition.append(at, payload)

    for at in cluster.topics["idempotent"][1]:
        at.append = partial(append, at)  # type: ignore[method-assign]


def leave_numbers_out(cluster: FakeCluster) -> None:
    cluster.produce = partial(_lenient, cluster, cluster.produce)  # type: ignore[method-assign]


def _lenient(cluster: FakeCluster, produce: Any, broker: int, batch: pb.ProduceBatch) -> pb.ProduceResult:
    """Accept a batch that is too early; the one that should have come before it is then refused."""
    result: pb.ProduceResult = produce(broker, batch)
    at = cluster.topics["hasty"][1][batch.partition]
    sent, known = parse_batch_header(batch.payload), at.producers.get(parse_batch_header(batch.payload).producer_id)
    if not result.HasField("error") or (known is not None and sent.first_sequence < known.next_sequence):
        return result
    return pb.ProduceResult(request_id=batch.request_id, base_offset=at.append(batch.payload), leader_epoch=at.epoch)


def forget_topics(cluster: FakeCluster) -> None:
    cluster.answer = partial(_stale, cluster, cluster.answer)  # type: ignore[method-assign]


def _stale(cluster: FakeCluster, answer: Any, broker: int, request: Any) -> Any:
    topics = cluster.topics
    if isinstance(request, pb.MetadataRequest):
        cluster.topics = {}
    try:
        return answer(broker, request)
    finally:
        cluster.topics = topics


@pytest.mark.parametrize(
    ("name", "spoil", "kind"),
    [
        ("idempotent", lose_a_batch, AnomalyKind.LOST_WRITE),
        ("idempotent", write_twice, AnomalyKind.DUPLICATE),
        ("hasty", leave_numbers_out, AnomalyKind.REORDERED),
        ("metadata", forget_topics, AnomalyKind.NOT_LINEARIZABLE),
    ],
)
def test_a_bad_cluster_is_found_to_be_bad(name: str, spoil: Any, kind: AnomalyKind) -> None:
    assert kind in {anomaly.kind for anomaly in check(run(name, spoil))}

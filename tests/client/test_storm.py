"""All faults at once, by seed: brokers die, hang, come back, lose requests and replies, and leaders move, while a
producer writes and a reader follows. Every acknowledged record is stored once, in order, and was read."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run
from tinymq.base.errors import NotDelivered, OutcomeUnknown

PARTITIONS = 3
RECORDS = 400


def disturb(cluster: FakeCluster, rng: random.Random) -> None:
    broker = rng.choice(list(cluster.nodes))
    away = cluster.down | cluster.hung
    match rng.randrange(7):
        case 0 if not away:
            cluster.kill(broker, elect=rng.random() < 0.9)
        case 1 if not away:
            cluster.hang(broker, elect=rng.random() < 0.9)
        case 2 | 3:
            for back in list(away):
                cluster.elect_away_from(back)
                cluster.start(back)
        case 4:
            cluster.lose_replies += 1
        case 5:
            cluster.lose_requests += 1
        case 6 if broker not in away:
            cluster.move("t", rng.randrange(PARTITIONS), broker)
            cluster.notify()
        case _:
            cluster.break_streams(broker)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 12))])
def test_whatever_happens(seed: int) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        cluster = FakeCluster()
        cluster.add_topic("t", PARTITIONS)
        read: dict[int, list[tuple[int, bytes]]] = {p: [] for p in range(PARTITIONS)}
        async with client_of(cluster, attempt_timeout_ms=150) as mq:
            reader = mq.reader(
                "t", replica=rng.choice(("leader", "follower", "any")), fetch_wait_ms=20, stale_ms_max=50
            )

            async def follow() -> None:
                async for m in reader:
                    assert m.value is not None
                    read[m.partition].append((m.offset, m.value))

            following = asyncio.create_task(follow())
            deliveries = []
            with contextlib.suppress(NotDelivered):  # each delivery is asked below
                async with mq.producer(linger_ms=rng.choice((0, 1)), batch_bytes_max=2000) as producer:
                    for i in range(RECORDS):
                        deliveries.append((i, await producer.send("t", b"%d" % i, key=b"%d" % (i % 17))))
                        if rng.random() < 0.05:
                            disturb(cluster, rng)
                        if rng.random() < 0.2:
                            await asyncio.wait([asyncio.ensure_future(_ended(deliveries[-1][1]))], timeout=0.02)
                    disturbing = asyncio.create_task(_calm(cluster))
                    await producer.flush()
                    await disturbing
            errors = [error for _, d in deliveries if (error := d.exception(0)) is not None]
            assert all(isinstance(error, OutcomeUnknown) for error in errors), errors
            acknowledged = [i for i, d in deliveries if d.exception(0) is None]
            assert len(acknowledged) > RECORDS * 0.9
            total = sum(len(cluster.values("t", p)) for p in range(PARTITIONS))
            while sum(map(len, read.values())) < total:
                assert not following.done(), following
                await asyncio.sleep(0)
            following.cancel()
        written = [int(v) for p in range(PARTITIONS) for v in cluster.values("t", p)]
        assert len(set(written)) == len(written), "written twice"
        assert set(acknowledged) <= set(written)
        for p in range(PARTITIONS):
            mine = [int(v) for v in cluster.values("t", p)]
            kept = [i for i in mine if i in set(acknowledged)]
            assert kept == sorted(kept), "acknowledged records changed places"
            assert read[p] == list(enumerate(cluster.values("t", p))), "the reader saw something else"
        for i, delivery in deliveries:
            if delivery.exception(0) is None:
                meta = delivery.result(0)
                assert cluster.values("t", meta.partition)[meta.offset] == b"%d" % i

    run(scenario(), 60)


async def _ended(delivery: object) -> None:
    await delivery._batch.wait_async()  # type: ignore[attr-defined]


async def _calm(cluster: FakeCluster) -> None:
    """End all faults: every broker is back."""
    for broker in list(cluster.down | cluster.hung):
        cluster.elect_away_from(broker)
        cluster.start(broker)

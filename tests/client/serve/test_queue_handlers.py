"""Handlers of queue groups on real brokers: jobs side by side, retries, dead letters, and the end of a worker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.client.running import run
from tests.client.serve.source_contract import check_source
from tinymq import AsyncClient, Client, Job, Message, Reject, Retry
from tinymq.base.errors import InvalidConfig, InvalidRequest, WrongKind
from tinymq.client.serve.group_source import GroupSource
from tinymq.client.serve.subscription import Kind, Subscription
from tinymq.testing import Cluster

WAIT_S = 60.0
AT_ONCE = {"retry_ms": "0"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1) as cluster:
        yield cluster


def settled(mq: Client, group: str) -> bool:
    return sum(cursor.lag for cursor in mq.admin.group_lag(group)) == 0


def test_a_worker_of_a_queue_group_passes_the_contract_of_sources(cluster: Cluster) -> None:
    async def check() -> None:
        async with AsyncClient(cluster.servers) as mq:
            await mq.admin.create_topic("qa")

            async def fill(count: int) -> None:
                for n in range(count):
                    await mq.send("qa", b"%d" % n)

            subscription = Subscription(print, ("qa",), "qa-g", kind="queue", group_settings={"retry_ms": "0,0"})
            await check_source(GroupSource(mq._core.cluster(), subscription, mq._core._connection.call_soon), fill)

    run(check(), WAIT_S)


@pytest.mark.parametrize("ending", ["stop", "SIGTERM"])
def test_handlers_of_one_partition_run_side_by_side(cluster: Cluster, ending: str) -> None:
    """Each waits for all the others, so they end only if they run at once."""
    topic, together, handled = f"qb-{ending.lower()}", threading.Barrier(4), Counter[bytes | None]()
    with Client(cluster.servers) as mq:
        mq.admin.create_topic(topic)
        for n in range(8):
            mq.send(topic, b"%d" % n)

        @mq.subscribe(topic, group=topic, kind="queue", concurrency=4)
        def handle(job: Job) -> None:
            together.wait(WAIT_S)
            handled[job.value] += 1
            if handled.total() == 8:
                assert mq.health()
                mq.stop() if ending == "stop" else os.kill(os.getpid(), signal.Signals[ending])

        mq.run()
        assert settled(mq, topic)
    assert handled == {b"%d" % n: 1 for n in range(8)}


@pytest.mark.parametrize("verb", ["nack", "reject"])
def test_a_handler_may_settle_its_job_by_itself_and_return(cluster: Cluster, verb: str) -> None:
    topic, deliveries = f"qs-{verb}", list[int]()
    with Client(cluster.servers) as mq:
        mq.admin.create_topic(topic)
        mq.send(topic, b"first")

        @mq.subscribe(topic, group=topic, kind="queue", group_settings=AT_ONCE)
        def handle(job: Job) -> None:
            deliveries.append(job.delivery)
            if job.value == b"last" or job.delivery == 2:
                mq.stop()
            elif verb == "nack":
                job.nack(delay=0)
            else:
                job.reject("nobody wants it")
                mq.send(topic, b"last")

        mq.run()
    assert deliveries == ([1, 2] if verb == "nack" else [1, 1])


def test_a_handler_says_what_becomes_of_its_record(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    deliveries: list[tuple[bytes | None, int]] = []

    async def check() -> None:
        async with AsyncClient(cluster.servers) as mq:
            await mq.admin.create_topic("qc")
            for value in (b"fine", b"again", b"never", b"bad luck", b"by itself"):
                await mq.send("qc", value)

            @mq.subscribe("qc", group="qc", kind="queue", concurrency=3, group_settings=AT_ONCE)
            async def handle(job: Job) -> None:
                deliveries.append((job.value, job.delivery))
                if job.value == b"again" and job.delivery == 1:
                    raise Retry(delay=0, reason="not now")
                if job.value == b"never":
                    raise Reject("nobody wants it")
                if job.value == b"bad luck":
                    raise ValueError("it always fails")
                if job.value == b"by itself":
                    job.ack()
                    raise ValueError("too late to matter")

            serving = asyncio.create_task(mq.serve())
            letters = mq.reader("qc.dlq", start="earliest")
            found = []
            while len(found) < 2:
                try:
                    found += await letters.poll(1.0)
                except Exception:  # the topic is made when it is first needed
                    await asyncio.sleep(0)
            await letters.close()
            mq.stop()
            await serving
            reasons = {letter.value: (letter.header("tinymq-reason") or b"").decode() for letter in found}
            assert reasons[b"never"] == "nobody wants it"
            traceback = next(each for each in found if each.value == b"bad luck").header("tinymq-traceback") or b""
            assert b"ValueError: it always fails" in traceback
            while any(cursor.lag for cursor in await mq.admin.group_lag("qc")):  # a copy is seen before its burial ends
                await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING, "tinymq.client"):
        run(check(), WAIT_S)
    assert Counter(deliveries) == {
        (b"fine", 1): 1, (b"again", 1): 1, (b"again", 2): 1, (b"never", 1): 1, (b"bad luck", 1): 1,
        (b"bad luck", 2): 1, (b"by itself", 1): 1,
    }  # fmt: skip
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert any("qc/0 at offset 3" in text and "delivery 1 failed" in text for text in errors)
    assert any("delivered again after the group's next pause (retry_ms)" in text for text in errors)
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert any("not now: it is delivered again in 0 s" in text for text in told)
    assert not any("not now" in text or "nobody wants it" in text for text in errors)


def test_records_of_a_key_are_handled_one_at_a_time_and_in_order(cluster: Cluster) -> None:
    """Also around a retry and a rejection, while records of other keys run beside them."""
    handled: dict[bytes, list[int]] = {b"a": [], b"b": [], b"c": []}
    running: set[bytes] = set()
    beside = 0

    async def check() -> None:
        async with AsyncClient(cluster.servers) as mq:
            await mq.admin.create_topic("qk")
            async with mq.producer() as producer:
                for n in range(8):
                    for key in handled:
                        await producer.send("qk", b"%d" % n, key=key)

            settings = {**AT_ONCE, "ordering": "key"}

            @mq.subscribe("qk", group="qk", kind="queue", concurrency=8, group_settings=settings, prefetch_records=50)
            async def handle(job: Job) -> None:
                nonlocal beside
                key, number = job.key or b"", int(job.value or b"")
                assert key not in running
                running.add(key)
                beside = max(beside, len(running))
                for _ in range(20):  # turns in which the others run
                    await asyncio.sleep(0)
                running.discard(key)
                if (key, number, job.delivery) == (b"a", 3, 1):
                    raise Retry(delay=0)
                if (key, number) == (b"b", 5):
                    raise Reject("no")
                handled[key].append(number)

            serving = asyncio.create_task(mq.serve(signals=False))
            while not all(numbers[-1:] == [7] for numbers in handled.values()):
                await asyncio.wait([serving], timeout=0.01)
                assert not serving.done()
            mq.stop()
            await serving

    run(check(), WAIT_S)
    assert handled == {b"a": [*range(8)], b"b": [0, 1, 2, 3, 4, 6, 7], b"c": [*range(8)]}
    assert beside > 1


@pytest.mark.parametrize("on_error", ["skip", "stop"])
def test_a_failed_job_follows_the_subscriptions_policy(cluster: Cluster, on_error: str) -> None:
    topic = f"qd-{on_error}"
    with Client(cluster.servers) as mq:
        mq.admin.create_topic(topic)
        mq.send(topic, b"x")

        @mq.subscribe(topic, group=topic, kind="queue", on_error=on_error)  # type: ignore[arg-type]
        def handle(job: Job) -> None:
            mq.stop()
            raise ValueError("bad luck")

        if on_error == "stop":
            with pytest.raises(ValueError, match="bad luck"):
                mq.run()
        else:
            mq.run()
        assert settled(mq, topic) == (on_error == "skip")


def test_a_stop_gives_back_at_once_what_was_not_begun(cluster: Cluster) -> None:
    """While one handler still runs, another worker gets all other records, none of them as a second delivery."""
    begun, go_on = threading.Event(), threading.Event()
    with Client(cluster.servers) as mq, Client(cluster.servers) as other:
        mq.admin.create_topic("qe")
        with mq.producer() as producer:
            for n in range(50):
                producer.send("qe", b"%d" % n)

        @mq.subscribe("qe", group="qe", kind="queue", prefetch_records=50)
        def handle(job: Job) -> None:
            begun.set()
            go_on.wait(WAIT_S)

        serving = threading.Thread(target=lambda: mq.serve(signals=False))
        serving.start()
        assert begun.wait(WAIT_S)
        mq.stop()
        got: list[tuple[bytes | None, int]] = []
        with other.worker("qe", group="qe") as worker:
            while len(got) < 49:
                for job in worker.poll(WAIT_S):
                    got.append((job.value, job.delivery))
                    job.ack()
            go_on.set()
            serving.join()
        assert settled(mq, "qe")
    assert sorted(got) == sorted((b"%d" % n, 1) for n in range(1, 50))


def test_a_worker_that_stops_ends_its_iteration_and_can_still_settle(cluster: Cluster) -> None:
    with Client(cluster.servers) as mq:
        mq.admin.create_topic("qf")
        for n in range(3):
            mq.send("qf", b"%d" % n)
        with mq.worker("qf", group="qf") as worker:
            jobs = []
            for job in worker:
                jobs.append(job)
                worker.stop()
            assert worker.poll(0.0) == []
            assert [job.in_hand for job in jobs] == [True]
            jobs[0].ack()
            worker.flush()
        (cursor,) = mq.admin.group_lag("qf")
        assert (cursor.position, cursor.lag) == (1, 2)


def test_a_worker_follows_added_partitions(cluster: Cluster) -> None:
    with Client(cluster.servers, metadata_max_age_ms=200) as mq:
        mq.admin.create_topic("qg")
        with mq.worker("qg", group="qg") as worker:
            assert worker.poll(0.0) == []
            mq.admin.add_partition("qg")
            mq.send("qg", b"new", partition=1)
            job = next(worker)
            assert (job.partition, job.value) == (1, b"new")
            job.ack()


# ---- the kind of the group ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_a_group_that_is_there_decides_by_its_kind(cluster: Cluster, kind: Kind) -> None:
    name, got = f"qh-{kind}", []
    with Client(cluster.servers) as mq:
        mq.admin.create_topic(name)
        mq.admin.create_group(name, [name], kind=kind)
        mq.send(name, b"x")

        @mq.subscribe(name, group=name)
        def handle(record: Job | Message) -> None:
            got.append(type(record).__name__)
            mq.stop()

        mq.run()
    assert got == ["Job" if kind == "queue" else "Message"]


def test_a_handler_of_the_other_kind_is_refused(cluster: Cluster) -> None:
    with Client(cluster.servers) as mq:
        mq.admin.create_topic("qi")
        mq.admin.create_group("qi", ["qi"], kind="stream")
        mq.subscribe("qi", group="qi", kind="queue")(print)
        with pytest.raises(WrongKind, match="stream group"):
            mq.run()


def test_what_does_not_fit_the_kind_is_refused_where_it_is_written() -> None:
    mq = Client("127.0.0.1:1")
    with pytest.raises(InvalidRequest, match="kind="):
        mq.subscribe("t", group="g", kind="topic")(print)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="commit_interval_ms is no setting of a handler of a queue group"):
        mq.subscribe("t", group="g", kind="queue", commit_interval_ms=5)(print)
    with pytest.raises(InvalidConfig, match="prefetch_records is no setting of a handler of a stream group"):
        mq.subscribe("t", group="g", kind="stream", prefetch_records=5)(print)
    with pytest.raises(InvalidConfig, match="unknown setting"):
        mq.subscribe("t", group="g", prefetch=5)(print)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match="instance_id"):
        mq.subscribe("t", group="g", kind="queue", instance_id="i")(print)
    with pytest.raises(InvalidRequest, match="2 topics"):
        mq.subscribe(["t", "u"], group="g", kind="queue")(print)
    with pytest.raises(InvalidConfig, match="group_settings"):
        mq.subscribe("t", group="g", kind="stream", group_settings={"lease_ms": 1})(print)
    with pytest.raises(InvalidRequest, match="delay"):
        Retry(delay=-1)

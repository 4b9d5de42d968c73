"""Workers of queue groups, asynchronous and in threads, against a real cluster."""

from __future__ import annotations

import asyncio

import pytest

from tinymq.base.errors import Closed, InvalidRequest, LeaseLost, OutcomeUnknown, TinymqError, WrongKind
from tinymq.base.types import Offset
from tinymq.client import AsyncClient, Client, Job
from tinymq.testing import Cluster

POLL_S = 30.0


@pytest.fixture
def topic(request: pytest.FixtureRequest, mq: Client) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:100]
    mq.admin.create_topic(name, partitions=2)
    return name


def fill(mq: Client, topic: str, count: int) -> None:
    with mq.producer() as producer:
        for n in range(count):
            producer.send(topic, b"%d" % n)


def lag(mq: Client, group: str) -> int:
    return sum(cursor.lag for cursor in mq.admin.group_lag(group))


def test_a_worker_gets_every_record_once_and_its_acks_are_committed(mq: Client, topic: str) -> None:
    fill(mq, topic, 300)
    got: list[bytes | None] = []
    with mq.worker(topic, group=topic) as worker:
        while len(got) < 300:
            for job in worker.poll(POLL_S):
                assert job.delivery == 1
                got.append(job.value)
                job.ack()
        worker.flush()
        assert lag(mq, topic) == 0
    assert sorted(got) == sorted(b"%d" % n for n in range(300))


def test_a_worker_is_told_which_of_its_settings_the_group_has_not(
    mq: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = {"lease_ms": 60_000, "retry_ms": [1000, 2000], "rate_max": "none"}
    for settings in (first, {**first, "retry_ms": "1000,2000"}, {}):
        with mq.worker(topic, group=topic, group_settings=settings):
            assert caplog.messages == []
    with mq.worker(topic, group=topic, group_settings={**first, "lease_ms": 5000}):
        assert caplog.messages == [
            f"group {topic} has lease_ms=60000, not 5000 as this program says; "
            f"to change it: tinymq group alter {topic} --set lease_ms=5000"
        ]
    assert mq.admin.describe_group(topic).settings["lease_ms"] == "60000"


def test_two_workers_share_the_records(mq: Client, topic: str) -> None:
    """Neither is granted more than its prefetch, so the second gets what the first has no room for."""
    fill(mq, topic, 40)
    with mq.worker(topic, group=topic, prefetch_records=5) as one, mq.worker(topic, group=topic) as other:
        first = next(iter(one))
        got: list[Job] = []
        while len(got) < 30:
            got += other.poll(POLL_S)
        assert first.offset not in [job.offset for job in got if job.partition == first.partition]
        for job in (first, *got):
            job.ack()


def test_an_ack_that_waits_is_durable_when_it_returns(mq: Client, topic: str) -> None:
    fill(mq, topic, 2)
    with mq.worker(topic, group=topic) as worker:
        first, second = next(worker), next(worker)
        first.ack(wait=True)
        assert lag(mq, topic) == 1
        first.ack(wait=True)
        second.ack()
        worker.flush()
        second.ack(wait=True)
        with pytest.raises(InvalidRequest, match="nack"):
            second.nack()


def test_an_ack_that_waits_says_what_kept_it_from_counting(mq: Client, topic: str) -> None:
    """A job that was lost before, one that is lost by its ack, an ack without an answer, and the end of the worker."""
    fill(mq, topic, 1)
    told: list[TinymqError] = []
    with mq.worker(topic, group=topic, on_lost=lambda _, error: told.append(error)) as worker:
        job = next(worker)
        mq.admin.seek_group(topic, Offset(0), partitions=[job.partition])
        with pytest.raises(LeaseLost):
            job.ack(wait=True)
        assert len(told) == 1
        with pytest.raises(LeaseLost):
            job.ack(wait=True)
        again = next(worker)
        with pytest.raises(OutcomeUnknown, match="no answer after 0 s"):
            again.ack(wait=True, timeout=0.0)
        again.ack(wait=True)
        assert lag(mq, topic) == 0
    with pytest.raises(InvalidRequest, match="timeout"):
        again.ack(wait=True, timeout=-1)


def test_acks_wait_on_the_loop_of_an_asynchronous_worker(mq: Client, cluster: Cluster, topic: str) -> None:
    fill(mq, topic, 3)

    async def work() -> None:
        async with AsyncClient(cluster.servers) as client, client.worker(topic, group=topic) as worker:
            jobs: list[Job] = []
            while len(jobs) < 3:
                jobs += await worker.poll(POLL_S)
            await asyncio.gather(*(job.ack(wait=True) for job in jobs[:2]))
            assert sum(cursor.lag for cursor in await client.admin.group_lag(topic)) == 1
            waiting = asyncio.create_task(worker_ack(jobs[2]))
            await worker._core.leave()
            with pytest.raises((OutcomeUnknown, Closed)):
                await waiting

    async def worker_ack(job: Job) -> None:
        await job.ack(wait=True)

    asyncio.run(work())


def test_a_failed_job_is_delivered_again_and_says_so(mq: Client, topic: str) -> None:
    fill(mq, topic, 1)
    with mq.worker(topic, group=topic) as worker:
        job = next(worker)
        job.nack(delay=0.0, error="no")
        again = next(worker)
        assert (again.offset, again.value, again.delivery) == (job.offset, b"0", 2)
        again.ack()


def test_an_exception_nacks_what_is_in_hand(mq: Client, topic: str) -> None:
    fill(mq, topic, 1)

    def handle(job: Job) -> None:
        raise ZeroDivisionError(job.offset)

    def work() -> None:
        with mq.worker(topic, group=topic, group_settings={"retry_ms": "1"}) as worker:
            handle(next(worker))

    with pytest.raises(ZeroDivisionError):
        work()
    with mq.worker(topic, group=topic) as worker:
        job = next(worker)
        assert job.delivery == 2
        job.ack()


def test_a_rejected_record_is_a_dead_letter(cluster: Cluster, mq: Client, topic: str) -> None:
    fill(mq, topic, 1)
    with mq.worker(topic, group=topic) as worker:
        next(worker).reject("not a number")
        worker.flush()
    dead_letters = f"{topic}.dlq"
    cluster.wait_leader(dead_letters)  # it is made when it is first needed, and `flush` does not wait for that
    letters = mq.reader(dead_letters, start="earliest")
    (letter,) = letters.poll(POLL_S, 1)
    letters.close()
    assert (letter.value, letter.header("tinymq-group")) == (b"0", topic.encode())


def test_a_seek_takes_the_jobs_in_hand(mq: Client, topic: str) -> None:
    fill(mq, topic, 1)
    lost: list[int] = []
    with mq.worker(topic, group=topic, on_lost=lambda job, error: lost.append(job.offset)) as worker:
        job = next(worker)
        mq.admin.seek_group(topic, Offset(0), partitions=[job.partition])
        again = next(worker)
        job.ack()
        assert (again.offset, again.delivery, lost) == (job.offset, 1, [job.offset])
        again.ack()
        with pytest.raises(LeaseLost, match="1 jobs"):
            worker.flush()


def test_a_worker_follows_its_leader(cluster: Cluster, mq: Client, topic: str) -> None:
    """Nothing that it holds is delivered to it, or to another worker, again."""
    for partition in (0, 1):
        mq.send(topic, b"%d" % partition, partition=partition)
    with mq.worker(topic, group=topic) as worker:
        held = [next(worker), next(worker)]
        for partition in (0, 1):
            at = mq.admin.describe_topic(topic).partitions[partition]
            mq.admin.transfer_leader(topic, partition, next(b for b in at.replicas if b != at.leader))
        for job in held:
            job.ack()
        worker.flush()
        assert lag(mq, topic) == 0
        fill(mq, topic, 1)
        after = next(worker)
        assert after.delivery == 1
        after.ack()


def test_what_is_taken_and_not_begun_can_be_given_back_uncharged(mq: Client, topic: str) -> None:
    for n in range(4):
        mq.send(topic, b"%d" % n, partition=0)
    with mq.worker(topic, group=topic, prefetch_records=4) as one, mq.worker(topic, group=topic) as other:
        taken: list[Job] = []
        while len(taken) < 4:
            taken += one.poll(POLL_S, 4, start=False)
        first, second, third, fourth = taken
        first.start()
        with pytest.raises(InvalidRequest, match="is begun"):
            first.release()
        one.stop()  # or the same worker may get them again
        for job in (second, third):
            job.release()
            with pytest.raises(InvalidRequest, match="is released already: ack"):
                job.ack()
        again: list[Job] = []
        while len(again) < 2:
            again += other.poll(POLL_S)
        assert sorted((job.offset, job.delivery) for job in again) == [(second.offset, 1), (third.offset, 1)]
        for job in (first, fourth, *again):
            job.ack()
        one.flush()
        other.flush()
        assert lag(mq, topic) == 0


def test_an_exception_charges_only_what_was_begun(mq: Client, topic: str) -> None:
    for n in range(2):
        mq.send(topic, b"%d" % n, partition=0)

    def work() -> None:
        with mq.worker(topic, group=topic, group_settings={"retry_ms": "1,1"}) as worker:
            taken: list[Job] = []
            while len(taken) < 2:
                taken += worker.poll(POLL_S, start=False)
            taken[0].start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with mq.worker(topic, group=topic) as worker:
        deliveries: dict[int, int] = {}
        while len(deliveries) < 2:
            for job in worker.poll(POLL_S):
                deliveries[job.offset] = job.delivery
                job.ack()
    assert deliveries == {0: 2, 1: 1}


def test_a_stream_group_has_no_workers(mq: Client, topic: str) -> None:
    mq.admin.create_group("stream-of-members", topic)
    with pytest.raises(WrongKind), mq.worker(topic, group="stream-of-members"):
        raise AssertionError


def test_an_asynchronous_worker(cluster: Cluster, mq: Client, topic: str) -> None:
    fill(mq, topic, 10)

    async def work() -> list[bytes | None]:
        got: list[bytes | None] = []
        async with AsyncClient(cluster.servers) as client, client.worker(topic, group=topic) as worker:
            async for job in worker:
                got.append(job.value)
                job.ack()
                if len(got) == 10:
                    break
        return got

    assert sorted(asyncio.run(work())) == sorted(b"%d" % n for n in range(10))
    assert lag(mq, topic) == 0

"""Acks of a queue group's jobs that are committed with a transaction, on a real cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from tests.client.group.test_consumer import until
from tinymq.base.errors import Closed, InvalidRequest, LeaseLost, OutcomeUnknown, TinymqError, TransactionAborted
from tinymq.client import AsyncClient, Client, Job, Transaction, Worker
from tinymq.testing import Cluster

pytestmark = pytest.mark.long
pytest_plugins = ["tinymq.testing.fixture"]


@pytest.fixture
def mq(tinymq_cluster: Cluster) -> Client:
    return tinymq_cluster.client()


def made(mq: Client, name: str, jobs: int = 1) -> None:
    mq.admin.create_topic(f"{name}-in", partitions=1)
    mq.admin.create_topic(f"{name}-out")
    for number in range(jobs):
        mq.send(f"{name}-in", b"%d" % number)


def working(mq: Client, name: str, **settings: object) -> Worker:
    return mq.worker(f"{name}-in", group=f"{name}-g", group_settings={"retry_ms": [10] * 5, **settings})


def outputs(mq: Client, name: str) -> list[bytes | None]:
    with mq.reader(f"{name}-out", end="latest") as reader:
        return sorted((message.value for message in reader), key=lambda value: value or b"")


def left(mq: Client, name: str) -> int:
    return sum(partition.lag for partition in mq.admin.group_lag(f"{name}-g"))


def taken(worker: Worker, count: int = 1) -> list[Job]:
    """So many jobs, or more."""
    jobs: list[Job] = []
    while len(jobs) < count:
        jobs += worker.poll(timeout=30.0)
    return jobs


def committed(mq: Client, jobs: list[Job], name: str, check: Callable[[], object] = lambda: None) -> None:
    """Send one output for each job, and ack them all."""
    with mq.transaction(f"{name}-{id(mq)}") as tx:
        tx.ack(*jobs)
        for job in jobs:
            tx.send(f"{name}-out", job.value)
        check()


def test_jobs_are_settled_exactly_if_the_transaction_is_committed(mq: Client) -> None:
    made(mq, "ja", jobs=3)
    with working(mq, "ja") as worker:
        jobs = taken(worker, 3)

        def fail() -> None:
            assert [job.in_hand for job in jobs] == [False] * 3
            with pytest.raises(InvalidRequest, match="acked in a transaction"):
                jobs[0].ack()
            raise ValueError("half way")

        with pytest.raises(ValueError, match="half way"):
            committed(mq, jobs, "ja", fail)
        assert [job.in_hand for job in jobs] == [True] * 3, "nothing was staged: a nack would count"
        assert left(mq, "ja") == 3
        committed(mq, jobs, "ja")
        assert (left(mq, "ja"), outputs(mq, "ja")) == (0, [b"0", b"1", b"2"])
        with pytest.raises(InvalidRequest, match="acked in a transaction"):
            jobs[0].nack()
        assert worker.poll(timeout=0.1) == []
    story = mq.admin.why("ja-in", 0, 0).groups[0]
    assert (story.state, story.transaction) == ("settled", "")


def begun(mq: Client, name: str) -> Transaction:
    tx = mq.transaction(f"{name}-tx")
    tx.begin()
    return tx


def stage(mq: Client, tx: Transaction) -> None:
    """What `commit` does before it asks for the decision."""
    progress, failures = tx._async._progress, list[TinymqError]()
    assert progress is not None
    mq._loop_thread.run(progress.stage(30.0, failures.append))
    assert failures == []


def test_a_staged_job_is_nobodys_and_comes_back_uncharged(mq: Client, tinymq_cluster: Cluster) -> None:
    made(mq, "jb")
    other = tinymq_cluster.client()
    with working(mq, "jb") as worker, working(other, "jb") as second:
        (job,) = taken(worker)
        tx = begun(mq, "jb")
        tx.ack(job)
        tx.send("jb-out", job.value)
        stage(mq, tx)
        story = mq.admin.why("jb-in", 0, 0).groups[0]
        assert (story.state, story.transaction.split("-")[-1]) == ("staged", str(tx.number))
        assert second.poll(timeout=0.5) == []
        tx.abort()
        assert not job.in_hand
        job.nack()  # it is lost, and nothing is charged
        again: list[Job] = []
        while not again:
            again = second.poll(timeout=0.5) or worker.poll(timeout=0.5)
        assert [each.delivery for each in again] == [1]
        committed(mq if again[0]._partition_work.worker is worker._async else other, again, "jb")
    assert (left(mq, "jb"), outputs(mq, "jb")) == (0, [b"0"])


def test_the_transaction_of_a_worker_that_is_gone_is_rolled_back(mq: Client, tinymq_cluster: Cluster) -> None:
    made(mq, "jc")
    gone = tinymq_cluster.client()
    worker = working(gone, "jc")
    (job,) = taken(worker)
    tx = begun(gone, "jc")
    tx.ack(job)
    stage(gone, tx)
    worker.close()
    with working(mq, "jc") as second:
        (again,) = taken(second)  # long before the transaction's time is up
        assert again.delivery == 1
        committed(mq, [again], "jc")
    with pytest.raises(TransactionAborted):
        tx.commit()
    assert left(mq, "jc") == 0


def test_a_job_that_was_lost_meanwhile_is_not_committed(mq: Client) -> None:
    made(mq, "jd")
    with working(mq, "jd") as worker:
        (job,) = taken(worker)
        tx = begun(mq, "jd")
        tx.ack(job)
        tx.send("jd-out", b"of nobody")
        mq.admin.seek_group("jd-g", "earliest")
        until(lambda: job._loss is not None)
        with pytest.raises(TransactionAborted, match="lost"):
            tx.commit()
        assert not job.in_hand
        (again,) = taken(worker)
        with pytest.raises(LeaseLost):
            begun(mq, "jd-2").ack(job)
        committed(mq, [again], "jd")
    assert outputs(mq, "jd") == [b"0"]


def test_which_jobs_a_transaction_takes(mq: Client, tinymq_cluster: Cluster) -> None:
    made(mq, "je", jobs=4)
    with working(mq, "je") as worker:
        first, second, third, fourth = taken(worker, 4)
        first.ack()
        tx = mq.transaction("je-tx")
        with pytest.raises(InvalidRequest, match="not begun"):
            tx.ack(second)
        tx.begin()
        with pytest.raises(InvalidRequest, match="acknowledged already"):
            tx.ack(second, first)
        assert second.in_hand, "all or none"
        tx.ack(second, second)
        tx.ack(second)
        with mq.transaction("je-other") as other, pytest.raises(InvalidRequest, match="another transaction"):
            other.ack(second)
        theirs = begun(tinymq_cluster.client(), "je-stranger")
        with pytest.raises(InvalidRequest, match="another client"):
            theirs.ack(third)
        tx.commit()
        with pytest.raises(Closed):
            tx.ack(third)
        closing = begun(mq, "je-closing")
        closing.ack(third)
    with pytest.raises(TransactionAborted, match="the worker is closed"):
        closing.commit()
    with mq.transaction("je-late") as late, pytest.raises((Closed, LeaseLost)):
        late.ack(fourth)


def test_the_next_of_a_key_waits_for_the_decision(mq: Client) -> None:
    made(mq, "jf", jobs=0)
    for value in (b"0", b"1"):
        mq.send("jf-in", value, key=b"k")
    with working(mq, "jf", ordering="key") as worker:
        (job,) = taken(worker)
        tx = begun(mq, "jf")
        tx.ack(job)
        stage(mq, tx)
        assert worker.poll(timeout=0.5) == []
        tx.commit()
        (following,) = taken(worker)
        assert (job.value, following.value) == (b"0", b"1")
        following.ack()


def test_an_asynchronous_worker_acks_in_a_transaction(tinymq_cluster: Cluster) -> None:
    async def scenario() -> None:
        async with AsyncClient(tinymq_cluster.servers) as mq:
            await mq.admin.create_topic("jg-in", partitions=1)
            await mq.admin.create_topic("jg-out")
            await mq.send("jg-in", b"one")
            async with mq.worker("jg-in", group="jg-g") as worker:
                job = await anext(worker)
                async with mq.transaction("jg-tx") as tx:
                    tx.ack(job)
                    await tx.send("jg-out", job.value)
            assert sum(partition.lag for partition in await mq.admin.group_lag("jg-g")) == 0

    asyncio.run(scenario())


def test_a_worker_that_hangs_publishes_nothing_that_another_handles(mq: Client, tinymq_cluster: Cluster) -> None:
    """Its session ends while its transaction is open."""
    made(mq, "jh")
    slow, released = tinymq_cluster.client(), threading.Event()

    async def hang() -> None:
        released.wait(60.0)

    worker = working(slow, "jh")
    (job,) = taken(worker)
    tx = begun(slow, "jh")
    tx.ack(job)
    tx.send("jh-out", job.value)
    slow._loop_thread.begin(hang())
    try:
        with working(mq, "jh") as second:
            jobs = taken(second)
            committed(mq, jobs, "jh")
    finally:
        released.set()
    with pytest.raises((TransactionAborted, OutcomeUnknown)):
        tx.commit()
    assert outputs(mq, "jh") == [b"0"]

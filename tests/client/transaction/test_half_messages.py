"""Half messages of both clients on real brokers: seen when they are committed, by their sender or by a checker."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from zlib import crc32

import pytest

from tinymq import AsyncClient, Client, HalfCheck
from tinymq.base.errors import (
    BatchTooLarge,
    InvalidName,
    InvalidRequest,
    NotFound,
    TransactionAborted,
    UnknownTopic,
)
from tinymq.testing import Cluster

pytestmark = pytest.mark.long
WAIT_S = 60.0
PARTITIONS = 2


@pytest.fixture
def topic(mq: Client, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    mq.admin.create_topic(name, partitions=PARTITIONS)
    return name


@pytest.fixture
def group(topic: str) -> str:
    """A producer group of this test alone."""
    return f"of-{topic}"


def read(mq: Client, topic: str) -> list[bytes | None]:
    with mq.reader(topic, end="latest") as reader:
        return sorted((message.value for message in reader), key=repr)


class Answers:
    """A checker's handler, which says what a test says, and keeps what it was asked."""

    def __init__(self, cluster: Cluster, verdict: Any = "unknown") -> None:
        self.cluster, self.verdict = cluster, verdict
        self.asked: list[HalfCheck] = []

    def __call__(self, check: HalfCheck) -> Any:
        self.asked.append(check)
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict

    def wait(self, count: int) -> None:
        """Wait until the handler was asked so often."""
        self.cluster.wait_until(lambda: len(self.asked) >= count, WAIT_S)


def until(holds: Callable[[], bool]) -> None:
    """Wait until the client sees it."""
    until_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until_s, "it did not come in time"
        threading.Event().wait(0.02)


# ---- senders -----------------------------------------------------------------------------------------------------


def test_nobody_sees_a_half_message_before_its_commit(mq: Client, topic: str, group: str) -> None:
    half = mq.half_message(topic, b"paid", producer_group=group, context=b"order 42", key=b"k", headers={"a": b"b"})
    other = mq.half_message(topic, b"failed", producer_group=group, partition=1, check_after=timedelta(minutes=2))
    assert (half.producer_group, half.topic, other.partition) == (group, topic, 1)
    assert read(mq, topic) == []
    mq.send(topic, b"plain")
    assert half.commit()
    other.rollback()
    with mq.reader(topic, end="latest") as reader:
        found = {message.value: message for message in reader}
    assert set(found) == {b"plain", b"paid"}
    assert (found[b"paid"].key, found[b"paid"].header("a")) == (b"k", b"b")


def test_a_decision_is_repeated_and_not_undone(mq: Client, topic: str, group: str) -> None:
    half, other = (mq.half_message(topic, value, producer_group=group) for value in (b"one", b"two"))
    for _ in range(2):
        assert half.commit("decided") in (False, True)
        other.rollback()
    assert half.commit()
    with pytest.raises(InvalidRequest, match="committed already"):
        half.rollback()
    with pytest.raises(TransactionAborted):
        other.commit()
    assert read(mq, topic) == [b"one"]


def test_what_cannot_be_is_refused(mq: Client, topic: str, group: str) -> None:
    with pytest.raises(InvalidName):
        mq.half_message(topic, b"v", producer_group="a/b")
    with pytest.raises(BatchTooLarge):
        mq.half_message(topic, b"v" * 1_100_000, producer_group=group)
    with pytest.raises(InvalidRequest, match="context"):
        mq.half_message(topic, b"v", producer_group=group, context=b"x" * 4097)
    for check_after in (0.5, 3601, float("nan"), True, "6"):
        with pytest.raises(InvalidRequest, match="check_after"):
            mq.half_message(topic, b"v", producer_group=group, check_after=check_after)  # type: ignore[arg-type]
    for odd in (5, None, b"checkout"):
        with pytest.raises(InvalidRequest, match="producer_group"):
            mq.half_message(topic, b"v", producer_group=odd)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="producer_group"):
            mq.checker(odd, print)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="handler"):
        mq.checker(group, "commit")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="wait"):
        mq.half_message(topic, b"v", producer_group=group).commit("later")  # type: ignore[arg-type]
    with pytest.raises(UnknownTopic):
        mq.half_message("nowhere", b"v", producer_group=group, timeout=1.0)
    mq.admin.create_topic(f"{topic}-memory", settings={"storage": "memory", "max_bytes": 1_000_000})
    with pytest.raises(InvalidRequest, match="power cut"):
        mq.half_message(f"{topic}-memory", b"v", producer_group=group)
    assert len(mq.admin.list_half_messages(group)) == 1


def test_the_largest_half_message_reaches_a_checker(cluster: Cluster, mq: Client, topic: str, group: str) -> None:
    largest = b"v" * 1_000_000
    answers = Answers(cluster, "commit")
    with mq.checker(group, answers):
        mq.half_message(topic, largest, producer_group=group)
        cluster.clock.advance(seconds=7)
        until(lambda: read(mq, topic) == [largest])
    assert answers.asked[0].value == largest


# ---- checkers ----------------------------------------------------------------------------------------------------


def test_a_checker_decides_what_a_sender_left(cluster: Cluster, mq: Client, topic: str, group: str) -> None:
    def check(half: HalfCheck) -> Any:
        asked.append(half)
        return {b"order 1": "commit", b"order 2": "rollback"}[half.context]

    asked: list[HalfCheck] = []
    with cluster.client() as sender:
        for number in (1, 2):
            sender.half_message(
                topic, b"v%d" % number, producer_group=group, context=b"order %d" % number, key=b"k", timestamp=17,
                headers=[("a", b"b")],
            )  # fmt: skip
    with mq.checker(group, check) as checker:
        assert (checker.producer_group, checker.closed) == (group, False)
        cluster.clock.advance(seconds=7)
        until(lambda: not mq.admin.list_half_messages(group))
    assert checker.closed
    assert read(mq, topic) == [b"v1"]
    asked.sort(key=lambda half: half.context)
    one = asked[0]
    assert [half.value for half in asked] == [b"v1", b"v2"]
    assert (one.producer_group, one.topic, one.key, one.number) == (group, topic, b"k", 0)
    assert (one.headers, one.timestamp_us) == ((("a", b"b"),), 17)
    with pytest.raises(NotFound):
        mq.admin.describe_half_message(one.name)


def test_the_whole_schedule_on_the_brokers_clock(cluster: Cluster, mq: Client, topic: str, group: str) -> None:
    """15 checks, the first one after 6 s and the others every 30 s; then it is given up, and not delivered."""
    answers = Answers(cluster)
    with mq.checker(group, answers):
        half = mq.half_message(topic, b"v", producer_group=group)
        for number in range(15):
            assert mq.admin.describe_half_message(half.name).checks == number == len(answers.asked)
            cluster.clock.advance(seconds=6.1 if number == 0 else 30.1)
            answers.wait(number + 1)
            until(lambda: mq.admin.describe_half_message(half.name).checks == len(answers.asked))
        assert [check.number for check in answers.asked] == list(range(15))
        cluster.clock.advance(seconds=30.1)
        until(lambda: not mq.admin.list_half_messages(group))
    with pytest.raises(TransactionAborted):
        half.commit()
    assert read(mq, topic) == []


def test_only_answers_count_for_a_day(cluster: Cluster, mq: Client, topic: str, group: str) -> None:
    half = mq.half_message(topic, b"v", producer_group=group)
    cluster.clock.advance(hours=23)
    assert mq.admin.describe_half_message(half.name).checks == 0
    answers = Answers(cluster, RuntimeError("the database is down"))
    with mq.checker(group, answers):
        answers.wait(1)
        cluster.clock.advance(seconds=31)
        answers.wait(2)
        found = mq.admin.describe_half_message(half.name)
        assert (found.checks, found.checkers) == (0, 1)
        answers.verdict = "commit"
        cluster.clock.advance(seconds=31)
        until(lambda: read(mq, topic) == [b"v"])
    forgotten = mq.half_message(topic, b"w", producer_group=group)
    cluster.clock.advance(hours=24, seconds=1)
    until(lambda: not mq.admin.list_half_messages(group))
    with pytest.raises(TransactionAborted):
        forgotten.commit()


@pytest.mark.parametrize("odd", [None, True, "COMMIT"])
def test_an_answer_that_is_no_verdict_is_none(
    cluster: Cluster, mq: Client, topic: str, group: str, odd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    half = mq.half_message(topic, b"v", producer_group=group)
    answers = Answers(cluster, odd)
    with caplog.at_level(logging.ERROR, "tinymq.client"), mq.checker(group, answers):
        cluster.clock.advance(seconds=7)
        answers.wait(1)
        until(lambda: "'commit', 'rollback' or 'unknown'" in caplog.text)
    assert mq.admin.describe_half_message(half.name).checks == 0
    half.rollback()


def test_a_late_answer_changes_no_decision(
    cluster: Cluster, mq: Client, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked, told = threading.Event(), threading.Event()

    def check(half: HalfCheck) -> Any:
        asked.set()
        assert told.wait(WAIT_S)
        return "rollback"

    half = mq.half_message(topic, b"v", producer_group=group)
    with caplog.at_level(logging.WARNING, "tinymq.client"), mq.checker(group, check):
        cluster.clock.advance(seconds=7)
        assert asked.wait(WAIT_S)
        assert half.commit()
        told.set()
        until(lambda: "committed already" in caplog.text)
    assert read(mq, topic) == [b"v"]


def test_closing_a_checker_waits_for_its_handlers_and_a_client_closes_its_checkers(
    cluster: Cluster, mq: Client, topic: str, group: str
) -> None:
    asked, told = threading.Event(), threading.Event()

    def check(half: HalfCheck) -> Any:
        asked.set()
        assert told.wait(WAIT_S)
        return "commit"

    mq.half_message(topic, b"v", producer_group=group)
    with cluster.client() as another:
        checker = another.checker(group, check, concurrency=1)
        cluster.clock.advance(seconds=7)
        assert asked.wait(WAIT_S)
        threading.Timer(0.1, told.set).start()
    assert checker.closed
    until(lambda: read(mq, topic) == [b"v"])


def test_a_checker_that_cannot_go_on_says_why(cluster: Cluster) -> None:
    with cluster.client() as mq:
        checker = mq.checker("x" * 240, lambda check: "commit")
        waiting = threading.Thread(target=checker.wait)
        waiting.start()
        checker.close()
        waiting.join(WAIT_S)
        assert not waiting.is_alive()
        checker.close()


def test_the_asynchronous_client(cluster: Cluster, mq: Client, topic: str, group: str) -> None:
    async def check(half: HalfCheck) -> Any:
        asked.append(half.context)
        return "commit"

    async def main() -> None:
        async with AsyncClient(cluster.servers) as mq:
            half = await mq.half_message(topic, b"one", producer_group=group)
            assert await half.commit()
            await (await mq.half_message(topic, b"two", producer_group=group)).rollback()
            await mq.half_message(topic, b"three", producer_group=group, context=b"order 3", check_after=1.0)
            async with mq.checker(group, check), asyncio.timeout(WAIT_S):
                while await mq.admin.list_half_messages(group):
                    await asyncio.sleep(0.05)

    asked: list[bytes] = []
    asyncio.run(main())
    assert asked == [b"order 3"]
    assert read(mq, topic) == [b"one", b"three"]


def test_a_cancelled_half_message_is_never_seen(cluster: Cluster, mq: Client, topic: str, group: str) -> None:
    async def main() -> None:
        async with AsyncClient(cluster.servers) as mq:
            for turns in range(0, 60, 3):
                sending = asyncio.create_task(mq.half_message(topic, b"v", producer_group=group))
                for _ in range(turns):
                    await asyncio.sleep(0)
                sending.cancel()
                done = (await asyncio.gather(sending, return_exceptions=True))[0]
                if not isinstance(done, BaseException):
                    await done.rollback()

    asyncio.run(main())
    cluster.clock.advance(minutes=3)
    until(lambda: not mq.admin.list_half_messages(group))
    assert read(mq, topic) == []


# ---- people ------------------------------------------------------------------------------------------------------


def test_an_operator_looks_and_decides(mq: Client, topic: str, group: str) -> None:
    halves = [
        mq.half_message(topic, b"v%d" % number, producer_group=group, context=b"order %d" % number)
        for number in range(3)
    ]
    found = mq.admin.list_half_messages(group)
    assert [each.name for each in found] == [half.name for half in halves]
    assert [each.name for each in mq.admin.list_half_messages() if each.producer_group == group] == [
        half.name for half in halves
    ]
    first = mq.admin.describe_half_message(halves[0].name)
    assert (first.producer_group, first.topic, first.partition) == (group, topic, halves[0].partition)
    assert (first.context, first.state, first.checks, first.checkers) == (b"order 0", "open", 0, 0)
    assert first.check_at - first.begun_at == timedelta(seconds=6)
    assert mq.admin.end_half_message(halves[0].name, commit=True)
    assert not mq.admin.end_half_message(halves[1].name, commit=False)
    with pytest.raises(NotFound):
        mq.admin.end_half_message("999999-0-1", commit=True)
    with pytest.raises(InvalidRequest):
        mq.admin.describe_half_message("orders")
    assert read(mq, topic) == [b"v0"]
    halves[2].rollback()


def test_a_deleted_topic_takes_its_half_messages_along(mq: Client, topic: str, group: str) -> None:
    half = mq.half_message(topic, b"v", producer_group=group)
    mq.admin.delete_topic(topic)
    with pytest.raises(TransactionAborted):
        half.commit()


# ---- faults ------------------------------------------------------------------------------------------------------


def of_partition(cluster: Cluster, topic: str, group: str) -> int:
    return cluster.wait_leader(topic, 0)


def of_coordinator(cluster: Cluster, topic: str, group: str) -> int:
    return cluster.wait_leader("__coordinator", crc32(group.encode()) % 16)


@pytest.fixture
def patient(cluster: Cluster) -> Iterator[Client]:
    with cluster.client(attempt_timeout_ms=1000) as client:
        yield client


@pytest.mark.parametrize("leader", [of_partition, of_coordinator])
def test_half_messages_outlive_their_leaders(
    cluster: Cluster, patient: Client, topic: str, group: str, leader: Callable[[Cluster, str, str], int]
) -> None:
    """Killed between the half message and its commit, and between a check and its answer."""
    halves = [
        patient.half_message(topic, value, producer_group=group, partition=0)
        for value in (b"kept", b"dropped", b"left")
    ]
    killed = leader(cluster, topic, group)
    cluster.kill(killed)
    assert halves[0].commit()
    halves[1].rollback()
    cluster.start(killed)
    answers = Answers(cluster, "unknown")
    with patient.checker(group, answers):
        cluster.clock.advance(seconds=7)
        answers.wait(1)
        killed = leader(cluster, topic, group)
        cluster.kill(killed)
        answers.verdict = "commit"
        cluster.clock.advance(seconds=31)
        until(lambda: read(patient, topic) == [b"kept", b"left"])
        cluster.start(killed)
    assert {check.value for check in answers.asked} == {b"left"}

"""The error when brokers do not answer: it names every address and its reason, and what to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run
from tinymq.base.errors import (
    BY_CODE,
    BrokerUnreachable,
    DeadlineExceeded,
    NotDelivered,
    NotReady,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
)
from tinymq.client.net.wire import read_error
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import UnknownError, to_wire


def gone(cluster: FakeCluster) -> None:
    for broker in cluster.nodes:
        cluster.kill(broker, elect=False)


def lists_every_address(error: TinymqError) -> bool:
    return error.hint != "" and all(f"fake:{n}: connection re" in error.message for n in (1, 2, 3))


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.add_topic("t")
    return made


def test_a_failed_send_on_a_warm_client_names_the_brokers_that_it_tried(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with client_of(cluster, request_timeout_ms=400) as mq:
            await mq.send("t", b"")
            gone(cluster)
            with pytest.raises(DeadlineExceeded) as raised:
                await mq.send("t", b"")
            assert lists_every_address(raised.value)
            assert "tinymq cluster status" in raised.value.hint, "more time alone would not help"

    run(scenario())


def test_a_refused_send_has_the_brokers_reason(cluster: FakeCluster) -> None:
    """Both are right: the outcome is unknown if an attempt is waiting for its answer at the deadline."""

    async def scenario() -> None:
        async with client_of(cluster, request_timeout_ms=400) as mq:
            await mq.send("t", b"")
            cluster.refusals.extend(NotReady("no leader yet") for _ in range(1000))
            with pytest.raises((DeadlineExceeded, OutcomeUnknown), match="no leader yet"):
                await mq.send("t", b"")

    run(scenario())


def test_a_client_over_a_bound_until_the_deadline_gets_quota_exceeded(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with client_of(cluster, request_timeout_ms=400) as mq:
            await mq.send("t", b"")
            cluster.refusals.extend(QuotaExceeded("it is full", hint="trim it", retry_after_ms=10) for _ in range(1000))
            delivery = await mq.producer(linger_ms=0, delivery_timeout_ms=400).send("t", b"")
            for writing in (mq.send("t", b""), delivery):
                with pytest.raises(QuotaExceeded, match="it is full") as raised:
                    await writing
                assert (raised.value.hint, raised.value.detail) == ("trim it", {"retry_after_ms": "10"})
            assert cluster.values("t") == [b""], "and nothing was written"
            assert len(cluster.refusals) < 990, "tried again until the deadline"

    run(scenario())


def test_every_record_without_space_in_a_full_topic_gets_the_error(cluster: FakeCluster) -> None:
    """The batches in flight behind the refused one fail, too, because the broker lacks the batch before them."""

    async def scenario() -> None:
        async with client_of(cluster) as mq, mq.producer(delivery_timeout_ms=400, batch_bytes_max=30) as producer:
            await (await producer.send("t", b"there"))
            cluster.records_max = 8
            sent = [await producer.send("t", b"%d" % number) for number in range(20)]
            ended = [await asyncio.to_thread(delivery.exception) for delivery in sent]
            assert [error for error in ended if error is None] == [None] * 7
            assert {type(error) for error in ended[7:]} == {QuotaExceeded}

    run(scenario())


def test_a_new_producer_refused_by_a_full_topic_gets_the_reason(cluster: FakeCluster) -> None:
    """The first batch was refused. The broker then does not know the producer, which is not the reason to report."""

    async def scenario() -> None:
        async with client_of(cluster) as mq, mq.producer(delivery_timeout_ms=400, batch_bytes_max=30) as producer:
            cluster.records_max = 0
            sent = [await producer.send("t", b"%d" % number) for number in range(20)]
            errors = [await asyncio.to_thread(delivery.exception) for delivery in sent]
            assert {type(error) for error in errors} == {QuotaExceeded}
            assert not [error for error in errors if error is None or "not known here" in error.message]

    run(scenario())


def test_records_left_by_a_full_topic_at_the_end_are_reported(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with client_of(cluster) as mq:
            producer = mq.producer(linger_ms=0)
            cluster.refusals.append(QuotaExceeded("it is full", hint="trim it", retry_after_ms=60_000))
            await producer.send("t", b"left behind")
            with pytest.raises(NotDelivered) as raised:
                await producer.close(0.4)
            (record,) = raised.value.records
            assert isinstance(record.error, QuotaExceeded)
            assert (record.error.hint, record.error.detail) == ("trim it", {"retry_after_ms": "60000"})

    run(scenario())


def test_a_call_over_a_bound_until_the_deadline_gets_quota_exceeded(cluster: FakeCluster) -> None:
    def refuse(broker: int, request: Any) -> Any:
        return pb.CreateTopicReply(error=to_wire(QuotaExceeded("too many", retry_after_ms=10)))

    async def scenario() -> None:
        async with client_of(cluster) as mq:
            await mq.admin.list_topics()
            cluster.answer = refuse  # type: ignore[method-assign]
            with pytest.raises(QuotaExceeded, match="too many") as raised:
                await mq.admin.create_topic("more", timeout=0.2)
            assert raised.value.detail == {"retry_after_ms": "10"}

    run(scenario())


@pytest.mark.parametrize("replica", ["leader", "any"])
def test_a_reader_says_which_replicas_it_tried(cluster: FakeCluster, replica: str) -> None:
    async def scenario() -> None:
        async with client_of(cluster) as mq:
            reader = mq.reader("t", replica=replica, unreachable_ms_max=400, fetch_wait_ms=10)
            assert await reader.poll(0.05) == []
            gone(cluster)
            with pytest.raises(BrokerUnreachable) as raised:
                await reader.poll(10)
            assert lists_every_address(raised.value)
            with pytest.raises(TinymqError) as unopened:
                await mq.admin.offsets("t", timeout=0.4)
            assert lists_every_address(unopened.value)

    run(scenario())


def test_undelivered_records_of_a_closed_producer_keep_the_reason(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with client_of(cluster) as mq:
            producer = mq.producer()
            await (await producer.send("t", b"there"))
            gone(cluster)
            await producer.send("t", b"left behind")
            with pytest.raises(NotDelivered) as raised:
                await producer.close(0.4)
            (record,) = raised.value.records
            assert isinstance(record.error, DeadlineExceeded | OutcomeUnknown)
            assert lists_every_address(record.error)
            assert record.error.retriable

    run(scenario())


class Kept(logging.Handler):
    """Return what a process without logging configuration prints on stderr."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def stderr() -> Iterator[list[str]]:
    kept = Kept()
    logger = logging.getLogger("tinymq.client")
    logger.addHandler(kept)
    yield kept.lines
    logger.removeHandler(kept)


def test_a_raised_error_is_not_logged_as_well(cluster: FakeCluster, stderr: list[str]) -> None:
    async def scenario() -> None:
        async with client_of(cluster, request_timeout_ms=300) as mq:
            await mq.admin.list_topics()
            producer = mq.producer(delivery_timeout_ms=300, linger_ms=0)
            await producer.ready("t", mq._connection._clock.monotonic())
            gone(cluster)
            with pytest.raises(DeadlineExceeded):
                await (await producer.send("t", b""))

    run(scenario())
    assert stderr == []


def test_every_kind_of_error_says_what_to_do() -> None:
    kinds = [kind for kind in BY_CODE.values() if kind.__module__.partition(".")[0] == "tinymq"]
    assert UnknownError in kinds
    for kind in kinds:
        assert kind.default_hint, kind
        assert kind("what happened").hint, kind
        assert read_error(pb.Error(code=kind.code, message="what happened")).hint, kind


def test_a_change_of_unknown_outcome_says_nothing_of_producers(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with client_of(cluster, request_timeout_ms=300, attempt_timeout_ms=100) as mq:
            await mq.admin.list_topics()
            cluster.hung |= {1, 2, 3}
            with pytest.raises(OutcomeUnknown) as raised:
                await mq.cluster().ask(pb.DeleteTopicRequest(name="t"), timeout_s=0.3, changes=True)
            assert "producer" not in raised.value.hint
            assert "call again" in raised.value.hint

    run(scenario())


def test_what_a_broker_said_is_not_lost_to_an_attempt_that_the_deadline_cuts_short() -> None:
    cluster = FakeCluster(nodes=1)

    def damaged(broker: int, request: Any) -> Any:
        cluster.hung.add(1)  # from now on; another attempt has less time than attempt_timeout_ms
        return pb.CreateTopicReply(error=to_wire(NotReady("its metadata are damaged")))

    async def scenario() -> None:
        async with client_of(cluster, attempt_timeout_ms=300) as mq:
            await mq.admin.list_topics()
            cluster.answer = damaged  # type: ignore[method-assign]
            with pytest.raises(DeadlineExceeded, match="its metadata are damaged"):
                await mq.admin.create_topic("more", timeout=0.25)

    run(scenario())

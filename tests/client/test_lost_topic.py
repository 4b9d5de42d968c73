"""A topic loses all records, as one in memory does in a power cut: an open client continues with the next send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.grpc_brokers import GrpcBrokers
from tests.client.produce.test_blocking_sender import Ways, connected, later, wait_until
from tests.client.running import client_of, run, until
from tinymq import Client
from tinymq.base.errors import OutcomeUnknown
from tinymq.client.facade.client import loop_thread_of
from tinymq.client.produce import blocking_sender


def lose_everything(cluster: FakeCluster) -> None:
    """Start the log again, led by broker 2, while broker 1 still claims to lead."""
    at = cluster.topics["t"][1][0]
    at.lose(0)
    at.producers.clear()
    at.leader = 2


def epochs(cluster: FakeCluster) -> list[int]:
    return [producer.epoch for producer in cluster.topics["t"][1][0].producers.values()]


def test_a_record_that_a_former_leader_refuses_is_certainly_not_written() -> None:
    """The refusal names the new leader, which does not know the producer: the record gets a new epoch."""

    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t")
        async with client_of(cluster) as mq:
            for _ in range(3):
                await mq.send("t", b"before")
            lose_everything(cluster)
            assert (await mq.send("t", b"after")).offset == 0
        assert cluster.values("t") == [b"after"]
        assert epochs(cluster) == [1]

    run(scenario())


@pytest.mark.parametrize("end", ["the former leader refuses it late", "the former leader is cut off"])
def test_a_batch_sent_only_to_a_former_leader_is_written_after_its_refusal(end: str) -> None:
    """The metadata names the new leader while the record is in flight to the former one.

    The new leader does not know the producer. Only the former one can tell whether it has written the record.
    """

    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t")
        async with client_of(cluster, attempt_timeout_ms=3000) as mq:
            for _ in range(3):
                await mq.send("t", b"before")
            lose_everything(cluster)
            cluster.hold = held = asyncio.Event()
            sent = len(cluster.produce_messages)
            sending = asyncio.create_task(mq.send("t", b"after"))
            # Broker 1 refuses it, and its answer waits for `held`.
            await until(lambda: len(cluster.produce_messages) == sent + 1)
            cluster.hold = None
            assert mq._connection._cluster is not None
            mq._connection._cluster.refresh_soon()
            await until(lambda: len(cluster.produce_messages) > sent + 1)  # broker 2 does not know the producer
            assert not sending.done()
            if end == "the former leader is cut off":
                cluster.break_streams(1)
                with pytest.raises(OutcomeUnknown):
                    await sending
                return
            held.set()
            assert (await sending).offset == 0
            assert cluster.values("t") == [b"after"]
            assert epochs(cluster) == [1], "under another epoch"

    run(scenario())


@pytest.fixture
def brokers() -> Iterator[GrpcBrokers]:
    with GrpcBrokers(FakeCluster(), framed=True) as running:
        running.cluster.add_topic("t", 1)
        yield running


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    return Ways(monkeypatch)


def test_a_lone_record_is_left_with_a_former_leader_until_that_has_refused_it(
    brokers: GrpcBrokers, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_sender, "MOVED_S", 60.0)
    cluster = brokers.cluster

    def on_loop(call: Callable[[], None]) -> None:
        async def made() -> None:
            call()

        brokers.run(made())

    with Client(brokers.servers, attempt_timeout_ms=3000, request_timeout_ms=10_000) as mq:
        connected(mq, ways)
        loop_thread = loop_thread_of(mq)
        core = loop_thread.client._connection._cluster
        assert core is not None
        # A refresh that is running would find the new leader before the record is sent.
        wait_until(lambda: core._refreshing is None or core._refreshing.done())
        on_loop(lambda: lose_everything(cluster))
        cluster.hold = held = asyncio.Event()
        sending = later(lambda: mq.send("t", b"after"))
        wait_until(lambda: ways.by_thread == 1)
        loop_thread.run(core.refresh(timeout_s=5.0))  # the client learns the new leader first
        assert core.view.partition("t", 0).leader == 2
        cluster.hold = None
        on_loop(held.set)
        assert sending.result(10).offset == 0
    assert cluster.values("t") == [b"after"]
    assert epochs(cluster) == [1]

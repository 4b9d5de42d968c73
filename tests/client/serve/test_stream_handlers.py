"""Handlers of stream groups on a real broker, in threads and on a loop, ended by calls and by signals."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from tests.client.running import run
from tests.client.serve.source_contract import check_source
from tinymq.base.errors import InvalidConfig, InvalidRequest
from tinymq.client import AsyncClient, Client, Message
from tinymq.client.serve.stream_source import StreamSource
from tinymq.client.serve.subscription import Subscription
from tinymq.testing import Cluster

WAIT_S = 40.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1) as cluster:
        yield cluster


def test_a_member_of_a_stream_group_passes_the_contract_of_sources(cluster: Cluster) -> None:
    async def check() -> None:
        async with AsyncClient(cluster.servers) as mq:
            await mq.admin.create_topic("sa")

            async def fill(count: int) -> None:
                for n in range(count):
                    await mq.send("sa", b"%d" % n)

            await check_source(StreamSource(mq._core.cluster(), Subscription(print, ("sa",), "sa-g")), fill)
            (cursor,) = await mq.admin.group_lag("sa-g")
            assert cursor.position == 2, "what was done is committed, and nothing more"

    run(check(), WAIT_S)


@pytest.mark.parametrize("ending", ["stop", "SIGINT", "SIGTERM"])
def test_run_handles_what_is_sent_and_commits_what_was_handled(cluster: Cluster, ending: str) -> None:
    topic = f"sb-{ending.lower()}"
    before = signal.getsignal(signal.SIGTERM)
    handled: list[tuple[int, bytes | None]] = []
    with Client(cluster.servers) as mq:
        mq.admin.create_topic(topic, partitions=2)
        for n in range(20):
            mq.send(topic, b"%d" % n, partition=n % 2)

        @mq.subscribe(topic, group=topic, concurrency=2)
        def handle(message: Message) -> None:
            handled.append((message.partition, message.value))
            if len(handled) == 20:
                assert mq.health()
                mq.stop() if ending == "stop" else os.kill(os.getpid(), signal.Signals[ending])

        mq.run()
        assert not mq.health(), "it is not served any more"
        assert sum(cursor.lag for cursor in mq.admin.group_lag(topic)) == 0
    for partition in (0, 1):
        values = [int(value or b"") for number, value in handled if number == partition]
        assert values == list(range(partition, 20, 2))
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_a_stop_did_not_let_begin_is_handled_by_the_next_run(cluster: Cluster) -> None:
    handled: list[bytes | None] = []

    async def check() -> None:
        async with AsyncClient(cluster.servers) as mq:

            @mq.subscribe("sc", group="sc-g")
            async def handle(message: Message) -> None:
                handled.append(message.value)
                if message.value in (b"3", b"9"):
                    mq.stop()

            await mq.admin.create_topic("sc")
            for n in range(10):
                await mq.send("sc", b"%d" % n)
            await mq.serve()
            assert len(handled) == 4
            await mq.serve()

    run(check(), WAIT_S)
    assert handled == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("on_error", ["retry", "skip", "stop"])
def test_a_failed_record_follows_the_subscriptions_policy(cluster: Cluster, on_error: str) -> None:
    topic = f"sd-{on_error}"
    handled: list[bytes | None] = []
    failures = [ValueError("bad luck")]
    mq = AsyncClient(cluster.servers)

    @mq.subscribe(topic, group=topic, on_error=on_error)  # type: ignore[arg-type]
    async def handle(message: Message) -> None:
        if message.value == b"1" and failures:
            raise failures.pop()
        handled.append(message.value)
        if message.value == b"2":
            mq.stop()

    async def check() -> None:
        async with mq:
            await mq.admin.create_topic(topic)
            for n in range(3):
                await mq.send(topic, b"%d" % n)
            if on_error == "stop":
                with pytest.raises(ValueError, match="bad luck"):
                    await mq.serve()
                (cursor,) = await mq.admin.group_lag(topic)
                assert cursor.position == 1, "the record is delivered again"
            else:
                await mq.serve()

    run(check(), WAIT_S)
    assert handled == {"retry": [b"0", b"1", b"2"], "skip": [b"0", b"2"], "stop": [b"0"]}[on_error]


def test_closing_the_client_ends_serving(cluster: Cluster) -> None:
    begun, ended = threading.Event(), threading.Event()
    mq = Client(cluster.servers)
    mq.admin.create_topic("se")
    mq.send("se", b"")

    @mq.subscribe("se", group="se-g")
    def handle(message: Message) -> None:
        begun.set()

    def serve() -> None:
        mq.serve()
        ended.set()

    thread = threading.Thread(target=serve)
    thread.start()
    assert begun.wait(WAIT_S)
    with pytest.raises(InvalidRequest, match="served already"):
        mq.serve()
    mq.close()
    assert ended.wait(WAIT_S)
    thread.join()


def test_a_wrong_subscription_is_refused_where_it_is_written() -> None:
    mq = Client("127.0.0.1:1")
    for error, wrong in (
        (InvalidRequest, lambda: mq.subscribe([], group="g")),
        (InvalidRequest, lambda: mq.subscribe("t", group="g", concurrency=0)),
        (InvalidRequest, lambda: mq.subscribe("t", group="g", on_error="ignore")),  # type: ignore[arg-type]
        (InvalidRequest, lambda: mq.subscribe("t", group="g", processing="at_most_once")),
        (InvalidConfig, lambda: mq.subscribe("t", group="g", comit_interval_ms=1)),  # type: ignore[call-arg]
        (InvalidRequest, lambda: mq.subscribe("t", group="g")(3)),  # type: ignore[type-var]
        (InvalidRequest, mq.run),
    ):
        with pytest.raises(error):
            wrong()
    assert mq.health(), "a program without handlers is not restarted by its probe"
    mq.subscribe("t", group="g")(print)
    assert mq.health().reason == "run() or serve() is not running"
    mq.close()


def test_a_client_without_a_loop_runs_on_its_own(cluster: Cluster) -> None:
    mq = AsyncClient(cluster.servers)
    handled: list[bytes | None] = []

    @mq.subscribe("sf", group="sf-g")
    async def handle(message: Message) -> None:
        handled.append(message.value)
        asyncio.get_running_loop().call_soon(mq.stop)

    with Client(cluster.servers) as other:
        other.admin.create_topic("sf")
        other.send("sf", b"1")
    mq.run()
    assert handled == [b"1"]

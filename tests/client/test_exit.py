"""A program that does not close its producers: records are delivered in time, or counted in a report."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.grpc_brokers import GrpcBrokers
from tests.client.running import client_of
from tests.fakes.raw_client import until
from tinymq.client import AsyncClient, Client
from tinymq.client.facade.client import loop_thread_of
from tinymq.client.produce import exit

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def brokers() -> Iterator[GrpcBrokers]:
    with GrpcBrokers(FakeCluster(), framed=True) as running:
        running.cluster.add_topic("t", 3)
        for broker, address in running.cluster.stream_addresses.items():  # names have to be resolved at exit, too
            running.cluster.stream_addresses[broker] = address.replace("127.0.0.1", "localhost")
        yield running


def stored(brokers: GrpcBrokers) -> int:
    return sum(len(brokers.cluster.values("t", partition)) for partition in range(3))


def stop_all(brokers: GrpcBrokers) -> None:
    for broker in brokers.cluster.nodes:
        brokers.stop(broker, elect=False)


def script(code: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *arguments[:-1], "-c", code, arguments[-1]], stdin=pipe, stdout=pipe, stderr=pipe, text=True,
        cwd=ROOT,
    )  # fmt: skip


SENDS = """
import sys
from tinymq import Client
mq = Client(sys.argv[1])
producer, slow, silent = mq.producer(), mq.producer(linger_ms=60_000), mq.producer(acks="none")
for i in range({count}):
    producer.send("t", b"%d" % i, key=b"%d" % i)
slow.send("t", b"slow")
silent.send("t", b"not answered")
mq.queue("t").push_nowait(b"pushed")
{end}
"""


@pytest.mark.parametrize(("count", "end", "code"), [(10, "", 0), (20_000, "raise ValueError", 1)])
def test_records_are_stored_when_the_program_ends(brokers: GrpcBrokers, count: int, end: str, code: int) -> None:
    running = script(SENDS.format(count=count, end=end), brokers.servers[0])
    _, reports = running.communicate(timeout=60)
    assert running.returncode == code, reports
    asyncio.run(until(lambda: stored(brokers) == count + 3))
    assert "acknowledged" not in reports
    assert ("Traceback" in reports) == (code == 1)


IN_A_CHILD = """
import multiprocessing, sys
from tinymq import Client
def work():
    producer = Client(sys.argv[1]).producer()
    for i in range(100):
        producer.send("t", b"%d" % i)
    globals()["kept"] = producer
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
sys.exit(child.exitcode)
"""


def test_producers_in_a_child_of_multiprocessing_are_flushed(brokers: GrpcBrokers) -> None:
    running = script(IN_A_CHILD, brokers.servers[0])
    _, reports = running.communicate(timeout=60)
    assert (running.returncode, reports, stored(brokers)) == (0, "", 100)


UNREACHABLE = """
import sys
from tinymq import Client
mq = Client(sys.argv[1], attempt_timeout_ms=200)
with mq.producer() as patient:
    patient.send("t", b"first").result(20)
producer = mq.producer(delivery_timeout_ms=500)
print("sent", flush=True)
input()
for i in range(5):
    producer.send("t", b"%d" % i)
"""


def test_undelivered_records_are_counted_within_the_deadline(brokers: GrpcBrokers) -> None:
    running = script(UNREACHABLE, "-W", "default::ResourceWarning", brokers.servers[0])
    assert running.stdout is not None
    assert running.stdout.readline() == "sent\n"
    stop_all(brokers)
    _, reports = running.communicate("\n", timeout=20)
    assert running.returncode == 0, reports
    lines = [line for line in reports.splitlines() if "5 records were not acknowledged when the program ended" in line]
    assert ["ResourceWarning" in line for line in lines] == [False, True], reports
    assert "close the producer" in lines[0]


LOOPS = """
import asyncio, gc, sys
from tinymq import AsyncClient
async def main(count):
    mq = AsyncClient(sys.argv[1])
    producer = mq.producer(linger_ms=60_000)
    for i in range(count):
        await producer.send("t", b"%d" % i)
    return producer
kept = asyncio.run(main(7))
asyncio.run(main(3))
gc.collect()
"""


def test_records_of_an_ended_event_loop_are_counted(brokers: GrpcBrokers) -> None:
    running = script(LOOPS, brokers.servers[0])
    _, reports = running.communicate(timeout=60)
    assert running.returncode == 0
    assert "7 records were not acknowledged when the program ended" in reports
    assert "3 records were not acknowledged when the producer was dropped" in reports


def test_a_producer_that_nothing_refers_to_is_flushed_and_closed(brokers: GrpcBrokers) -> None:
    with Client(brokers.servers) as mq:
        producer = mq.producer(linger_ms=60_000)
        core = producer._async
        producer.send("t", b"dropped")
        del producer
        gc.collect()
        asyncio.run(until(lambda: stored(brokers) == 1))
        asyncio.run(until(lambda: core.closed and core.unfinished == 0))


def test_a_client_that_nothing_refers_to_ends_its_thread(brokers: GrpcBrokers) -> None:
    mq = Client(brokers.servers)
    mq.producer(linger_ms=60_000).send("t", b"dropped")
    thread = loop_thread_of(mq)._thread
    assert thread is not None
    del mq
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
    assert stored(brokers) == 1


def test_a_dropped_producer_reports_undelivered_records(brokers: GrpcBrokers, caplog: pytest.LogCaptureFixture) -> None:
    with Client(brokers.servers, attempt_timeout_ms=200) as mq:
        producer = mq.producer(delivery_timeout_ms=300)
        producer.send("t", b"0").result(20)
        stop_all(brokers)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            producer.send("t", b"1")
            del producer
            gc.collect()
            asyncio.run(until(lambda: caught))
    assert [record.levelno for record in caplog.records if "1 record was not" in record.message] == [logging.ERROR]
    assert issubclass(caught[0].category, ResourceWarning)


def test_a_dropped_client_whose_loop_has_ended_reports_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()
    cluster.add_topic("t")

    async def send() -> AsyncClient:
        mq = client_of(cluster)
        producer = mq.producer(linger_ms=60_000)
        for i in range(4):
            await producer.send("t", b"%d" % i)
        return mq

    def drop() -> None:
        asyncio.run(send())
        gc.collect()

    with pytest.warns(ResourceWarning, match="4 records were not acknowledged"):
        drop()
    gc.collect()
    assert len([record for record in caplog.records if "4 records" in record.message]) == 1


def test_a_report_of_no_records_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exit.report(0, "when the program ended")
    assert not caplog.records


class Stuck:
    """A producer whose close never ends, on a loop that runs in another thread."""

    closed = False
    close_s = 0.05
    unfinished = 9

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    async def close(self) -> None:
        await asyncio.Event().wait()


def test_exit_waits_no_longer_than_close_may_take(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exit, "LATE_S", 0.0)
    monkeypatch.setattr(exit, "_finished", False)
    loop, kept = asyncio.new_event_loop(), Any
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        kept = Stuck(loop)
        with exit._lock:
            before = list(exit._producers)
            exit._producers.clear()
        exit.enter(kept)
        with pytest.warns(ResourceWarning, match="9 records"):
            exit.finish()
    finally:
        exit.leave(kept)
        with exit._lock:
            for producer in before:
                exit._producers.add(producer)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert "9 records" in caplog.text

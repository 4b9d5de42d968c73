"""Take a scan in other threads than the client's own, over real gRPC."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.client.consume.test_reader import filled
from tests.client.grpc_brokers import GrpcBrokers
from tinymq import Client
from tinymq.base.errors import Closed, InvalidConfig, InvalidRequest, TinymqError, UnknownTopic
from tinymq.client.consume.records import TABLE_SCHEMA


@pytest.fixture(scope="module")
def brokers() -> Iterator[GrpcBrokers]:
    with GrpcBrokers(filled(batches=100, partitions=2)) as running:
        yield running


@pytest.fixture
def mq(brokers: GrpcBrokers) -> Iterator[Client]:
    with Client(brokers.servers, attempt_timeout_ms=500, request_timeout_ms=10_000) as client:
        yield client


@pytest.mark.parametrize("buffer_bytes_max", [1, 5_000, 32 << 20])
def test_batches_come_in_order_and_uncopied(mq: Client, buffer_bytes_max: int) -> None:
    small = {"fetch_bytes_max": 2_000, "buffer_bytes_max": buffer_bytes_max}
    with mq.scan("t", 1, 5, 995, replicas=((1, 3), (2,)), **small) as scan:
        found: list[int] = []
        for batch in scan:
            assert batch.schema.equals(TABLE_SCHEMA)
            found += batch.column("offset").to_pylist()
            assert scan.offset == found[-1] + 1
        assert found == list(range(5, 995))
        assert (scan.skipped, list(scan)) == (0, [])
    assert set(scan.served) <= {1, 3}
    assert len(list(mq.scan("t", 0, 0, 1000))) == 100, "one batch for each that is stored; a `with` block is not needed"


def test_threads_scan_side_by_side(mq: Client) -> None:
    rows = [0] * 8

    def read(number: int) -> None:
        with mq.scan("t", number % 2, 0, 1000, fetch_bytes_max=3_000, buffer_bytes_max=6_000) as scan:
            rows[number] = sum(batch.num_rows for batch in scan)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(len(rows))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert rows == [1000] * 8


def test_closing_the_client_wakes_a_waiting_scan(brokers: GrpcBrokers) -> None:
    client = Client(brokers.servers)
    scan = client.scan("t", 0, 1000, 1001, wait_ms=60_000)  # this offset does not exist yet
    ended: list[TinymqError] = []

    def wait() -> None:
        with pytest.raises(Closed) as raised:
            next(scan)
        ended.append(raised.value)

    scan.open()
    waiting = threading.Thread(target=wait)
    waiting.start()
    client.close()
    waiting.join(30)
    assert len(ended) == 1
    scan.close()


def test_wrong_arguments_are_refused_by_the_call(mq: Client) -> None:
    for wrong in ({"start": 5, "end": 4}, {"replicas": "leader"}):
        with pytest.raises(InvalidRequest):
            mq.scan(**{"topic": "t", "partition": 0, "start": 0, "end": 9, **wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="did you mean replica"):
        mq.scan("t", 0, 0, 5, replicaz="any")  # type: ignore[call-arg]
    with pytest.raises(UnknownTopic):
        next(mq.scan("nope", 0, 0, 5))


FORK = """
import os, sys
from tinymq import Client
from tinymq.base.errors import Closed
scan = Client(sys.argv[1]).scan("t", 0, 0, 1000, fetch_bytes_max=1_000, buffer_bytes_max=1)
next(scan)
child = os.fork()
if child == 0:
    try:
        for _ in scan:
            pass
    except Closed:
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sum(batch.num_rows for batch in scan))
"""


def test_a_scan_raises_closed_in_a_forked_child(brokers: GrpcBrokers) -> None:
    """Run in a process of its own, because other tests may have configured gRPC for forks in this one."""
    done = subprocess.run(
        [sys.executable, "-c", FORK, brokers.servers[0]], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["7", "990"], done.stderr

"""Connections grow old: with TLS they end in time, so that new certificates count, and nobody notices."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509 import load_pem_x509_certificate

from tests.tls.authorities import authority
from tinymq import Client
from tinymq.access.stream_age import Lifetime, lifetime_of
from tinymq.base.config import Timing
from tinymq.base.errors import LeaseLost, TinymqError
from tinymq.dev.certificates import Authority, write_issued
from tinymq.net.client_tls import ClientTls
from tinymq.net.tls_files import Paths, TlsFiles
from tinymq.net.tls_names import end_of
from tinymq.raft.net.transport import Channel
from tinymq.rpc.operator_calls.first_administrator import make_administrator
from tinymq.rpc.services.produce import ProduceStream
from tinymq.rpc.services.work import WorkStream
from tinymq.testing import Cluster
from tinymq.testing.cluster import SECRET

AGE_S = 3.0
LIVES = 2  # for so many ages the load goes on


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, security="required", timing=replace(Timing(), connection_age_s_max=AGE_S)) as made:
        yield made


class Load:
    """Runs jobs in threads until `stop`, and keeps their errors."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                while not self.stopped.is_set():
                    work()
            except BaseException as error:
                self.errors.append(error)
                self.stopped.set()

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def stop(self) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.join()


def streams(cluster: Cluster) -> set[int]:
    """The open connections of the stream ports, each by its identity."""
    ports = (app._ports for app in cluster.brokers.values())
    return {id(stream) for port in ports if port is not None and port.streams for stream in port.streams._streams}


def links(cluster: Cluster) -> dict[tuple[int, int, Channel], object]:
    """What each broker has dialled."""
    return {
        (here, peer, channel): dialer.connection
        for here, app in cluster.brokers.items()
        for (peer, channel), dialer in app._transport._dialers.items()  # type: ignore[union-attr]
        if dialer.connection is not None
    }


class Work:
    """What programs do: lone records, batches, batches without an answer, reading, and jobs."""

    def __init__(self, one: Client, other: Client) -> None:
        self.sent: list[bytes] = []  # and acknowledged
        self.silent: list[bytes] = []  # sent without an answer
        self.jobs: list[bytes] = []
        self.done: set[bytes | None] = set()
        self._numbers = itertools.count()
        self._one = one
        self._batched, self._silently = other.producer(), other.producer(acks="none")
        self._reader, self.worker = other.reader("old"), other.worker("jobs", group="workers")

    def begin(self, load: Load) -> None:
        self.worker.open()
        for job in (self._send, self._send_batch, self._send_silently, self._send_job, self.work):
            load.add(job)
        load.add(lambda: self._reader.poll(timeout=0.2))

    def end(self) -> None:
        self._silently.close()
        with suppress(LeaseLost):  # the machine may stand still for longer than a stream lives
            self.worker.flush()

    def _value(self) -> bytes:
        return b"%d" % next(self._numbers)

    def _send(self) -> None:
        value = self._value()
        self._one.send("old", value, key=b"k")
        self.sent.append(value)

    def _send_batch(self) -> None:
        values = [self._value() for _ in range(50)]
        for delivery in [self._batched.send("old", value) for value in values]:
            delivery.result()
        self.sent.extend(values)

    def _send_silently(self) -> None:
        value = self._value()
        self._silently.send("old", value).result()
        self.silent.append(value)

    def _send_job(self) -> None:
        value = self._value()
        self._one.send("jobs", value)
        self.jobs.append(value)

    def work(self, timeout_s: float = 0.2) -> None:
        for job in self.worker.poll(timeout_s):
            self.done.add(job.value)
            job.ack()


def values(mq: Client, topic: str) -> Counter[bytes]:
    return Counter(mq.frame(topic, ["value"]).to_arrow()["value"].to_pylist())


def lived(cluster: Cluster, load: Load, seen: set[int], until_s: float) -> bool:
    """Is a life over, and are there streams that were not there before?"""
    return load.stopped.is_set() or (time.monotonic() > until_s and bool(streams(cluster) - seen))


def test_old_connections_end_under_load_and_nobody_notices(cluster: Cluster) -> None:
    """Through several lives of every connection, those between brokers included."""
    load = Load()
    with cluster.client() as mq, cluster.client() as other:
        mq.admin.create_topic("old", 3, replication_factor=3)
        mq.admin.create_topic("jobs", 3, replication_factor=3)
        seen, dialled = cluster.call(lambda: streams(cluster)), cluster.call(lambda: links(cluster))
        work = Work(mq, other)
        work.begin(load)
        try:
            for _ in range(LIVES):
                cluster.wait_until(partial(lived, cluster, load, seen, time.monotonic() + AGE_S))
                seen = cluster.call(lambda: streams(cluster))
        finally:
            load.stop()
        assert load.errors == []
        work.end()
        cluster.wait_until(lambda: not any(links(cluster).get(key) is each for key, each in dialled.items()))
        while not work.done >= set(work.jobs):
            work.work(5.0)
        found = values(mq, "old")
        assert max(found.values()) == 1
        assert found.keys() >= set(work.sent)


def test_nothing_is_lost_on_streams_that_are_asked_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a record without an answer: nothing but the streams changes here, and each of them after a moment."""
    run = ProduceStream.run

    async def run_and_ask(stream: ProduceStream, arriving: Any) -> None:
        asyncio.get_running_loop().call_later(0.1, stream.announce_end)
        await run(stream, arriving)

    monkeypatch.setattr(ProduceStream, "run", run_and_ask)
    with Cluster(nodes=1) as cluster, cluster.client() as mq, cluster.client() as other:
        mq.admin.create_topic("old", 1)
        mq.admin.create_topic("jobs", 1)
        load, work = Load(), Work(mq, other)
        work.begin(load)
        cluster.wait_until(lambda: load.stopped.is_set() or len(work.silent) > 150)
        load.stop()
        assert load.errors == []
        sent = Counter([*work.sent, *work.silent])
        ends_s = time.monotonic() + 20.0
        while (found := values(mq, "old")) != sent and time.monotonic() < ends_s:
            pass  # what has no answer may still be on its way
        assert found == sent
        work.end()


def test_a_worker_that_is_asked_to_leave_its_stream_loses_no_job() -> None:
    """Again and again, with jobs in hand, jobs that are about to begin, and settlements without an answer yet."""
    count = 300
    with Cluster(nodes=1) as cluster, cluster.client() as mq:
        mq.admin.create_topic("jobs", 1)
        for number in range(count):
            mq.send("jobs", b"%d" % number)
        gate = cluster.brokers[1].gate

        def ask() -> None:
            for guard in list(gate._guards):
                stream = getattr(guard.refused, "__self__", None)
                if isinstance(stream, WorkStream):
                    stream.announce_end()

        done: list[bytes | None] = []
        with mq.worker("jobs", group="workers", prefetch_records=40) as worker:
            while len(done) < count:
                jobs = worker.poll(10.0, 7)
                cluster.call(ask)
                for job in jobs:
                    done.append(job.value)
                    job.ack()
            worker.flush()  # raises LeaseLost if one was lost
        assert sorted(map(int, done)) == list(range(count))  # type: ignore[arg-type]


def ending_in(seconds: float) -> datetime:
    """When a certificate for one day begins that ends in so many seconds."""
    return datetime.now(UTC) - timedelta(days=1) + timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def certified() -> Iterator[Cluster]:
    """A cluster whose clients are known by their certificates, and whose callers are checked."""
    with Cluster(nodes=1, security="required", client_certificates=True) as cluster:
        root = cluster.certificates.place / "root"
        mine = Authority.read(cluster.certificates.authority.parent)
        write_issued(root, mine.pem, mine.user("root"))
        asyncio.run(make_administrator(cluster.addresses, SECRET, "root", 20.0, ClientTls(TlsFiles(Paths.of(root)))))
        with cluster.client(tls_dir=root) as mq:
            mq.admin.create_topic("orders", 1)
            mq.access.create_user("alice")
            mq.access.grant("alice", "read", "topic:*")
            mq.access.grant("alice", "write", "topic:*")
            mq.access.switch(True)
        cluster.wait_until(lambda: all(app.gate.on and not app.gate.deaf for app in cluster.brokers.values()))
        yield cluster


def test_a_new_certificate_replaces_one_that_ends_and_nobody_notices(certified: Cluster, tmp_path: Path) -> None:
    mine = Authority.read(certified.certificates.authority.parent)
    ends_s = time.monotonic() + 4.0
    write_issued(tmp_path, mine.pem, mine.user("alice", days=1, now=lambda: ending_in(4.0)))
    with certified.client(tls_dir=tmp_path) as mq, mq.producer() as producer, mq.reader("orders") as reader:
        load = Load()
        load.add(lambda: producer.send("orders", b"x").result())
        load.add(lambda: mq.send("orders", b"y"))
        load.add(lambda: reader.poll(timeout=0.2))
        certified.wait_until(lambda: len(streams(certified)) >= 3)
        write_issued(tmp_path, mine.pem, mine.user("alice"))
        certified.wait_until(lambda: load.stopped.is_set() or time.monotonic() > ends_s + 3.0)
        load.stop()
        assert load.errors == []


def test_streams_end_with_their_certificate_and_the_refusal_says_since_when(certified: Cluster, tmp_path: Path) -> None:
    mine = Authority.read(certified.certificates.authority.parent)
    write_issued(tmp_path, mine.pem, mine.user("alice", days=1, now=lambda: ending_in(2.5)))
    with certified.client(tls_dir=tmp_path, request_timeout_ms=5_000) as mq:
        mq.send("orders", b"x")
        load = Load()
        load.add(lambda: mq.send("orders", b"x"))
        certified.wait_until(lambda: bool(load.errors), 20.0)
        load.stop()
        certified.wait_until(lambda: not streams(certified), 10.0)
    with Client(certified.servers, tls_dir=tmp_path, connect_timeout_ms=300) as mq, pytest.raises(TinymqError) as error:
        mq.admin.list_topics()
    assert "this side's certificate has expired on 20" in error.value.message
    assert "replace the files in the client's tls_dir" in error.value.message


def test_dates_are_read_as_others_read_them() -> None:
    for days in (1, 365, 36_500):  # with two digits of the year, and with four
        issued = authority().user("alice", days=days)
        assert end_of(issued.certificate) == load_pem_x509_certificate(issued.certificate).not_valid_after_utc
    assert end_of(b"") is None
    assert end_of(issued.key) is None
    for cut in range(30, len(issued.certificate), 97):
        end_of(issued.certificate[:cut] + b"\n-----END CERTIFICATE-----")  # raises nothing


@pytest.mark.parametrize(
    ("age_s", "left_s", "notice_s", "end_s"),
    [
        (math.inf, math.inf, math.inf, math.inf),
        (3600.0, math.inf, 3240.0, 3600.0),  # a tenth is for what is under way
        (3600.0, 7200.0, 3240.0, 3600.0),
        (3600.0, 600.0, 570.0, 602.0),  # asked 30 s before, and ended a moment after the end of the proof
        (math.inf, 600.0, 570.0, 602.0),
        (math.inf, 20.0, 10.0, 22.0),
        (math.inf, 1.0, math.inf, 3.0),  # too late to ask
        (2.0, math.inf, 1.0, 2.0),
    ],
)
def test_a_life_ends_with_the_age_or_the_proof(age_s: float, left_s: float, notice_s: float, end_s: float) -> None:
    assert lifetime_of(age_s, left_s, 0.0) == Lifetime(notice_s, end_s)


def test_lives_that_began_together_do_not_end_together() -> None:
    assert lifetime_of(3600.0, math.inf, 1.0).notice_s == pytest.approx(0.8 * 3240.0)

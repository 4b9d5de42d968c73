"""A sending thread is interrupted at any point and continues: no accepted record is lost, late or out of order."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.grpc_brokers import GrpcBrokers
from tests.client.interrupts import Interrupts
from tests.client.produce.test_appending_threads import producer_of
from tests.client.produce.test_batcher import Bench, rows
from tinymq import Client
from tinymq.base.errors import DeadlineExceeded
from tinymq.client.facade import producer as facade_producer
from tinymq.client.produce import (
    batcher,
    buffer_pool,
    delivery,
    producer_batch,
    queue_owners,
    send_queue,
    topic_buffers,
    whole_batches,
)
from tinymq.client.produce.batcher import UNFINISHED_S
from tinymq.client.produce.delivery import Delivery
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.send_queue import SendQueue
from tinymq.format import batch
from tinymq.format.batch import SCHEMA

MODULES = (
    facade_producer, batch, batcher, delivery, producer_batch, send_queue, queue_owners, buffer_pool, topic_buffers,
    whole_batches,
)  # fmt: skip
Taken = dict[bytes, tuple[ProducerBatch, int]]  # by value


class Loop:
    """The client's loop: it looks when it is woken, and when its timer ends."""

    def __init__(self, bench: Bench) -> None:
        self.looked: set[SendQueue] = set()  # the send queues that it has looked at
        self._bench = bench
        self._next_s: float | None = None

    def run(self, *, until_idle: bool = False) -> None:
        while self._bench.wakes or (until_idle and self._next_s is not None):
            if self._bench.wakes:
                self._bench.wakes = 0
                self.looked |= set(self._bench.batcher.woken())
            elif self._next_s is not None:
                self._bench.clock.advance(max(0.0, self._next_s - self._bench.clock.monotonic()))
            self.look()

    def look(self, *, all_open: bool = False) -> None:
        queues, self._next_s = self._bench.batcher.seal_due(self._bench.clock.monotonic(), all_open=all_open)
        self.looked |= set(queues)


def one_by_one(bench: Bench, number: int) -> Taken:
    value = b"value-%d" % number
    taken = bench.batcher.append("t", value, b"key-%d" % number, {"n": b"%d" % number} if number % 3 else None, None, 0)
    assert taken is not None
    return {value: (taken._batch, taken._row)}


def plainly(bench: Bench, number: int) -> Taken:
    """Send as a program does: nearly all records join an open batch."""
    value = b"value-%d" % number
    taken = producer_of(bench).send("t", value, key=b"key-%d" % number)
    return {value: (taken._batch, taken._row)}


def tables(bench: Bench, number: int) -> Taken:
    """Append a record batch behind a record, whose open batch it has to seal."""
    taken = one_by_one(bench, 100 + number)
    value = b"value-%d" % number
    headers = [{"key": "n", "value": b"%d" % number}] if number % 3 else None
    row = {"key": b"key-%d" % number, "value": value, "headers": headers, "timestamp": 1}
    part = bench.whole_batches.append_table(bench.buffer, 0, pa.RecordBatch.from_pylist([row], SCHEMA))
    assert part is not None
    return {**taken, value: (part, 0)}


def delayed(bench: Bench, number: int) -> Taken:
    """Send a delayed record beside an open batch."""
    taken = one_by_one(bench, 100 + number)
    value, headers = b"value-%d" % number, {"n": b"%d" % number} if number % 3 else None
    stored = producer_of(bench).send("t", value, key=b"key-%d" % number, headers=headers, partition=0, delay=1)
    return {**taken, value: (stored._batch, stored._row)}


@pytest.mark.parametrize("eager", [True, False], ids=["the loop is quick", "the loop is slow"])
@pytest.mark.parametrize(
    ("send", "count"),
    [
        pytest.param(one_by_one, 12, id="one by one"),  # some fill a batch
        pytest.param(plainly, 12, id="plainly"),
        pytest.param(tables, 4, id="tables"),  # each fills one, and ends another
        pytest.param(delayed, 4, id="delayed"),  # each fills one, beside an open one
    ],
)
def test_an_interrupt_anywhere_mixes_up_nothing(send: Callable[[Bench, int], Taken], count: int, eager: bool) -> None:
    """Interrupt each send at each place. Only the interrupted send is traced, because tracing is slow."""
    places = 0
    for interrupted in range(count):
        for place in itertools.count(1):
            interrupts = Interrupts(place, *MODULES)
            check_interrupted(send, count, interrupted, interrupts, eager)
            if interrupts.where is None:
                break
        places += place
    assert places > 60, "it went through all of it"


def check_interrupted(
    send: Callable[[Bench, int], Taken], count: int, interrupted: int, interrupts: Interrupts, eager: bool
) -> None:
    """Send all records, one of them under interrupts, let the loop finish, and check everything."""
    bench = Bench(partitions=1, batch_bytes_max=250, linger_ms=5)
    loop, taken, known = Loop(bench), Taken(), sys.gettrace()
    for number in range(count):
        try:
            if number == interrupted:
                sys.settrace(interrupts.trace)
            found = send(bench, number)
            sys.settrace(known)
            taken.update(found)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(known)
        if eager:
            loop.run()
    loop.run()
    loop.look(all_open=True)  # as flush does
    loop.run(until_idle=True)
    where = f"send {interrupted} interrupted at {interrupts.where}"
    check(bench, loop, taken, where, has_headers=send is not plainly)


def check(bench: Bench, loop: Loop, taken: Taken, where: str, *, has_headers: bool) -> None:
    """Check that every accepted record is queued once and unchanged, that the loop looks, and that the pool counts."""
    (queue,) = [queue for queue in bench.buffer.queues if queue.sealed]
    assert queue in loop.looked, where
    seen: dict[bytes, tuple[ProducerBatch, int]] = {}
    for pending in queue.sealed:
        assert pending.message is not None, where
        for row, (key, value, headers, _) in enumerate(rows(pending)):
            assert isinstance(value, bytes)
            number = value.removeprefix(b"value-")
            named = (("n", number),) if has_headers and int(number) % 3 else ()
            assert (key, headers) == (b"key-" + number, named), where
            assert value not in seen, where
            seen[value] = pending, row
        assert row + 1 == pending.count, where
    assert taken.items() <= seen.items(), where
    assert bench.batcher.pool.taken_bytes == sum(pending.bytes for pending in queue.sealed), where
    assert queue.open is None, where


def test_the_loop_encodes_for_a_thread_interrupted_while_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records behind it are delivered at once, too."""
    calls, encode = itertools.count(1), producer_batch.encode

    def interrupted(*args: object) -> pa.Buffer:
        if threading.current_thread() is threading.main_thread() and next(calls) == 3:
            raise KeyboardInterrupt
        return encode(*args)  # type: ignore[arg-type]

    cluster = FakeCluster()
    cluster.add_topic("t", 1)
    monkeypatch.setattr(producer_batch, "encode", interrupted)
    with (
        GrpcBrokers(cluster) as brokers,
        Client(brokers.servers) as mq,
        mq.producer(batch_bytes_max=20_000) as producer,
    ):
        sent: list[Delivery] = []
        taken: list[bytes] = []
        for number in range(20_000):
            value = b"%d" % number
            try:
                sent.append(producer.send("t", value))
                taken.append(value)
            except KeyboardInterrupt:
                pass
        assert len(taken) < 20_000, "it was interrupted"
        producer.flush(timeout=30)
        assert all(each.done() for each in sent)
        values = cluster.values("t", 0)
        assert [values[each.result().offset] for each in sent] == taken


def test_a_batch_that_cannot_be_encoded_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = producer_batch.encode

    def refuses(keys: object, values: list[bytes], *rest: object) -> pa.Buffer:
        if b"bad" in values:
            raise MemoryError
        return encode(keys, values, *rest)  # type: ignore[arg-type]

    cluster = FakeCluster()
    cluster.add_topic("t", 1)
    monkeypatch.setattr(producer_batch, "encode", refuses)
    with GrpcBrokers(cluster) as brokers, Client(brokers.servers) as mq:
        with mq.producer(delivery_timeout_ms=1000) as producer:
            bad = producer.send("t", b"bad")
            assert isinstance(bad.exception(30), DeadlineExceeded)
            assert producer.send("t", b"good").result(30).offset == 0
        assert cluster.values("t", 0) == [b"good"]


def test_the_loop_leaves_a_batch_to_its_thread_for_a_while() -> None:
    bench = Bench()
    pending = bench.append()
    with bench.batcher.lock:
        bench.batcher._seal(pending.queue)
    queues, next_s = bench.batcher.seal_due(bench.clock.monotonic())
    assert (queues, next_s, pending.message) == ([], pytest.approx(bench.clock.monotonic() + UNFINISHED_S), None)
    bench.clock.advance(UNFINISHED_S)
    assert bench.batcher.seal_due(bench.clock.monotonic()) == ([pending.queue], None)
    assert pending.message is not None

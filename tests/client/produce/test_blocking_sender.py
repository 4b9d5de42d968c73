"""Threads deliver lone records over real sockets. The loop takes over after anything but an acknowledgement."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.grpc_brokers import GrpcBrokers
from tests.client.interrupts import Interrupts, contained
from tests.fakes.raw_client import until
from tinymq import Client, Offset, RecordMetadata
from tinymq.base.errors import BatchTooLarge, Closed, NotDelivered, OutcomeUnknown, QuotaExceeded, TinymqError
from tinymq.client.net.broker_streams import BrokerProduceStream
from tinymq.client.produce import batcher, blocking_sender, delivery, producer_batch, queue_owners, send_queue, sender
from tinymq.client.produce.batcher import Batcher
from tinymq.client.produce.blocking_sender import LONE_SENDS_MIN, BlockingSender
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.queue_owners import QueueOwners
from tinymq.client.produce.send_queue import QueueOwner, SendQueue
from tinymq.client.produce.sender import Sender
from tinymq.net import frame_socket
from tinymq.net.frame_socket import FrameSocket

INTERRUPTED = (batcher, delivery, producer_batch, blocking_sender, frame_socket, send_queue, queue_owners, sender)


@pytest.fixture(autouse=True)
def reopen_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect again soon after a lost connection, which most of these tests have."""
    monkeypatch.setattr(blocking_sender, "REOPEN_S", 0.02)


@pytest.fixture
def brokers() -> Iterator[GrpcBrokers]:
    with GrpcBrokers(FakeCluster(), framed=True) as running:
        running.cluster.add_topic("t", 3)
        yield running


@pytest.fixture
def mq(brokers: GrpcBrokers) -> Iterator[Client]:
    with Client(brokers.servers, attempt_timeout_ms=1000, request_timeout_ms=10_000) as client:
        yield client


def wait_until(holds: Callable[[], object]) -> None:
    asyncio.run(until(holds))


class Ways:
    """Counts the batches that the loop and the threads send."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_loop = self.by_thread = 0
        submit, send = BrokerProduceStream.submit, FrameSocket.send

        def submitted(*args: Any) -> None:
            self.by_loop += 1
            submit(*args)

        def sent(*args: Any) -> None:
            self.by_thread += 1
            send(*args)

        monkeypatch.setattr(BrokerProduceStream, "submit", submitted)
        monkeypatch.setattr(FrameSocket, "send", sent)

    def taken(self) -> tuple[int, int]:
        """Return the batches since the last call: (sent by the loop, sent by threads)."""
        both, self.by_loop, self.by_thread = (self.by_loop, self.by_thread), 0, 0
        return both


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    return Ways(monkeypatch)


def connected(mq: Client, ways: Ways, partition: int = 0) -> None:
    """Send records until the thread delivers one itself."""

    def sent() -> bool:
        mq.send("t", b"before", partition=partition)
        return ways.taken() == (0, 1)

    wait_until(sent)


def batcher_of(mq: Client) -> Batcher:
    assert mq._direct is not None
    return mq._direct._batcher


def later(call: Callable[[], Any]) -> Future[Any]:
    """Run a call in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    done = pool.submit(call)
    pool.shutdown(wait=False)
    return done


def test_a_lone_record_is_delivered_by_its_thread(mq: Client, brokers: GrpcBrokers, ways: Ways) -> None:
    for n in range(LONE_SENDS_MIN):
        mq.send("t", b"%d" % n, partition=0)
    assert ways.taken() == (LONE_SENDS_MIN, 0), "who sends little needs no connection for that"
    connected(mq, ways)
    before = len(brokers.cluster.values("t", 0))
    for n in range(20):
        meta = mq.send("t", b"%d" % n, key=b"k", headers={"h": "v"}, timestamp=5, partition=0)
        assert (meta.partition, meta.offset, meta.duplicate) == (0, before + n, False)
    assert ways.taken() == (0, 20)
    (last,) = mq.reader("t", [0], start=Offset(before + 19), end="latest")
    assert (last.key, last.value, last.headers, last.timestamp_us) == (b"k", b"19", (("h", b"v"),), 5)
    assert batcher_of(mq).pool.taken_bytes == 0


def test_each_leader_has_a_connection(mq: Client, brokers: GrpcBrokers, ways: Ways) -> None:
    for partition in range(3):
        connected(mq, ways, partition)
    for n in range(30):
        mq.send("t", b"%d" % n)
    assert ways.taken() == (0, 30)
    assert all(brokers.cluster.values("t", p)[-1] != b"before" for p in range(3)), "without a key they take turns"


def test_others_join_behind_a_lone_record(mq: Client, brokers: GrpcBrokers, ways: Ways) -> None:
    connected(mq, ways)
    brokers.cluster.hold = held = asyncio.Event()
    first = later(lambda: mq.send("t", b"first", partition=0))
    wait_until(lambda: ways.by_thread == 1)
    others = [later(lambda n=n: mq.send("t", b"%d" % n, partition=0)) for n in range(5)]
    queue = next(queue for queue in batcher_of(mq).buffers.queues.values() if queue.partition == 0)
    wait_until(lambda: queue.open is not None and queue.open.count == 5)
    assert queue.owner is QueueOwner.THREAD
    brokers.run(_set(held))
    offsets = [first.result(10).offset, *sorted(other.result(10).offset for other in others)]
    assert offsets == list(range(offsets[0], offsets[0] + 6))
    assert brokers.cluster.values("t", 0)[-6] == b"first"
    assert ways.taken() == (1, 1), "five in one batch"


async def _set(event: asyncio.Event) -> None:
    event.set()


@pytest.mark.parametrize("lost", ["lose_replies", "lose_requests"])
def test_a_batch_lost_with_its_connection_is_written_once(
    mq: Client, brokers: GrpcBrokers, ways: Ways, lost: str
) -> None:
    connected(mq, ways)
    before = len(brokers.cluster.values("t", 0))
    setattr(brokers.cluster, lost, 1)
    meta = mq.send("t", b"x", partition=0)
    assert (meta.offset, meta.duplicate) == (before, lost == "lose_replies")
    assert ways.taken() == (1, 1), "the thread once, and then the loop"
    assert brokers.cluster.values("t", 0)[before:] == [b"x"]
    connected(mq, ways)


def test_the_checker_notices_a_number_that_is_not_kept(
    mq: Client, brokers: GrpcBrokers, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgets(self: BlockingSender, batch: ProducerBatch, outcome: object, broken: str = "") -> None:
        queue = batch.queue
        queue.acknowledged(batch)  # its sequence counts as written, so the next attempt has another one
        queue.sealed.append(batch)
        self._leave(batch)

    connected(mq, ways)
    before = len(brokers.cluster.values("t", 0))
    monkeypatch.setattr(BlockingSender, "_pass_on", forgets)
    brokers.cluster.lose_replies = 1
    mq.send("t", b"x", partition=0)
    assert brokers.cluster.values("t", 0)[before:] == [b"x", b"x"]


def test_a_leader_that_has_moved(mq: Client, brokers: GrpcBrokers, ways: Ways) -> None:
    connected(mq, ways)
    brokers.cluster.move("t", 0, 2)
    before = len(brokers.cluster.values("t", 0))
    assert mq.send("t", b"x", partition=0).offset == before
    by_loop, _ = ways.taken()  # the thread tried first, unless a refresh had already named the new leader
    assert by_loop == 1
    connected(mq, ways)
    brokers.stop(2)
    assert mq.send("t", b"y", partition=0).offset == len(brokers.cluster.values("t", 0)) - 1
    assert brokers.cluster.values("t", 0).count(b"y") == 1


def test_a_silent_leader_is_left_once_another_broker_leads(brokers: GrpcBrokers, ways: Ways) -> None:
    with Client(brokers.servers, attempt_timeout_ms=300_000, request_timeout_ms=300_000) as mq:
        connected(mq, ways)
        brokers.cluster.hang(1)
        sent = later(lambda: mq.send("t", b"x", partition=0)).result(60)  # an attempt would take minutes
        assert sent.offset == len(brokers.cluster.values("t", 0)) - 1
        assert brokers.cluster.values("t", 0).count(b"x") == 1


def test_what_a_broker_refuses(mq: Client, brokers: GrpcBrokers, ways: Ways) -> None:
    connected(mq, ways)
    before = len(brokers.cluster.values("t", 0))
    brokers.cluster.refusals.append(BatchTooLarge("never"))
    with pytest.raises(BatchTooLarge, match="never"):
        mq.send("t", b"x", partition=0)
    assert ways.taken() == (0, 1)
    assert mq.send("t", b"y", partition=0).offset == before
    brokers.cluster.refusals.append(QuotaExceeded("over it", retry_after_ms=10))
    ways.taken()
    assert mq.send("t", b"z", partition=0).offset == before + 1
    assert ways.taken() == (1, 1)
    assert batcher_of(mq).pool.taken_bytes == 0


def test_an_unknown_outcome_at_the_deadline(brokers: GrpcBrokers, ways: Ways) -> None:
    with Client(brokers.servers, attempt_timeout_ms=300, request_timeout_ms=2000) as mq:
        connected(mq, ways)
        for broker in brokers.cluster.nodes:
            brokers.cluster.hang(broker, elect=False)
        with pytest.raises(OutcomeUnknown):
            mq.send("t", b"x", partition=0)
        for broker in brokers.cluster.nodes:
            brokers.cluster.start(broker)
        mq.send("t", b"y", partition=0)
        values = brokers.cluster.values("t", 0)
        assert values.count(b"y") == 1
        connected(mq, ways)


def test_an_interrupted_send_goes_on(
    mq: Client, brokers: GrpcBrokers, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected(mq, ways)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FrameSocket, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mq.send("t", b"sent", partition=0)
    wait_until(lambda: batcher_of(mq).pool.taken_bytes == 0)
    assert brokers.cluster.values("t", 0)[-1] == b"sent"
    with monkeypatch.context() as patch:
        patch.setattr(ProducerBatch, "encode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mq.send("t", b"not sent", partition=0)
    assert batcher_of(mq).pool.taken_bytes == 0
    mq.send("t", b"after", partition=0)
    assert brokers.cluster.values("t", 0)[-2:] == [b"sent", b"after"]
    connected(mq, ways)


def test_interrupted_anywhere_nothing_is_lost_and_nothing_hangs(
    mq: Client, brokers: GrpcBrokers, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_sender, "REOPEN_S", 0.0)
    connected(mq, ways)
    for number in itertools.count(1):
        interrupts = Interrupts(number, *INTERRUPTED)
        known = sys.gettrace()
        try:
            sys.settrace(interrupts.trace)
            contained(lambda value=b"first %d" % number: mq.send("t", value, partition=0))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(known)
        assert sys.exc_info() == (None, None, None), "what is handled here shows in the errors of other tests"
        second = b"second %d" % number
        meta = later(lambda value=second: mq.send("t", value, partition=0)).result(30)
        assert not meta.duplicate, interrupts.where
        assert brokers.cluster.values("t", 0)[meta.offset] == second, interrupts.where
        wait_until(lambda: batcher_of(mq).pool.taken_bytes == 0)
        if interrupts.where is None:
            break
        connected(mq, ways)
    assert number > 60, "it went through all of it"
    values = brokers.cluster.values("t", 0)
    assert max(values.count(b"first %d" % n) for n in range(1, number + 1)) == 1


def test_a_send_within_a_send(mq: Client, brokers: GrpcBrokers, ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler sends, such as the one of a program that logs its end."""
    connected(mq, ways)
    inner: list[RecordMetadata] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: inner.append(mq.send("t", b"inner", partition=0)))
    receive = FrameSocket.receive

    def interrupted(stream: FrameSocket, timeout_s: float) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return receive(stream, timeout_s)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(FrameSocket, "receive", interrupted)
            outer = mq.send("t", b"outer", partition=0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ways.taken() == (1, 1), "the outer one by its thread, and once"
    values = brokers.cluster.values("t", 0)
    assert (values[outer.offset], values[inner[0].offset]) == (b"outer", b"inner")
    assert (values.count(b"outer"), values.count(b"inner")) == (1, 1)
    connected(mq, ways)


@pytest.mark.parametrize("connected_still", [True, False])
def test_a_client_that_is_closed_before_a_slow_thread_sends(
    brokers: GrpcBrokers, ways: Ways, monkeypatch: pytest.MonkeyPatch, connected_still: bool
) -> None:
    mq = Client(brokers.servers, request_timeout_ms=1000)
    connected(mq, ways)
    assert mq._direct is not None
    if not connected_still:
        mq._direct._streams.popitem()[1].close()
    closed, encode = threading.Event(), ProducerBatch.encode

    def slow(self: ProducerBatch, codec: Any) -> None:
        if threading.current_thread() is not threading.main_thread() and self.count == 1:
            closed.wait(30)
        encode(self, codec)

    monkeypatch.setattr(ProducerBatch, "encode", slow)
    sending = later(lambda: mq.send("t", b"late", partition=0))
    wait_until(lambda: any(queue.owner is QueueOwner.THREAD for queue in batcher_of(mq).buffers.queues.values()))
    mq.close()
    closed.set()
    assert isinstance(sending.exception(30), Closed)
    assert b"late" not in brokers.cluster.values("t", 0)


def test_a_client_that_is_closed_while_a_slow_thread_leaves_its_record_to_it(
    brokers: GrpcBrokers, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread gives the queue back right after `close` found that the thread owns it."""
    mq = Client(brokers.servers, request_timeout_ms=1000)
    connected(mq, ways)
    assert mq._direct is not None
    mq._direct._streams.popitem()[1].close()
    late, leave, left = threading.Event(), threading.Event(), threading.Event()
    encode, flush, take, pass_on = ProducerBatch.encode, Sender.flush, QueueOwners.take, QueueOwners.pass_on

    def slow(self: ProducerBatch, codec: Any) -> None:
        if threading.current_thread() is not threading.main_thread() and self.count == 1:
            leave.wait(30)
        encode(self, codec)

    async def flushed(self: Sender, timeout_s: float | None) -> None:
        try:
            await flush(self, timeout_s)
        except TimeoutError:
            late.set()
            raise

    def taken(self: QueueOwners, queue: SendQueue, owner: QueueOwner = QueueOwner.LOOP) -> bool:
        took = take(self, queue, owner)
        if late.is_set() and not took:
            leave.set()
            assert left.wait(30)
        return took

    def passed_on(self: QueueOwners, *how: Any) -> bool:
        told = pass_on(self, *how)
        left.set()
        return told

    monkeypatch.setattr(ProducerBatch, "encode", slow)
    monkeypatch.setattr(Sender, "flush", flushed)
    monkeypatch.setattr(QueueOwners, "take", taken)
    monkeypatch.setattr(QueueOwners, "pass_on", passed_on)
    sending = later(lambda: mq.send("t", b"late", partition=0))
    wait_until(lambda: any(queue.owner is QueueOwner.THREAD for queue in batcher_of(mq).buffers.queues.values()))
    mq.close()
    assert isinstance(sending.exception(30), Closed)
    assert b"late" not in brokers.cluster.values("t", 0)


def test_one_thread_owns_a_send_queue() -> None:
    first, second = (SendQueue("t", b"i", n, limit=1, numbered=True) for n in range(2))
    of = QueueOwners(threading.Lock())
    batch = ProducerBatch(first, 0.0, 1.0)
    assert of.may_claim(first)
    of.claim(batch)
    assert (of.claimed(), of.may_claim(first), of.may_claim(second)) == (batch, False, False)
    assert later(of.claimed).result() is None, "another thread"
    assert (of.take(first), of.take(second)) == (False, True)
    assert not of.pass_on(first, QueueOwner.NOBODY, lambda: False)
    assert (of.claimed(), of.may_claim(first), of.may_claim(second)) == (None, True, False)


def test_a_flush_includes_a_batch_that_is_being_taken() -> None:
    taken = SendQueue("t", b"i", 0, limit=5, numbered=True)

    class Sealed(deque[ProducerBatch]):
        def popleft(self) -> ProducerBatch:
            assert taken.in_flight == (self[0],), "it is in one of the two, or in both"
            return super().popleft()

    batch = ProducerBatch(taken, 0.0, 1.0)
    batch.message, batch.count = pa.py_buffer(b""), 1
    taken.sealed = Sealed([batch])
    assert taken.take(0.0) is batch


def test_closing_waits_for_a_lone_record(mq: Client, brokers: GrpcBrokers, ways: Ways) -> None:
    connected(mq, ways)
    brokers.cluster.hold = held = asyncio.Event()
    sending = later(lambda: mq.send("t", b"x", partition=0))
    wait_until(lambda: ways.by_thread == 1)
    closing = later(mq.close)
    wait_until(lambda: batcher_of(mq)._closed)
    assert not closing.done()
    brokers.run(_set(held))
    closing.result(10)
    assert sending.result(10).offset == len(brokers.cluster.values("t", 0)) - 1


def test_closing_does_not_wait_for_ever(brokers: GrpcBrokers, ways: Ways) -> None:
    mq = Client(brokers.servers, attempt_timeout_ms=60_000, request_timeout_ms=1000)
    connected(mq, ways)
    brokers.cluster.hang(1, elect=False)
    sending = later(lambda: mq.send("t", b"x", partition=0))
    wait_until(lambda: ways.by_thread == 1)
    with contextlib.suppress(NotDelivered):  # the loop may have just taken the queue back
        mq.close()
    assert isinstance(sending.exception(10), OutcomeUnknown)


def test_a_connection_that_was_lost_meanwhile_is_not_used(mq: Client, brokers: GrpcBrokers, ways: Ways) -> None:
    connected(mq, ways)
    assert mq._direct is not None
    (stream,) = mq._direct._streams.values()

    async def break_off() -> None:
        brokers.cluster.break_streams(1)

    brokers.run(break_off())
    wait_until(lambda: not stream.quiet)
    assert not mq.send("t", b"x", partition=0).duplicate
    assert ways.taken()[1] == 0, "nothing was sent on it"
    connected(mq, ways)


def test_connections_end_with_their_client_and_with_their_broker(brokers: GrpcBrokers, ways: Ways) -> None:
    with Client(brokers.servers, metadata_max_age_ms=100) as mq:
        for partition in range(3):
            connected(mq, ways, partition)
        assert mq._direct is not None
        streams = dict(mq._direct._streams)
        assert len(streams) == 3
        left = brokers.cluster.addresses[3]
        brokers.cluster.elect_away_from(3)
        brokers.cluster.nodes = range(1, 3)
        wait_until(lambda: streams[left]._sock.fileno() < 0)
        assert [address for address, stream in streams.items() if stream._sock.fileno() < 0] == [left]
    assert all(stream._sock.fileno() < 0 for stream in streams.values())


def test_no_connection_where_there_is_no_port(ways: Ways) -> None:
    with GrpcBrokers(FakeCluster()) as brokers, Client(brokers.servers) as mq:
        brokers.cluster.add_topic("t")
        for n in range(2 * LONE_SENDS_MIN):
            mq.send("t", b"%d" % n)
        assert ways.taken() == (2 * LONE_SENDS_MIN, 0)


def test_a_callback_cannot_wait_for_its_own_loop(mq: Client, brokers: GrpcBrokers) -> None:
    caught: Future[BaseException | None] = Future()

    def call(_: object) -> None:
        try:
            mq.send("t", b"y")
        except RuntimeError as error:
            caught.set_result(error)

    brokers.cluster.hold = held = asyncio.Event()
    with mq.producer(linger_ms=0) as producer:
        producer.send("t", b"x").add_done_callback(call)  # not called at once, in this thread
        brokers.run(_set(held))
        assert "callback" in str(caught.result(20))


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 6))])
def test_whatever_happens(seed: int) -> None:
    """Two threads send in turn, and sometimes at once, while brokers break connections, lose answers and elect."""
    rng = random.Random(seed)
    with GrpcBrokers(FakeCluster(), framed=True) as brokers:
        cluster = brokers.cluster
        cluster.add_topic("t", 2)
        sent: dict[int, list[tuple[int, RecordMetadata | TinymqError]]] = {1: [], 2: []}

        async def disturb() -> None:
            match rng.randrange(5):
                case 0:
                    cluster.lose_replies += 1
                case 1:
                    cluster.lose_requests += 1
                case 2:
                    cluster.move("t", rng.randrange(2), rng.choice(list(cluster.nodes)))
                case _:
                    cluster.break_streams(rng.choice(list(cluster.nodes)))

        def run(mq: Client, me: int, count: int) -> None:
            for n in range(count):
                try:
                    sent[me].append((n, mq.send("t", b"%d %d" % (me, n), key=b"%d" % me)))
                except TinymqError as error:
                    sent[me].append((n, error))
                if me == 1 and n % 7 == 0:
                    brokers.run(disturb())

        with Client(brokers.servers, attempt_timeout_ms=500, request_timeout_ms=20_000) as mq:
            second = threading.Thread(target=run, args=(mq, 2, 60))
            second.start()
            run(mq, 1, 120)
            second.join()
        written = [value for p in range(2) for value in cluster.values("t", p)]
        assert len(set(written)) == len(written), "written twice"
        for me, results in sent.items():
            assert not [error for _, error in results if isinstance(error, TinymqError)]
            mine = [value for value in written if value.startswith(b"%d " % me)]
            assert mine == [b"%d %d" % (me, n) for n, _ in results], "in order, each one"
            for n, meta in results:
                assert isinstance(meta, RecordMetadata)
                assert cluster.values("t", meta.partition)[meta.offset] == b"%d %d" % (me, n)

"""The synchronous client over real gRPC: from any thread, and before and after a fork."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pytest

import tinymq
from tests.client.fake_cluster import FakeCluster
from tests.client.grpc_brokers import GrpcBrokers
from tinymq import Client, Delivery, NotDelivered, Offset
from tinymq.base.errors import BatchTooLarge, Closed, InvalidConfig, UnknownTopic
from tinymq.client.facade.client import loop_thread_of
from tinymq.client.produce.producer_batch import acquired, locked

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def brokers() -> Iterator[GrpcBrokers]:
    with GrpcBrokers(FakeCluster()) as running:
        running.cluster.add_topic("t", 3)
        yield running


@pytest.fixture
def mq(brokers: GrpcBrokers) -> Iterator[Client]:
    with Client(brokers.servers, attempt_timeout_ms=500, request_timeout_ms=10_000) as client:
        yield client


def test_topics_records_and_tables_in_one_program(mq: Client) -> None:
    mq.admin.create_topic("orders", partitions=6, replication_factor=3)
    meta = mq.send("orders", b"first", key=b"42", headers={"trace": "abc"})
    assert (meta.topic, meta.offset) == ("orders", 0)
    with mq.producer() as producer:
        deliveries = [producer.send("orders", b"row %d" % i) for i in range(1000)]
    assert all(d.done() for d in deliveries)
    messages = list(mq.reader("orders", start="earliest", end="latest", replica="follower"))
    assert len(messages) == 1001
    assert [m.headers for m in messages if m.key == b"42"] == [(("trace", b"abc"),)]
    table = mq.reader("orders").to_arrow(limit=1_000_000)
    assert table.num_rows == 1001


def test_deliveries_and_errors(mq: Client, brokers: GrpcBrokers) -> None:
    producer = mq.producer(linger_ms=0)
    delivery = producer.send("t", b"x")
    assert delivery.result(5).offset == 0
    assert delivery.exception(5) is None
    called = threading.Event()
    producer.send("t", b"y").add_done_callback(lambda d: called.set())
    assert called.wait(5)
    brokers.cluster.refusals.append(BatchTooLarge("never"))
    assert isinstance(producer.send("t", b"z").exception(5), BatchTooLarge)
    brokers.cluster.refusals.append(BatchTooLarge("never"))
    producer.send("t", b"zz")
    with pytest.raises(NotDelivered):
        producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.send("t", b"")
    with pytest.raises(UnknownTopic):
        mq.send("nope", b"")
    (meta,) = mq.producer().send_batch("t", pa.table({"value": [b"a", b"b"]}), partition=1).result(5)
    assert (meta.partition, meta.record_count) == (1, 2)


def test_an_error_shows_nothing_of_the_producers_own_look_ups(mq: Client) -> None:
    producer = mq.producer()
    producer.send("t", b"to a topic that is open").result(5)
    with pytest.raises(UnknownTopic) as raised:
        producer.send("unknown", b"v")
    assert "KeyError" not in "".join(traceback.format_exception(raised.value))


def test_many_threads_share_a_client(mq: Client, brokers: GrpcBrokers) -> None:
    def run() -> None:
        for _ in range(50):
            mq.send("t", b"x", key=b"k")

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(brokers.cluster.values("t", p)) for p in range(3)) == 400


def test_a_blocking_call_in_a_callback_raises(mq: Client, brokers: GrpcBrokers) -> None:
    caught: list[BaseException] = []
    done = threading.Event()

    def call(delivery: Delivery) -> None:
        try:
            mq.admin.list_topics()
        except RuntimeError as error:
            caught.append(error)
        done.set()

    async def answer() -> None:
        held.set()

    brokers.cluster.hold = held = asyncio.Event()
    with mq.producer(linger_ms=0) as producer:
        producer.send("t", b"x").add_done_callback(call)  # the delivery is not done yet, so the loop's thread calls it
        brokers.run(answer())
        assert done.wait(20)
    assert "callback" in str(caught[0])


@pytest.mark.parametrize("of", ["a call", "a delivery"])
def test_a_signal_that_another_thread_takes_ends_a_wait(mq: Client, of: str) -> None:
    """The main thread blocks the signal, so that the system gives it to another thread. Only the main thread can run
    its function: the wait must see by itself that it is due."""

    class Signalled(Exception):
        """Nothing but the test catches it."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise Signalled

    waiting = threading.Event()

    async def never() -> None:
        waiting.set()
        await asyncio.Event().wait()

    def wait() -> None:
        if of == "a call":
            loop_thread_of(mq).run(never())
        else:
            waiting.set()
            acquired(locked(), None)

    def interrupt() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        waiting.wait()
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, on_signal)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(Signalled):
            wait()
        interrupting.join()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        signal.signal(signal.SIGUSR1, before)


def test_a_timeout_of_the_work_is_not_one_of_the_wait(mq: Client) -> None:
    async def late() -> None:
        raise TimeoutError("of the work")

    with pytest.raises(TimeoutError, match="of the work"):
        loop_thread_of(mq).run(late())


def test_reading(mq: Client) -> None:
    assert mq.reader("t", start="latest").poll(0.05) == []
    for i in range(10):
        mq.send("t", b"%d" % i, partition=0)
    with mq.reader("t", [0], start=Offset(2), fetch_wait_ms=50) as reader:
        assert reader.position() == {0: 2}
        assert [m.offset for m in reader.poll(5, max_records=3)] == [2, 3, 4]
        assert next(reader).offset == 5
        assert reader.position() == {0: 6}
        assert not reader.at_end
        assert reader.to_arrow().column("offset").to_pylist() == [6, 7, 8, 9]
        assert reader.at_end
    with pytest.raises(Closed):
        reader.poll(1)


def test_failover_over_real_connections(mq: Client, brokers: GrpcBrokers) -> None:
    with mq.producer(linger_ms=1) as producer:
        for i in range(3000):
            producer.send("t", b"%d" % i, key=b"%d" % i)
            if i == 1000:
                brokers.stop(2)
    written = sorted(int(v) for p in range(3) for v in brokers.cluster.values("t", p))
    assert written == list(range(3000))
    assert mq.reader("t", replica="follower").to_arrow().num_rows == 3000


def test_a_closed_client_raises_closed(brokers: GrpcBrokers) -> None:
    client = Client(brokers.servers)
    client.close()
    client.close()
    with pytest.raises(Closed):
        client.send("t", b"")
    used = Client(brokers.servers)
    producer = used.producer()
    producer.send("t", b"flushed by close")
    used.close()
    with pytest.raises(Closed):
        producer.send("t", b"")
    with pytest.raises(InvalidConfig):
        Client("")


FORK = """
import os, sys
from tinymq import Client
mq = Client(sys.argv[1])
producer = None
children = []
for name in (b"a", b"b"):
    pid = os.fork()
    if pid == 0:
        mq.send("t", name)
        with mq.producer() as producer:
            producer.send("t", name)
        mq.close()
        os._exit(0)
    children.append(pid)
codes = [os.waitpid(pid, 0)[1] for pid in children]
mq.send("t", b"parent")
print(codes)
"""


def test_a_process_that_forks_before_the_first_call_works(brokers: GrpcBrokers) -> None:
    script = subprocess.run(
        [sys.executable, "-c", FORK, brokers.servers[0]],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert (script.returncode, script.stdout.strip()) == (0, "[0, 0]"), script.stderr
    values = [v for p in range(3) for v in brokers.cluster.values("t", p)]
    assert sorted(values) == [b"a", b"a", b"b", b"b", b"parent"]


AFTER_USE = """
import os, sys
from tinymq import Client
from tinymq.base.errors import Closed
before = dict(os.environ)
mq = Client(sys.argv[1])
producer = mq.producer()
producer.send("t", b"parent").result(10)
assert dict(os.environ) == before, "the client leaves the environment alone"
tx = mq.transaction("a")
tx.begin()
tx.send("t", b"parent")
waiting = mq.producer(linger_ms=60_000).send("t", b"parent")
pid = os.fork()
if pid == 0:
    uses = (
        lambda: producer.send("t", b"child"), lambda: mq.send("t", b"child"), producer.close, mq.admin.list_topics,
        lambda: Client(sys.argv[1]).send("t", b"child"), waiting.result, lambda: tx.send("t", b"child"), tx.commit,
    )
    for use in uses:
        try:
            use()
        except Closed as error:
            if "forked" not in str(error) or "fork before" not in error.hint:
                os._exit(3)
        else:
            os._exit(4)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
producer.send("t", b"parent").result(10)
assert tx.commit()
"""


def test_a_used_client_raises_closed_in_a_forked_child_and_works_in_the_parent(brokers: GrpcBrokers) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    script = subprocess.run(
        [sys.executable, "-c", AFTER_USE, brokers.servers[0]],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=False, env=environment,
    )  # fmt: skip
    assert script.returncode == 0, script.stderr


def test_a_process_that_never_closes_its_client_ends(brokers: GrpcBrokers) -> None:
    code = "import sys; from tinymq import Client; Client(sys.argv[1]).send('t', b'x'); print('sent')"
    script = subprocess.run(
        [sys.executable, "-c", code, brokers.servers[0]],
        capture_output=True, text=True, timeout=30, cwd=ROOT, check=False,
    )  # fmt: skip
    assert (script.returncode, script.stdout.strip()) == (0, "sent"), script.stderr
    assert "Traceback" not in script.stderr


def test_importing_tinymq_loads_nothing() -> None:
    code = "import sys, tinymq; print(sorted({'grpc', 'pyarrow', 'google.protobuf'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert out.stdout.strip() == "[]"


def test_public_names() -> None:
    for name in tinymq.__all__:
        assert getattr(tinymq, name) is not None
        assert name in dir(tinymq)
    with pytest.raises(AttributeError):
        tinymq.Nothing  # noqa: B018
    assert os.path.exists(ROOT / "tinymq" / "py.typed")


@pytest.mark.parametrize(
    ("own_s", "asked_ms", "after_s"),
    [
        pytest.param(0.005, None, 0.005, id="nobody asked"),
        pytest.param(0.005, 0.5, 0.000_5, id="asked"),
        pytest.param(0.000_1, 0.5, 0.000_1, id="the application's own is shorter"),
    ],
)
def test_the_switch_interval_changes_only_when_asked(own_s: float, asked_ms: float | None, after_s: float) -> None:
    before_s = sys.getswitchinterval()
    try:
        sys.setswitchinterval(own_s)
        with Client("127.0.0.1:1", switch_interval_ms=asked_ms) as mq:
            assert sys.getswitchinterval() == pytest.approx(own_s), "the thread has not started"
            assert loop_thread_of(mq).client.servers == mq.servers
            assert sys.getswitchinterval() == pytest.approx(after_s)
    finally:
        sys.setswitchinterval(before_s)

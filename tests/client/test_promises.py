"""The promises to users of the Python client, each one a test that carries its words as its name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

import pytest

import tinymq
from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run
from tinymq import Client, Consumer, Message, NotDelivered, Reader
from tinymq.app.broker_app import BrokerApp
from tinymq.base.errors import BY_CODE, BrokerUnreachable, InvalidRequest, TinymqError, UnknownTopic
from tinymq.testing import Cluster

DEADLINE_S = 30.0
MYPY_S_MAX = 600.0


@pytest.fixture
def topic(mq: Client, request: pytest.FixtureRequest) -> str:
    name: str = re.sub(r"[^\w]+", "-", request.node.name)[:200]
    mq.admin.create_topic(name, partitions=1, replication_factor=3)
    return name


def reads(mq: Client, kind: str, topic: str) -> Reader | Consumer:
    return mq.reader(topic) if kind == "reader" else mq.consumer(topic, group=f"group-{topic}")


@pytest.mark.parametrize("kind", ["reader", "consumer"])
def test_a_consumer_never_hangs_or_dies_silently_it_resumes_by_itself(
    cluster: Cluster, mq: Client, topic: str, kind: str
) -> None:
    with reads(mq, kind, topic) as consumer:
        mq.send(topic, b"before")
        assert [message.value for message in consumer.poll(DEADLINE_S)] == [b"before"]
        leader = cluster.wait_leader(topic)
        cluster.kill(leader)
        mq.send(topic, b"after")
        assert [message.value for message in consumer.poll(DEADLINE_S)] == [b"after"]
        cluster.start(leader)


def test_a_consumer_never_hangs_or_dies_silently_or_raises(mq: Client, topic: str) -> None:
    with mq.reader(topic) as reader:
        assert reader.poll(0.0) == []
        mq.admin.delete_topic(topic)
        with pytest.raises(UnknownTopic):
            reader.poll(DEADLINE_S)


def test_a_consumer_never_hangs_or_dies_silently_a_group_is_told_what_is_deleted(
    mq: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The group goes on with its other topics, so `poll` does not raise."""
    told = threading.Event()
    with mq.consumer(topic, group="told", on_lost=lambda places: told.set()) as consumer:
        while not consumer.assignment():
            consumer.poll(0.0)
        mq.admin.delete_topic(topic)
        deadline_s = time.monotonic() + DEADLINE_S
        while not told.is_set():
            assert consumer.poll(0.1) == []
            assert time.monotonic() < deadline_s
    assert f"group told: lost {topic}/0: it was deleted" in caplog.text


def test_an_empty_poll_is_an_empty_list_not_an_exception(mq: Client, topic: str) -> None:
    consumer, worker = mq.consumer(topic, group="stream"), mq.worker(topic, group="queue")
    with mq.reader(topic) as reader, mq.queue(topic, 0, "c") as queue, consumer, worker:
        for each in (reader, queue, consumer, worker):
            assert each.poll(timeout=0.0) == []


def test_no_argument_is_ever_dropped_headers_given_are_headers_delivered(mq: Client, topic: str) -> None:
    given = [("trace", b"7"), ("trace", b"8"), ("none", None)]
    mq.send(topic, b"v", key=b"k", headers=given, timestamp=7, partition=0)
    with mq.reader(topic, end="latest") as reader:
        (message,) = list(reader)
    assert (message.key, message.value, message.timestamp_us) == (b"k", b"v", 7)
    assert list(message.headers) == given
    with pytest.raises(TypeError):
        mq.send(topic, b"v", header={"trace": b"7"})  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match="linger_ms"):
        mq.producer(linger=5)  # type: ignore[call-arg]


def test_a_connection_error_lists_every_address_tried_and_why_each_failed() -> None:
    async def scenario() -> None:
        fake = FakeCluster()
        for broker in fake.nodes:
            fake.kill(broker, elect=False)
        async with client_of(fake, connect_timeout_ms=0) as client:
            with pytest.raises(BrokerUnreachable) as raised:
                await client.admin.list_topics()
            assert all(f"fake:{n}: connection refused" in raised.value.message for n in (1, 2, 3))

    run(scenario())


def test_every_error_has_code_retriable_and_hint() -> None:
    assert len(BY_CODE) > 40
    for code, kind in BY_CODE.items():
        error = kind("said")
        assert (error.code, type(error.retriable)) == (code, bool)
        assert error.hint or kind.__subclasses__(), f"{code} says what to do"


def test_leaving_a_with_block_flushes_within_its_deadline_what_could_not_be_sent_raises_with_the_records() -> None:
    async def scenario() -> None:
        fake = FakeCluster()
        fake.add_topic("t")
        async with client_of(fake) as client:
            async with client.producer(linger_ms=60_000) as producer:
                delivery = await producer.send("t", b"flushed")
            assert (await delivery).offset == 0

            async def leave_while_no_broker_answers() -> None:
                async with client.producer(delivery_timeout_ms=300, linger_ms=60_000) as producer:
                    await producer.send("t", b"left", key=b"k")
                    for broker in fake.nodes:
                        fake.kill(broker, elect=False)

            with pytest.raises(NotDelivered) as raised:
                await leave_while_no_broker_answers()
            assert [(record.key, record.value) for record in raised.value.records] == [(b"k", b"left")]

    run(scenario())


FORKING = """
import os, sys, tinymq
client = tinymq.Client(sys.argv[1])
if not (child := os.fork()):
    with client:
        os._exit(0 if client.send(sys.argv[2], b"from a child").offset == 0 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_forks_after_import_works_channels_are_made_lazily_per_process(
    cluster: Cluster, topic: str
) -> None:
    command = [sys.executable, "-c", FORKING, cluster.servers, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_broker_that_tests_use_is_the_real_one_in_process(cluster: Cluster) -> None:
    assert all(type(broker) is BrokerApp for broker in cluster.brokers.values())
    assert "tinymq-cluster" in {thread.name for thread in threading.enumerate()}


TYPED = """
import asyncio
from datetime import UTC, datetime
from tinymq import AsyncClient, Client, Consumer, Job, Message, RecordMetadata, Reject, TinymqError, UnknownTopic
mq = Client("localhost:7070", request_timeout_ms=5_000)
@mq.subscribe("orders", group="billing")
def bill(message: Message) -> None:
    print(message.timestamp.isoformat(), message.header("trace"))
@mq.subscribe("emails", group="mailer", kind="queue", concurrency=16)
async def send(job: Job) -> None:
    if job.header("to") is None:
        raise Reject("no address")
def place(order: bytes) -> RecordMetadata:
    with mq.producer(acks="quorum", compression="zstd") as producer:
        delivery = producer.send("orders", order, key=b"k", headers={"trace": "7"}, timestamp=datetime.now(UTC))
        return delivery.result(timeout=5.0)
def read(consumer: Consumer) -> int:
    try:
        return sum(len(message.value or b"") for message in consumer.poll(timeout=1.0))
    except UnknownTopic as error:
        return len(error.hint)
    except TinymqError as error:
        print(error.code, error.retriable, error.hint)
        return mq.frame("orders", offsets=(0, 10)).count()
async def main() -> None:
    async with AsyncClient(context="dev") as client, client.worker("emails", group="mailer") as worker:
        await client.admin.create_topic("orders", partitions=6, exist_ok=True)
        async for job in worker:
            job.ack()
asyncio.run(main())
"""
MISTYPED = {'acks="quorum"': 'acks="qourum"', "key=b": "key=", "request_timeout_ms": "request_timeout"}


def test_py_typed_is_there() -> None:
    assert (resources.files(tinymq) / "py.typed").is_file()


@pytest.mark.long  # mypy reads the whole client
@pytest.mark.timeout(MYPY_S_MAX)
def test_py_typed_mypy_strict_passes_on_the_public_api_and_notices_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(TYPED)
    for number, (right, wrong) in enumerate(MISTYPED.items()):
        (tmp_path / f"wrong_{number}.py").write_text(TYPED.replace(right, wrong))
    names = sorted(path.name for path in tmp_path.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path / 'cache'}", *names]
    environment = {**os.environ, "MYPYPATH": str(Path(tinymq.__file__).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    refused = {line.partition(":")[0] for line in done.stdout.splitlines() if ": error: " in line}
    assert refused == {f"wrong_{number}.py" for number in range(len(MISTYPED))}, done.stdout


@dataclass(frozen=True)
class Order:
    """A value of an application, and its serializer at the edge."""

    customer: str

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, message: Message) -> Order:
        return cls(**json.loads(message.value or b""))


def test_payloads_are_bytes_to_the_broker_typed_values_are_a_serializer_at_the_edge(mq: Client, topic: str) -> None:
    mq.send(topic, Order("anna").encode())
    with mq.reader(topic, end="latest") as reader:
        assert [Order.decode(message) for message in reader] == [Order("anna")]
    for value, hint in (("text", "value.encode()"), ({"a": 1}, "json.dumps(value).encode()"), (1, "str(value)")):
        with pytest.raises(TinymqError) as raised:
            mq.send(topic, value)  # type: ignore[arg-type]
        assert hint in raised.value.hint

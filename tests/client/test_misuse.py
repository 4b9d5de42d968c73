"""What users do by mistake, in real processes with real brokers: it works, or raises at once, and loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from tinymq import AsyncClient, Client, Consumer, Queue, Reader, Worker
from tinymq.base.errors import InvalidRequest
from tinymq.testing import Cluster

ENDS_S = 60.0  # a process that takes longer hangs


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1) as running:
        yield running


@pytest.fixture
def topic(mq: Client, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", request.node.name)
    mq.admin.create_topic(name, partitions=1, replication_factor=1)
    return name


def program(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own to its end."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=ENDS_S, check=False
    )


def values(mq: Client, topic: str) -> list[bytes | None]:
    with mq.reader(topic, end="latest") as reader:
        return [message.value for message in reader]


# ---- cancelled awaits -----------------------------------------------------------------------------------------------


def test_a_send_that_is_cancelled_anywhere_is_stored_once_or_not_at_all(
    cluster: Cluster, mq: Client, topic: str
) -> None:
    async def scenario() -> set[bytes]:
        kept = set()
        async with AsyncClient(cluster.servers) as client:
            for steps in range(40):
                value = b"%d" % steps
                sending = asyncio.create_task(client.send(topic, value))
                for _ in range(steps):
                    await asyncio.sleep(0)
                if not sending.cancel() or not isinstance((await asyncio.gather(sending, return_exceptions=True))[0],
                                                          asyncio.CancelledError):  # fmt: skip
                    kept.add(value)
            kept.add(b"last")
            await client.send(topic, b"last")
        return kept

    kept = asyncio.run(scenario())
    stored = values(mq, topic)
    assert len(stored) == len(set(stored))
    assert kept <= set(stored)


def test_a_poll_that_is_cancelled_loses_no_message_and_no_job(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        async with AsyncClient(cluster.servers) as client:
            consumer, worker = client.consumer(topic, group="g-" + topic), client.worker(topic, group="w-" + topic)
            async with consumer, worker:
                for poll in (consumer.poll, worker.poll):
                    for steps in range(40):
                        polling = asyncio.create_task(poll(60.0, 1))
                        for _ in range(steps):
                            await asyncio.sleep(0)
                        polling.cancel()
                        await asyncio.gather(polling, return_exceptions=True)
                await client.send(topic, b"there")
                assert [message.value for message in await consumer.poll(ENDS_S)] == [b"there"]
                assert [job.value for job in await worker.poll(ENDS_S)] == [b"there"]

    asyncio.run(scenario())


# ---- threads --------------------------------------------------------------------------------------------------------


def test_threads_that_share_a_producer_lose_nothing_and_keep_their_own_order(mq: Client, topic: str) -> None:
    with mq.producer() as producer:

        def send(thread: int) -> None:
            for each in range(200):
                producer.send(topic, b"%d %d" % (thread, each))

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stored = [tuple(map(int, value.split())) for value in values(mq, topic) if value is not None]
    assert len(stored) == 800
    for thread in range(4):
        assert [number for of, number in stored if of == thread] == list(range(200))


Taken = Reader | Consumer | Worker | Queue


def take_one(of: Taken, found: list[bytes | None]) -> None:
    while not found:
        with contextlib.suppress(InvalidRequest):  # the other thread was first
            found.append(next(of).value)


def poll_until_refused(of: Taken, inside: threading.Thread) -> NoReturn:
    while True:
        of.poll(timeout=0.0)
        inside.join(0.01)  # lets that thread in: without a pause, the two could refuse each other for good


@pytest.mark.parametrize("kind", [Reader, Consumer, Worker, Queue])
def test_a_second_thread_that_takes_records_is_refused_and_the_first_one_misses_none(
    mq: Client, topic: str, kind: type
) -> None:
    """One thread is inside the object, and waits. Then it gets what is sent."""
    made: dict[type, Callable[[str], Taken]] = {
        Reader: mq.reader,
        Consumer: partial(mq.consumer, group=topic),
        Worker: partial(mq.worker, group=topic),
        Queue: mq.queue,
    }
    with made[kind](topic) as taken_from:
        found: list[bytes | None] = []
        inside = threading.Thread(target=take_one, args=(taken_from, found))
        inside.start()
        with pytest.raises(InvalidRequest, match="at once"):
            poll_until_refused(taken_from, inside)
        mq.send(topic, b"v")
        inside.join(ENDS_S)
        assert found == [b"v"]


def test_one_thread_takes_over_from_another(mq: Client, topic: str) -> None:
    for number in range(4):
        mq.send(topic, b"%d" % number)
    found: list[bytes | None] = []
    with mq.reader(topic, end="latest") as reader:
        for _ in range(4):
            thread = threading.Thread(target=lambda: found.append(next(reader).value))
            thread.start()
            thread.join()
    assert found == [b"0", b"1", b"2", b"3"]


def test_threads_that_race_for_a_reader_get_each_record_once(mq: Client, topic: str) -> None:
    """The one that is refused asks again."""
    with mq.producer() as producer:
        for number in range(2_000):
            producer.send(topic, b"%d" % number)
    found: list[bytes | None] = []
    with mq.reader(topic, end="latest") as reader:

        def take() -> None:
            while not reader.at_end:
                with contextlib.suppress(InvalidRequest):
                    found.extend(message.value for message in reader.poll(0.0, 7))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ENDS_S)
    assert sorted(found, key=lambda value: int(value or b"")) == [b"%d" % number for number in range(2_000)]


# ---- forks ----------------------------------------------------------------------------------------------------------

FORK_OF_ALL = """
import asyncio, os, sys
from tinymq import AsyncClient, Client
from tinymq.base.errors import InvalidRequest
from tinymq.base.errors import Closed
servers, topic = sys.argv[1:]
mq = Client(servers)
with mq.producer() as early:
    for i in range(10):
        early.send(topic, b"%d" % i)
producer = mq.producer()
reader, consumer, queue = mq.reader(topic), mq.consumer(topic, group="g-" + topic), mq.queue(topic)
worker = mq.worker(topic, group="w-" + topic)
at_most = mq.consumer(topic, group="m-" + topic, processing="at_most_once")
iterated = iter(reader)
next(iterated), next(consumer), next(queue), next(at_most)
job = next(worker)
loop = asyncio.new_event_loop()
asynchronous = AsyncClient(servers)
async def use():
    await asynchronous.send(topic, b"10")
    consumer = asynchronous.consumer(topic, group="a-" + topic)
    await consumer.poll(30, 1)
    return asynchronous.producer(), consumer
aproducer, aconsumer = loop.run_until_complete(use())
pid = os.fork()
if pid == 0:
    later = lambda work: lambda: asyncio.run(work())
    uses = (
        lambda: mq.send(topic, b"child"), lambda: producer.send(topic, b"child"), lambda: next(iterated),
        lambda: next(reader), lambda: reader.poll(30), lambda: next(consumer), lambda: consumer.poll(30),
        lambda: next(at_most), lambda: queue.poll(timeout=30), lambda: queue.push(b"child"), lambda: next(worker),
        lambda: worker.poll(30), job.ack, worker.flush, lambda: Client(servers).send(topic, b"child"),
        later(lambda: asynchronous.send(topic, b"child")), later(lambda: aconsumer.poll(30)),
        later(lambda: aproducer.send(topic, b"child")),
    )
    for number, use in enumerate(uses):
        try:
            found = use()
        except Closed as error:
            assert "fork" in str(error) and "fork before" in error.hint, number
        else:
            sys.exit(f"use {number}: {found}")
    for each in (reader, consumer, queue, worker, mq):
        each.close()
    sys.exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
job.ack()
worker.flush(30)
assert [next(iterated).value, next(consumer).value, next(queue).value, next(worker).value] == [b"1"] * 4
assert loop.run_until_complete(aconsumer.poll(30, 1))[0].value == b"1"
loop.run_until_complete(asynchronous.close())
mq.close()
sys.exit(code)
"""


def test_nothing_that_a_parent_has_used_works_in_its_forked_child(cluster: Cluster, mq: Client, topic: str) -> None:
    """The child gets no record that the parent handles, and the parent goes on as if nothing had happened."""
    done = program(FORK_OF_ALL, cluster.servers, topic)
    assert (done.stderr, done.returncode) == ("", 0)
    assert b"child" not in values(mq, topic)


MULTIPROCESSING = """
import multiprocessing, sys
from tinymq import Client
mq = Client(sys.argv[1])
def work(servers, topic, number):
    with Client(servers) if sys.argv[3] != "fork" else mq as own:
        own.send(topic, b"%d" % number)
if __name__ == "__main__":
    if sys.argv[3] != "fork":
        mq.send(sys.argv[2], b"0")
    context = multiprocessing.get_context(sys.argv[3])
    children = [context.Process(target=work, args=(*sys.argv[1:3], number)) for number in (1, 2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    mq.send(sys.argv[2], b"3")
    sys.exit(any(child.exitcode for child in children))
"""


@pytest.mark.parametrize(
    ("method", "sent"),
    [
        ("fork", [b"1", b"2", b"3"]),
        ("spawn", [b"0", b"1", b"2", b"3"]),
        ("forkserver", [b"0", b"1", b"2", b"3"]),
    ],
)
def test_processes_of_multiprocessing_have_clients(
    cluster: Cluster, mq: Client, tmp_path: Path, method: str, sent: list[bytes]
) -> None:
    """A forked one takes over a client that was not used yet. Others make their own, whatever the parent did."""
    mq.admin.create_topic(method, partitions=1, replication_factor=1)
    script = tmp_path / "program.py"
    script.write_text(MULTIPROCESSING)
    command = [sys.executable, str(script), cluster.servers, method, method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert sorted(value for value in values(mq, method) if value is not None) == sent


def test_a_client_that_is_passed_to_another_process_says_what_to_pass(cluster: Cluster, mq: Client) -> None:
    for client in (mq, AsyncClient(cluster.servers)):
        with pytest.raises(TypeError, match="pass its servers"):
            pickle.dumps(client)


# ---- the end of a program -------------------------------------------------------------------------------------------

LEFT_OPEN = """
import asyncio, sys
from tinymq import AsyncClient, Client
from tinymq.base.errors import InvalidRequest
servers, topic = sys.argv[1:]
mq = Client(servers)
producer = mq.producer(linger_ms=60_000)
mq.send(topic, b"0")
reader, consumer = mq.reader(topic), mq.consumer(topic, group="g-" + topic)
queue, worker = mq.queue(topic), mq.worker(topic, group="w-" + topic)
next(reader), next(consumer), next(queue), next(worker)
producer.send(topic, b"1")
async def leave_open():
    client = AsyncClient(servers)
    await client.consumer(topic, group="a-" + topic).poll(30)
asyncio.run(leave_open())
"""


def test_a_program_that_ends_with_everything_open_ends_and_its_records_are_stored(
    cluster: Cluster, mq: Client, topic: str
) -> None:
    """What a consumer and a worker had in hand is delivered again."""
    done = program(LEFT_OPEN, cluster.servers, topic)
    assert (done.stderr, done.returncode) == ("", 0)
    assert values(mq, topic) == [b"0", b"1"]
    with mq.consumer(topic, group="g-" + topic) as consumer, mq.worker(topic, group="w-" + topic) as worker:
        assert consumer.poll(ENDS_S, 1)[0].value == b"0"
        assert {worker.poll(ENDS_S, 1)[0].value for _ in range(2)} == {b"0", b"1"}


CTRL_C = """
import signal, sys
from tinymq import Client
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
servers, topic = sys.argv[1:]
with Client(servers) as mq:
    with {block} as used:
        {use}
        signal.raise_signal(signal.SIGINT)
"""


def interrupted(cluster: Cluster, topic: str, block: str, use: str) -> None:
    """Run a program that gets Ctrl-C inside the block. It ends by it, and says nothing else."""
    done = program(CTRL_C.format(block=block, use=use), cluster.servers, topic)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


def test_ctrl_c_in_a_producers_block_flushes_what_was_sent(cluster: Cluster, mq: Client, topic: str) -> None:
    interrupted(cluster, topic, "mq.producer(linger_ms=60_000)", "used.send(topic, b'sent')")
    assert values(mq, topic) == [b"sent"]


def test_ctrl_c_in_a_consumers_block_commits_no_message_in_hand(cluster: Cluster, mq: Client, topic: str) -> None:
    for value in (b"done", b"in hand"):
        mq.send(topic, value)
    interrupted(cluster, topic, "mq.consumer(topic, group=topic)", "next(used), next(used)")
    with mq.consumer(topic, group=topic) as consumer:
        assert consumer.poll(ENDS_S, 1)[0].value == b"in hand"


def test_ctrl_c_in_a_workers_block_delivers_the_job_in_hand_again(cluster: Cluster, mq: Client, topic: str) -> None:
    mq.send(topic, b"in hand")
    interrupted(cluster, topic, "mq.worker(topic, group=topic)", "next(used)")
    with mq.worker(topic, group=topic) as worker:
        (job,) = worker.poll(ENDS_S, 1)
        assert (job.value, job.delivery) == (b"in hand", 2)

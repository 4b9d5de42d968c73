"""Transactions on real brokers: atomic, never seen when they are rolled back, and whole after a crash half way."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import pytest

from tinymq import Client, Message
from tinymq.base.errors import Fenced, TinymqError, TransactionAborted
from tinymq.client import Transaction
from tinymq.testing import Cluster

pytestmark = pytest.mark.long
PARTITIONS = 3
LARGE = b"x" * 40_000  # what a partition publishes of it is not written again

LeaderOf = Callable[[Cluster, str, str], int]
"""Finds the broker to kill. The arguments: the cluster, the topic, the transactional id."""


@pytest.fixture
def topic(mq: Client, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    mq.admin.create_topic(name, partitions=PARTITIONS)
    return name


def read(mq: Client, topic: str) -> dict[int, list[bytes | None]]:
    found: dict[int, list[bytes | None]] = {partition: [] for partition in range(PARTITIONS)}
    with mq.reader(topic, end="latest") as reader:
        for message in reader:
            assert message.offset == len(found[message.partition]), "offsets have no gap"
            found[message.partition].append(message.value)
    return found


def fill(tx: Transaction, topic: str, value: bytes) -> None:
    for partition in range(PARTITIONS):
        tx.send(topic, value, partition=partition).result(30)


def everywhere(*values: bytes) -> dict[int, list[bytes]]:
    return {partition: list(values) for partition in range(PARTITIONS)}


def test_a_transaction_appears_as_a_whole_and_holds_nobody_up(mq: Client, topic: str) -> None:
    with mq.transaction("a") as tx:
        fill(tx, topic, b"first")
        fill(tx, topic, LARGE)
        for partition in range(PARTITIONS):
            mq.send(topic, b"plain", partition=partition)
        assert read(mq, topic) == everywhere(b"plain")
        fill(tx, topic, b"last")
    assert tx.visible
    assert read(mq, topic) == everywhere(b"plain", b"first", LARGE, b"last")
    with mq.transaction("a") as tx:
        fill(tx, topic, b"next")
    assert read(mq, topic) == everywhere(b"plain", b"first", LARGE, b"last", b"next")
    for replica in ("leader", "follower"):
        with mq.reader(topic, end="latest", replica=replica) as reader:
            assert len(list(reader)) == PARTITIONS * 5


def test_what_is_rolled_back_is_never_seen(mq: Client, topic: str) -> None:
    def failing() -> None:
        with mq.transaction("b") as tx:
            fill(tx, topic, LARGE)
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    tx = begun(mq, "b", transaction_timeout_ms=1000)
    fill(tx, topic, b"late")
    while mq.admin.describe_transactional_id("b").transactions:
        pass  # until its time is up
    with pytest.raises(TransactionAborted):
        tx.commit()
    assert read(mq, topic) == everywhere()
    with mq.transaction("b") as tx:
        fill(tx, topic, b"seen")
    assert read(mq, topic) == everywhere(b"seen")


def test_a_second_program_fences_the_first(cluster: Cluster, mq: Client, topic: str) -> None:
    tx = begun(mq, "c")
    fill(tx, topic, b"first")
    with cluster.client() as other, other.transaction("c") as its:
        fill(its, topic, b"second")
    with pytest.raises(Fenced):
        tx.commit()
    with pytest.raises(Fenced):
        begun(mq, "c")
    assert read(mq, topic) == everywhere(b"second")


def of_partition(cluster: Cluster, topic: str, name: str) -> int:
    return cluster.wait_leader(topic, 0)


def of_coordinator(cluster: Cluster, topic: str, name: str) -> int:
    return cluster.wait_leader("__coordinator", crc32(name.encode()) % 16)


@pytest.mark.parametrize("leader", [of_partition, of_coordinator])
def test_a_transaction_outlives_its_leaders(cluster: Cluster, topic: str, leader: LeaderOf) -> None:
    """Killed between the sends and the commit, and once more between that and the next commit."""
    name = f"d-{leader.__name__}"
    with cluster.client(attempt_timeout_ms=1000) as mq:
        for value in (b"first", LARGE):
            tx = begun(mq, name)
            fill(tx, topic, value)
            killed = leader(cluster, topic, name)
            cluster.kill(killed)
            fill(tx, topic, value + b" again")
            assert tx.commit()
            cluster.start(killed)
        assert read(mq, topic) == everywhere(b"first", b"first again", LARGE, LARGE + b" again")


def test_read_process_write(mq: Client, topic: str) -> None:
    """Each input becomes one output in each of two partitions, although every second attempt fails half way."""
    inputs = 20
    for number in range(inputs):
        mq.send(topic, b"%d" % number, partition=0)
    attempts = iter(range(1_000_000))

    def handle(message: Message) -> None:
        with mq.transaction("f") as tx:
            tx.send(topic, b"a" + (message.value or b""), partition=1)
            if next(attempts) % 2 == 0:
                raise TinymqError("half way")
            tx.send(topic, b"b" + (message.value or b""), partition=2)

    with mq.reader(topic, [0], end="latest") as reader:
        for message in reader:
            with pytest.raises(TinymqError, match="half way"):
                handle(message)
            handle(message)
    found = read(mq, topic)
    assert found[1] == [b"a%d" % number for number in range(inputs)]
    assert found[2] == [b"b%d" % number for number in range(inputs)]


def begun(mq: Client, name: str, **settings: int) -> Transaction:
    tx = mq.transaction(name, **settings)  # type: ignore[arg-type]
    tx.begin()
    return tx

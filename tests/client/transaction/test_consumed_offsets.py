"""Read-process-write: offsets of a stream group that are committed with a transaction, on a real cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.client.group.test_consumer import until
from tinymq.base.errors import InvalidRequest, OutcomeUnknown, TransactionAborted
from tinymq.client import Client, Consumer, Transaction
from tinymq.testing import Cluster

pytest_plugins = ["tinymq.testing.fixture"]


@pytest.fixture
def mq(tinymq_cluster: Cluster) -> Client:
    return tinymq_cluster.client()


def made(mq: Client, name: str, inputs: int = 6, partitions: int = 2) -> None:
    mq.admin.create_topic(f"{name}-in", partitions=partitions)
    mq.admin.create_topic(f"{name}-out")
    for number in range(inputs):
        mq.send(f"{name}-in", b"%d" % number, partition=number % partitions)


def consumer(mq: Client, name: str) -> Consumer:
    return mq.consumer(f"{name}-in", group=f"{name}-g", auto_commit=False)


def outputs(mq: Client, name: str) -> list[bytes | None]:
    with mq.reader(f"{name}-out", end="latest") as reader:
        return sorted((message.value for message in reader), key=lambda value: value or b"")


def lag(mq: Client, name: str) -> int:
    return sum(partition.lag for partition in mq.admin.group_lag(f"{name}-g"))


def copy(tx: Transaction, reading: Consumer, name: str, timeout: float = 1.0) -> int:
    """Send one output for each input that comes."""
    messages = reading.poll(timeout=timeout, max_records=4)
    for message in messages:
        tx.send(f"{name}-out", message.value)
    return len(messages)


def transact(mq: Client, reading: Consumer, name: str, check: Callable[[], object] = lambda: None) -> int:
    """Copy some records in one transaction. It is run again if the brokers are too busy for it: if it was committed all
    the same, the consumer hands out what follows."""
    while True:
        try:
            with mq.transaction(f"{name}-{id(mq)}") as tx:
                tx.commit_offsets(reading)
                count = copy(tx, reading, name)
                check()
        except (TransactionAborted, OutcomeUnknown):
            continue
        return count


def copy_all(mq: Client, reading: Consumer, name: str, count: int = 6) -> None:
    """Copy until all is committed, by members that have all partitions."""
    while sum(reading.committed().values()) < count:
        transact(mq, reading, name)


def expected(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.long
def test_offsets_and_records_are_committed_together(mq: Client) -> None:
    made(mq, "pa")

    def check() -> None:
        assert (lag(mq, "pa"), outputs(mq, "pa")) == (6, [])

    with consumer(mq, "pa") as reading:
        while not (count := transact(mq, reading, "pa", check)):
            pass
        assert count < 6
        assert (lag(mq, "pa"), len(outputs(mq, "pa"))) == (6 - count, count)
        assert sum(reading.committed().values()) == count
        copy_all(mq, reading, "pa")
    assert outputs(mq, "pa") == expected(6)


def test_what_is_rolled_back_is_handed_out_again(mq: Client) -> None:
    made(mq, "pb")

    def fail() -> None:
        raise ValueError("half way")

    with consumer(mq, "pb") as reading:
        for _ in range(2):
            with pytest.raises(ValueError, match="half way"):
                transact(mq, reading, "pb", fail)
        copy_all(mq, reading, "pb")
    assert outputs(mq, "pb") == expected(6)


@pytest.mark.long
def test_messages_of_a_transaction_that_was_rolled_back_are_taken_again(mq: Client) -> None:
    made(mq, "pc")
    with consumer(mq, "pc") as reading:
        tx = begun(mq, "pc")
        tx.commit_offsets(reading)
        assert copy(tx, reading, "pc", timeout=30.0)
        tx.abort()
        tx = begun(mq, "pc")
        tx.commit_offsets(reading)
        with pytest.raises(TransactionAborted, match="handed out nothing"):
            tx.commit()
        copy_all(mq, reading, "pc")
    assert outputs(mq, "pc") == expected(6)


@pytest.mark.long
def test_a_member_that_hangs_publishes_nothing_that_another_handles(mq: Client, tinymq_cluster: Cluster) -> None:
    """Its session ends while it has messages in hand, and one transaction is about to commit."""
    made(mq, "pd", partitions=1)
    slow, released = tinymq_cluster.client(), threading.Event()

    async def hang() -> None:
        released.wait(60.0)

    hanging = consumer(slow, "pd")
    tx = begun(slow, "pd-slow")
    tx.commit_offsets(hanging)
    assert copy(tx, hanging, "pd", timeout=30.0)
    slow._loop_thread.begin(hang())
    try:
        with consumer(mq, "pd") as reading:
            copy_all(mq, reading, "pd")
    finally:
        released.set()
    with pytest.raises(TransactionAborted):
        tx.commit()
    assert outputs(mq, "pd") == expected(6)


@pytest.mark.long
def test_partitions_move_while_members_are_in_transactions(mq: Client, tinymq_cluster: Cluster) -> None:
    made(mq, "pe", inputs=24, partitions=4)
    with consumer(mq, "pe") as first:
        tx = begun(mq, "pe-first")
        tx.commit_offsets(first)
        assert copy(tx, first, "pe", timeout=30.0)
        with tinymq_cluster.client() as another, consumer(another, "pe") as second:

            def divided() -> bool:
                copy(tx, first, "pe", timeout=0.05)
                return bool(second.assignment())

            until(divided)
            with pytest.raises(TransactionAborted):
                tx.commit()
            assert outputs(mq, "pe") == []

            def copy_in_turns() -> None:
                while lag(another, "pe"):
                    transact(another, second, "pe")

            copying = threading.Thread(target=copy_in_turns)
            copying.start()
            while lag(mq, "pe"):
                with suppress(TransactionAborted, OutcomeUnknown), mq.transaction("pe-first") as tx:
                    tx.commit_offsets(first)
                    copy(tx, first, "pe", timeout=0.05)
            copying.join(60.0)
    assert outputs(mq, "pe") == sorted(expected(24))


def test_which_consumers_a_transaction_takes(mq: Client, tinymq_cluster: Cluster) -> None:
    made(mq, "pf", inputs=0)
    with mq.transaction("pf") as tx:
        for settings in ({"auto_commit": True}, {"auto_commit": False, "processing": "at_most_once"}):
            with pytest.raises(InvalidRequest, match="group"):
                tx.commit_offsets(mq.consumer("pf-in", group="pf-g", **settings))  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="group"):
            tx.commit_offsets(mq.consumer("pf-in", auto_commit=False))
        with tinymq_cluster.client() as other, pytest.raises(InvalidRequest, match="another client"):
            tx.commit_offsets(consumer(other, "pf"))
        reading = consumer(mq, "pf")
        tx.commit_offsets(reading)
        tx.commit_offsets(reading)
        with mq.transaction("pf-2") as second, pytest.raises(InvalidRequest, match="another transaction"):
            second.commit_offsets(reading)
    tx = begun(mq, "pf")
    tx.commit_offsets(reading)
    reading.close()
    with pytest.raises(InvalidRequest, match="closed"):
        tx.commit()


def begun(mq: Client, name: str) -> Transaction:
    tx = mq.transaction(name)
    tx.begin()
    return tx

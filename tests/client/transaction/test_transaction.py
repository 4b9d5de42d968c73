"""Transactions of a client, on the cluster in memory: atomic, fenced, rolled back, and repeated after lost answers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pyarrow as pa
import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run, until
from tinymq import StagedDelivery
from tinymq.base.errors import (
    Closed,
    DeadlineExceeded,
    Fenced,
    InvalidConfig,
    InvalidName,
    InvalidRequest,
    NotReady,
    OutcomeUnknown,
    QuotaExceeded,
    TransactionAborted,
    UnknownTopic,
)
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.client.transaction.transaction import TransactionCore

NAME = "billing-1"


def cluster_of(partitions: int = 3) -> FakeCluster:
    cluster = FakeCluster()
    cluster.add_topic("orders", partitions)
    cluster.add_topic("emails")
    return cluster


def values(cluster: FakeCluster, topic: str = "orders") -> list[list[bytes]]:
    return [cluster.values(topic, number) for number in range(len(cluster.topics[topic][1]))]


async def fill(tx: TransactionCore, partitions: int = 3) -> None:
    for number in range(partitions):
        await tx.send("orders", b"%d" % number, partition=number)


async def fill_staged(tx: TransactionCore) -> None:
    """As `fill`, until the records are staged: a short time limit of the commit is for its coordinator alone."""
    for number in range(3):
        await (await tx.send("orders", b"%d" % number, partition=number))


async def begun(mq: ClientCore, **settings: Any) -> TransactionCore:
    tx = mq.transaction(NAME, linger_ms=0, **settings)
    await tx.begin()
    return tx


# ---- all or nothing


def test_records_of_several_partitions_appear_with_the_commit() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            async with mq.transaction(NAME) as tx:
                await fill(tx)
                staged = await (await tx.send("emails", b"e", key=b"k", headers={"a": b"b"}, timestamp=7))
                assert (staged.topic, staged.partition) == ("emails", 0)
                assert values(cluster) == [[], [], []]
                assert cluster.values("emails") == []
                assert not tx.visible
            assert tx.visible
            assert values(cluster) == [[b"0"], [b"1"], [b"2"]]
            assert cluster.values("emails") == [b"e"]
            async with mq.transaction(NAME) as tx:
                await tx.send("orders", b"3", partition=0)
        assert cluster.values("orders") == [b"0", b"3"]
        assert cluster.transactions.calls.count("RegisterOwner") == 1, "the client keeps the id"

    run(test())


def test_an_exception_rolls_back_and_is_raised_again() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            tx, sent = mq.transaction(NAME), list[StagedDelivery]()

            async def failing() -> None:
                async with tx:
                    await fill(tx)
                    sent.append(await tx.send("emails", b"e"))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await failing()
            assert values(cluster) == [[], [], []]
            assert isinstance(sent[0].exception(), TransactionAborted)
            assert cluster.transactions.calls[-1] == "AbortTransaction"
            assert cluster.transactions.ids[NAME].open is None
            with pytest.raises(Closed, match="rolled back"):
                await tx.send("orders", b"v")

    run(test())


def test_an_abort_in_the_block_ends_it_quietly() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            async with mq.transaction(NAME) as tx:
                await fill(tx)
                await tx.abort()
                await tx.abort()
            assert repr(tx) == "<AsyncTransaction of 'billing-1', rolled back>"
            assert values(cluster) == [[], [], []]

    run(test())


def test_many_batches_are_numbered_and_counted_in_each_partition() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            async with mq.transaction(NAME, batch_bytes_max=2000, linger_ms=0) as tx:
                for number in range(300):
                    await tx.send("orders", b"%d" % number, key=b"%d" % number)
            sent = sorted(value for partition in values(cluster) for value in partition)
            assert sent == sorted(b"%d" % number for number in range(300))
            for partition in range(3):
                numbers = [number for at, number in cluster.transactions.numbers if at == partition]
                assert numbers == list(range(len(numbers)))
                assert len(numbers) > 1

    run(test())


def test_partitions_that_are_used_together_are_added_by_one_call() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq, mq.transaction(NAME, linger_ms=0) as tx:
            await fill(tx)
            await (await tx.send("orders", b"v", partition=2))
            await (await tx.send("emails", b"e"))
        assert cluster.transactions.added == [3, 1]

    run(test())


def test_a_table_is_staged() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq, mq.transaction(NAME) as tx:
            await tx.send("orders", b"first", partition=1)
            stored = await tx.send_batch("orders", pa.table({"value": [b"one", b"two"]}), partition=1)
            assert [(each.partition, each.base_offset, each.record_count) for each in await stored] == [(1, -1, 2)]
            assert values(cluster)[1] == []
        assert values(cluster)[1] == [b"first", b"one", b"two"]

    run(test())


def test_an_empty_transaction_commits() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            async with mq.transaction(NAME):
                pass
            assert cluster.transactions.ids[NAME].transactions == {}

    run(test())


# ---- lost answers and new leaders


@pytest.mark.parametrize(
    "name", ["RegisterOwner", "BeginTransaction", "AddPartitions", "CommitTransaction", "AbortTransaction"]
)
def test_a_call_whose_answer_is_lost_is_repeated(name: str) -> None:
    async def test() -> None:
        cluster = cluster_of()
        cluster.transactions.lost[name] = 2
        async with client_of(cluster) as mq:
            async with mq.transaction(NAME) as tx:
                await fill(tx)
            assert tx.visible
            tx = await begun(mq)
            await fill(tx)
            await tx.abort()
        assert values(cluster) == [[b"0"], [b"1"], [b"2"]]
        assert cluster.transactions.calls.count(name) >= 3

    run(test())


def test_a_batch_keeps_its_number_when_its_answer_is_lost() -> None:
    async def test() -> None:
        cluster = cluster_of(1)
        async with client_of(cluster) as mq, mq.transaction(NAME, linger_ms=0) as tx:
            await (await tx.send("orders", b"0"))
            cluster.lose_replies = 1
            await (await tx.send("orders", b"1"))
            await (await tx.send("orders", b"2"))
        assert cluster.values("orders") == [b"0", b"1", b"2"]
        assert cluster.transactions.numbers == [(0, 0), (0, 1), (0, 1), (0, 2)]

    run(test())


def test_a_batch_keeps_its_number_at_the_next_leader() -> None:
    async def test() -> None:
        cluster = cluster_of(1)
        async with client_of(cluster) as mq, mq.transaction(NAME, linger_ms=0) as tx:
            await (await tx.send("orders", b"0"))
            cluster.hold = asyncio.Event()  # the first leader stores the next batch, and never says so
            waiting = await tx.send("orders", b"1")
            await until(lambda: len(cluster.transactions.numbers) == 2)
            cluster.kill(1)
            cluster.hold.set()
            await waiting
        assert cluster.values("orders") == [b"0", b"1"]
        assert cluster.transactions.numbers == [(0, 0), (0, 1), (0, 1)]

    run(test())


def test_the_coordinator_is_followed() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            async with mq.transaction(NAME) as tx:
                await fill(tx)
                for partition in range(16):
                    cluster.move("__coordinator", partition, 3)
            async with mq.transaction(NAME) as tx:
                await fill(tx)
                cluster.kill(3)
        assert values(cluster) == [[b"0", b"0"], [b"1", b"1"], [b"2", b"2"]]

    run(test())


def test_begin_waits_while_too_many_decisions_are_carried_out() -> None:
    async def test() -> None:
        cluster = cluster_of()
        cluster.transactions.refuse("BeginTransaction", QuotaExceeded("too many"), QuotaExceeded("too many"))
        async with client_of(cluster) as mq, mq.transaction(NAME) as tx:
            await fill(tx)
        assert values(cluster) == [[b"0"], [b"1"], [b"2"]]

    run(test())


# ---- the commit


def test_a_commit_without_an_answer_is_of_unknown_outcome_and_may_be_repeated() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster, request_timeout_ms=300) as mq:
            tx = mq.transaction(NAME)
            await tx.begin(timeout=5.0)
            await fill_staged(tx)
            cluster.transactions.lost["CommitTransaction"] = 1000
            with pytest.raises(OutcomeUnknown, match="commit again"):
                await tx.commit()
            cluster.transactions.lost.clear()
            assert await tx.commit(timeout=5.0)
            assert await tx.commit(), "a third call knows the outcome"
        assert values(cluster) == [[b"0"], [b"1"], [b"2"]]

    run(test())


def test_a_repeated_commit_that_another_owner_fenced_is_still_of_unknown_outcome() -> None:
    """The first attempt may have committed it, and the outcome is forgotten since."""

    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq, client_of(cluster) as other:
            tx = await begun(mq)
            await fill_staged(tx)
            cluster.transactions.lost["CommitTransaction"] = 1000
            with pytest.raises(OutcomeUnknown):
                await tx.commit(timeout=0.2)
            cluster.transactions.lost.clear()
            async with other.transaction(NAME) as later:
                await later.send("emails", b"e")
            with pytest.raises(OutcomeUnknown, match="another registration"):
                await tx.commit()
        assert values(cluster) == [[b"0"], [b"1"], [b"2"]]

    run(test())


def test_a_commit_waits_until_the_records_are_visible_or_its_time_is_up() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            tx = await begun(mq)
            cluster.transactions.invisible = 3
            assert await tx.commit()
            tx = await begun(mq)
            cluster.transactions.invisible = 1_000_000
            assert await tx.commit(timeout=0.2) is False
            assert not tx.visible
            async with mq.transaction(NAME) as tx:
                assert await tx.commit("decided") is False

    run(test())


def test_a_commit_is_rolled_back_where_a_batch_is_lost() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            tx = await begun(mq)
            await fill(tx)
            await (await tx.send("emails", b"e"))
            cluster.transactions.forget("emails")
            with pytest.raises(TransactionAborted):
                await tx.commit()
            async with mq.transaction(NAME) as tx:
                await tx.send("emails", b"next")
        assert values(cluster) == [[], [], []]
        assert cluster.values("emails") == [b"next"]

    run(test())


def test_a_commit_that_was_certainly_not_decided_is_rolled_back() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            tx = await begun(mq)
            await fill_staged(tx)
            cluster.transactions.refuse("CommitTransaction", *[DeadlineExceeded("leaders do not answer")] * 1000)
            with pytest.raises(TransactionAborted, match="did not answer"):
                await tx.commit(timeout=0.3)
            assert cluster.transactions.ids[NAME].open is None
        assert values(cluster) == [[], [], []]

    run(test())


def test_a_commit_that_cannot_be_rolled_back_either_ends_by_its_deadline() -> None:
    """Neither leaders nor the coordinator answer: the request to roll back is sent, and its answer not awaited."""

    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            tx = await begun(mq)
            cluster.hold = asyncio.Event()
            await fill(tx)
            cluster.transactions.lost["AbortTransaction"] = 1000
            async with asyncio.timeout(4.0):  # the roll back alone would take 5 s
                with pytest.raises(TransactionAborted, match="not everything was staged in time"):
                    await tx.commit(timeout=0.3)
            assert cluster.transactions.calls.count("AbortTransaction") == 1
            cluster.hold.set()
        assert values(cluster) == [[], [], []]

    run(test())


# ---- time-outs and other owners


def test_after_its_time_out_the_next_calls_are_told() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            tx = await begun(mq)
            await fill(tx)
            cluster.transactions.time_out(NAME)
            with pytest.raises(TransactionAborted, match="rolled back"):
                await tx.commit()
            tx = await begun(mq)
            cluster.transactions.time_out(NAME)
            delivery = await tx.send("orders", b"v")
            with pytest.raises(TransactionAborted):
                await delivery
            with pytest.raises(TransactionAborted):
                await tx.send("orders", b"w")
            with pytest.raises(TransactionAborted):
                await tx.commit()
            async with mq.transaction(NAME) as tx:
                await tx.send("emails", b"e")
        assert values(cluster) == [[], [], []]
        assert cluster.values("emails") == [b"e"]

    run(test())


def test_a_second_program_fences_the_first_one_for_good() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as first, client_of(cluster) as second:
            tx = await begun(first)
            await (await tx.send("orders", b"v"))
            async with second.transaction(NAME) as other:
                await other.send("emails", b"e")
            with pytest.raises(Fenced):
                await tx.commit()
            for _ in range(2):
                with pytest.raises(Fenced, match="make a new client"):
                    await begun(first)
            async with first.transaction("another") as tx, second.transaction(NAME) as other:
                await tx.send("emails", b"f")
        assert values(cluster) == [[], [], []]
        assert cluster.values("emails") == [b"e", b"f"]

    run(test())


def test_a_fenced_owner_stages_nothing() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            tx = await begun(mq)
            await (await tx.send("orders", b"0", partition=0))
            cluster.transactions.register(NAME)
            delivery = await tx.send("orders", b"1", partition=0)
            with pytest.raises(Fenced):
                await delivery
            with pytest.raises(Fenced):
                await tx.commit()
        assert not any(cluster.transactions.staged.values())

    run(test())


# ---- what is refused


def test_a_record_that_is_refused_for_good_ends_the_transaction_with_its_error() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            tx = await begun(mq)
            cluster.transactions.refuse("AddPartitions", InvalidRequest("a topic in memory"))
            await fill(tx)
            with pytest.raises(InvalidRequest, match="in memory"):
                await tx.commit()
            tx = await begun(mq, delivery_timeout_ms=100)
            cluster.refusals.extend([NotReady("not ready")] * 1000)
            await fill(tx, 1)
            with pytest.raises(TransactionAborted, match="not ready"):
                await tx.commit()
            cluster.refusals.clear()
            assert cluster.transactions.ids[NAME].open is None
        assert values(cluster) == [[], [], []]

    run(test())


def test_a_refused_send_leaves_the_transaction_as_it_is() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster, request_timeout_ms=300) as mq, mq.transaction(NAME) as tx:
            await fill(tx)
            with pytest.raises(UnknownTopic):
                await tx.send("missing", b"v")
            with pytest.raises(InvalidRequest, match="delayed"):
                await tx.send("orders", b"v", delay=5)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="message id"):
                await tx.send("orders", b"v", message_id="m")  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="value"):
                await tx.send("orders", "text")  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="wait='soon'"):
                await tx.commit("soon")  # type: ignore[arg-type]
        assert values(cluster) == [[b"0"], [b"1"], [b"2"]]

    run(test())


def test_arguments_are_checked_before_anything_is_sent() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            with pytest.raises(InvalidName):
                mq.transaction("")
            with pytest.raises(InvalidRequest, match="as text"):
                mq.transaction(1)  # type: ignore[arg-type]
            for settings in ({"transaction_timeout_ms": 999}, {"transaction_timeout_ms": "1000"}, {"acks": "leader"}):
                with pytest.raises(InvalidConfig):
                    mq.transaction(NAME, **settings)  # type: ignore[arg-type]
        assert cluster.transactions.calls == []

    run(test())


def test_one_transaction_of_an_id_at_a_time() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            async with mq.transaction(NAME) as tx:
                other = mq.transaction(NAME)
                with pytest.raises(InvalidRequest, match="not begun"):
                    await other.send("orders", b"v")
                with pytest.raises(InvalidRequest, match="open already"):
                    await other.begin()
                with pytest.raises(InvalidRequest, match="begun before"):
                    await tx.begin()
                await fill(tx)
            with pytest.raises(InvalidRequest, match="committed"):
                await tx.abort()
            with pytest.raises(Closed, match="committed"):
                await tx.send_batch("orders", pa.table({"value": [b"v"]}))
        assert values(cluster) == [[b"0"], [b"1"], [b"2"]]

    run(test())


# ---- the ends of clients and tasks


def test_a_closed_client_rolls_back_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        cluster = cluster_of()

        async def closing() -> None:
            async with client_of(cluster) as mq, mq.transaction(NAME) as tx:
                await fill(tx)
                await mq.close()

        with caplog.at_level(logging.WARNING, "tinymq.client"), pytest.raises(Closed, match="rolled back"):
            await closing()
        assert "billing-1" in caplog.text
        assert cluster.transactions.ids[NAME].open is None
        assert values(cluster) == [[], [], []]

    run(test())


def test_a_canceled_task_rolls_back() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:

            async def forever() -> None:
                async with mq.transaction(NAME) as tx:
                    await fill(tx)
                    await asyncio.Event().wait()

            task = asyncio.create_task(forever())
            await until(lambda: "AddPartitions" in cluster.transactions.calls)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert cluster.transactions.ids[NAME].open is None
            async with mq.transaction(NAME) as tx:
                await fill(tx, 1)
        assert values(cluster) == [[b"0"], [], []]

    run(test())


def test_an_abort_that_no_coordinator_hears_is_noted_beside_the_error() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:

            async def failing() -> None:
                async with mq.transaction(NAME) as tx:
                    await fill(tx)
                    cluster.transactions.refuse("AbortTransaction", InvalidRequest("no"))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError) as raised:
                await failing()
            assert "when its time is up: no" in raised.value.__notes__[0]

    run(test())


def test_a_transaction_belongs_to_its_loop() -> None:
    cluster = cluster_of()
    made: list[TransactionCore] = []

    async def first(mq: ClientCore) -> None:
        tx = mq.transaction(NAME)
        await tx.begin()
        made.append(tx)

    async def second() -> None:
        with pytest.raises(InvalidRequest, match="event loop"):
            await made[0].send("orders", b"v")
        with pytest.raises(InvalidRequest, match="event loop"):
            await made[0].commit()

    run(first(client_of(cluster)))
    run(second())

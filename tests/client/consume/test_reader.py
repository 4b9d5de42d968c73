"""Read from a cluster in memory: every record once and in order, from any replica that serves."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run, until
from tests.fakes.batches import TIME_US, payload
from tinymq.base.errors import (
    BrokerUnreachable,
    Closed,
    CorruptData,
    InvalidRequest,
    OffsetOutOfRange,
    TinymqError,
    UnknownPartition,
    UnknownTopic,
)
from tinymq.client import Message, Offset
from tinymq.client.consume.reader import ReaderCore
from tinymq.client.consume.records import TABLE_SCHEMA
from tinymq.format.batch import Codec
from tinymq.proto import tinymq_pb2 as pb

FIRST = datetime.fromtimestamp(TIME_US // 1_000_000, UTC)


def filled(batches: int = 10, rows: int = 10, partitions: int = 1) -> FakeCluster:
    """Append batches of `rows` records, one second apart, with the values v0, v1, ... in each batch."""
    cluster = FakeCluster()
    for at in cluster.add_topic("t", partitions):
        for i in range(batches):
            at.append(payload(rows, value=b"%d-" % i, time_us=TIME_US + i * 1_000_000, codec=Codec(i % 3)))
    return cluster


async def all_of(reader: ReaderCore) -> list[Message]:
    return [message async for message in reader]


@pytest.mark.parametrize("replica", ["leader", "follower", "nearest", "any"])
def test_every_record_comes_once_in_order(replica: str) -> None:
    async def scenario() -> None:
        cluster = filled(partitions=3)
        async with client_of(cluster) as mq:
            messages = await all_of(mq.reader("t", end="latest", replica=replica, fetch_bytes_max=2000))
            for p in range(3):
                mine = [m for m in messages if m.partition == p]
                assert [m.offset for m in mine] == list(range(100))
                assert [m.value for m in mine] == cluster.values("t", p)
            assert messages[0].timestamp == FIRST
            assert (messages[0].topic, messages[0].leader_epoch, messages[0].headers) == ("t", 1, ())

    run(scenario())


PLACES: list[tuple[Any, Any, range]] = [
    ("earliest", "latest", range(100)),
    (Offset(7), Offset(13), range(7, 13)),
    (Offset(95), None, range(95, 100)),
    (FIRST + timedelta(seconds=3), FIRST + timedelta(seconds=5), range(30, 50)),
    ({0: Offset(50)}, {0: FIRST + timedelta(seconds=6)}, range(50, 60)),
    (FIRST + timedelta(days=1), "latest", range(0)),
    (Offset(100), None, range(0)),
    (Offset(7), Offset(7), range(0)),
    ("latest", "latest", range(0)),
]


@pytest.mark.parametrize(("start", "end", "expected"), PLACES)
def test_start_and_end(start: Any, end: Any, expected: range) -> None:
    async def scenario() -> None:
        async with client_of(filled()) as mq:
            reader = mq.reader("t", start=start, end=end, fetch_bytes_max=1000)
            table = await reader.to_arrow()
            assert table.column("offset").to_pylist() == list(expected)
            if end is not None:
                messages = await all_of(mq.reader("t", start=start, end=end))
                assert [m.offset for m in messages] == list(expected)

    run(scenario())


BAD_PLACES = [5, "begin", FIRST.replace(tzinfo=None), -1.5, None, Offset(-1), {0: "nowhere"}]


@pytest.mark.parametrize("place", BAD_PLACES, ids=str)
def test_an_invalid_place_is_refused_at_once(place: Any) -> None:
    async def scenario() -> None:
        async with client_of(filled()) as mq:
            with pytest.raises(TinymqError):
                mq.reader("t", start=place)

    run(scenario())


def test_partitions_that_are_not_there() -> None:
    async def scenario() -> None:
        async with client_of(filled()) as mq:
            for reader in (mq.reader("t", [1]), mq.reader("t", start={1: "earliest"})):
                with pytest.raises(UnknownPartition):
                    await reader.poll(1)
            with pytest.raises(UnknownTopic):
                await mq.reader("nope").poll(1)

    run(scenario())


@pytest.mark.parametrize(("replica", "longest_ms"), [("leader", 40), ("follower", 10)])
def test_a_reader_of_idle_partitions_fetches_less_often(replica: str, longest_ms: int) -> None:
    async def scenario() -> None:
        cluster = filled(batches=1, rows=1)
        asked: list[int] = []
        fetch = cluster.fetch

        def note(broker: int, request: pb.FetchRequest) -> pb.FetchReply | None:
            if not asked or asked[-1] != request.max_wait_ms:
                asked.append(request.max_wait_ms)
            return fetch(broker, request)

        cluster.fetch = note  # type: ignore[method-assign]
        async with client_of(cluster) as mq, mq.reader("t", replica=replica, fetch_wait_ms=10) as reader:
            assert len(await reader.poll(5)) == 1
            async with asyncio.timeout(20):
                while asked[-1] != longest_ms:
                    assert await reader.poll(0.02) == []
                await mq.send("t", b"new")
                asked.clear()
                assert len(await reader.poll(5)) == 1
                while 10 not in asked:  # as at the beginning
                    assert await reader.poll(0.02) == []
            assert max(asked) <= longest_ms

    run(scenario())


def test_poll_gives_what_there_is_or_nothing() -> None:
    async def scenario() -> None:
        cluster = filled(batches=1, rows=10)
        async with client_of(cluster) as mq:
            reader = mq.reader("t", fetch_wait_ms=20)
            assert [m.offset for m in await reader.poll(1, max_records=4)] == [0, 1, 2, 3]
            assert reader.position() == {0: 4}
            assert [m.offset for m in await reader.poll(1)] == list(range(4, 10))
            assert await reader.poll(0.05) == []
            assert not reader.at_end
            await mq.send("t", b"new")
            (message,) = await reader.poll(1)
            assert message.value == b"new"
            with pytest.raises(InvalidRequest):
                await reader.poll(1, max_records=0)
            ended = mq.reader("t", end=Offset(3))
            assert len(await ended.poll(1)) == 3
            assert ended.at_end
            assert await ended.poll(60) == []
            await reader.close()
            with pytest.raises(Closed):
                await reader.poll(1)

    run(scenario())


def test_a_short_poll_does_not_keep_a_slow_opening_from_ending() -> None:
    async def scenario() -> None:
        cluster = filled(batches=1)
        cluster.kill(1, elect=False)
        async with client_of(cluster) as mq:
            reader = mq.reader("t")
            assert await reader.poll(0.001) == []
            cluster.start(1)
            got: list[Message] = []
            while not got:
                got = await reader.poll(0.01)
            assert got[0].offset == 0

    run(scenario())


def test_tables_have_offsets_and_go_on_where_they_ended() -> None:
    async def scenario() -> None:
        async with client_of(filled(partitions=2)) as mq:
            reader = mq.reader("t")
            first = await reader.to_arrow(limit=37)
            rest = await reader.to_arrow()
            assert first.num_rows == 37
            assert first.schema.equals(TABLE_SCHEMA)
            whole = pa.concat_tables([first, rest]).sort_by([("partition", "ascending"), ("offset", "ascending")])
            assert whole.column("offset").to_pylist() == [*range(100), *range(100)]
            assert whole.column("partition").to_pylist() == [0] * 100 + [1] * 100
            assert (await reader.to_arrow()).num_rows == 0
            mixed = mq.reader("t", [0])
            await mixed.poll(1, max_records=5)
            assert (await mixed.to_arrow()).column("offset").to_pylist() == list(range(5, 100))

    run(scenario())


def test_a_table_ends_at_the_end_seen_at_opening() -> None:
    async def scenario() -> None:
        cluster = filled()
        async with client_of(cluster) as mq:
            async with mq.reader("t") as reader:
                await mq.send("t", b"later")
                assert (await reader.to_arrow()).num_rows == 100
            assert (await mq.reader("t").to_arrow()).num_rows == 101

    run(scenario())


def test_buffered_rows_are_bounded() -> None:
    async def scenario() -> None:
        cluster = filled(batches=200)
        async with client_of(cluster) as mq:
            reader = mq.reader("t", buffer_bytes_max=20_000, fetch_bytes_max=2_000)
            await reader.poll(1, max_records=1)
            for _ in range(300):
                await asyncio.sleep(0)
            waiting = sum(chunk.bytes for chunk in reader.buffer.ready)
            assert waiting < 30_000
            assert (await reader.to_arrow()).num_rows == 1999

    run(scenario())


@pytest.mark.parametrize("replica", ["leader", "follower", "any"])
@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_a_replica_that_dies_is_left_at_the_next_offset(fault: str, replica: str) -> None:
    async def scenario() -> None:
        cluster = filled(batches=50, partitions=3)
        async with client_of(cluster) as mq:
            reader = mq.reader("t", replica=replica, fetch_bytes_max=2_000, buffer_bytes_max=4_000, fetch_wait_ms=50)
            seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
            for message in await reader.poll(5, max_records=100):
                seen[message.partition].append(message.offset)
            getattr(cluster, fault)(2)
            while sum(map(len, seen.values())) < 1500:
                for message in await reader.poll(5):
                    seen[message.partition].append(message.offset)
            assert seen == {p: list(range(500)) for p in range(3)}

    run(scenario())


def test_a_stale_follower_is_left() -> None:
    async def scenario() -> None:
        cluster = filled(batches=3)
        at = cluster.topics["t"][1][0]
        at.shown[2] = at.shown[3] = 10  # neither follower applies records
        async with client_of(cluster) as mq:
            reader = mq.reader("t", replica="follower", fetch_wait_ms=10, stale_ms_max=50)
            got: list[int] = []
            while len(got) < 30:
                got += [m.offset for m in await reader.poll(5)]
            assert got == list(range(30))

    run(scenario())


def test_replicas_are_asked_with_the_newest_epoch_that_any_of_them_told() -> None:
    """A broker that has not heard of the epoch answers NotReady, instead of reading a log that may be truncated."""

    async def scenario() -> None:
        cluster = filled(batches=20)
        asked: list[tuple[int, int]] = []  # (the epoch, the reader's)
        fetch = cluster.fetch

        def note(broker: int, request: pb.FetchRequest) -> pb.FetchReply | None:
            asked.append((cluster.topics["t"][1][0].epoch, request.leader_epoch))
            return fetch(broker, request)

        cluster.fetch = note  # type: ignore[method-assign]
        async with client_of(cluster) as mq:
            reader = mq.reader("t", replica="follower", fetch_bytes_max=1000, buffer_bytes_max=2000, fetch_wait_ms=10)
            await reader.poll(5, max_records=10)
            cluster.move("t", 0, leader=2)
            while asked[-1] != (2, 2):
                assert await reader.poll(5), "the reader never learned of the new epoch"
            assert (1, 1) in asked
            assert {epoch for _, epoch in asked} <= {0, 1, 2}
            assert [epoch for _, epoch in asked] == sorted(epoch for _, epoch in asked), "it forgot one"

    run(scenario())


def test_a_damaged_replica_is_left_and_damage_everywhere_raises() -> None:
    async def scenario() -> None:
        cluster = filled()
        cluster.corrupt = {2, 3}
        async with client_of(cluster) as mq:
            assert (await mq.reader("t", replica="follower").to_arrow()).num_rows == 100
            cluster.corrupt = {1, 2, 3}
            reader = mq.reader("t", replica="any", unreachable_ms_max=200)
            with pytest.raises(CorruptData):
                await reader.to_arrow()

    run(scenario())


def test_a_partition_without_a_serving_replica_raises_with_the_reasons() -> None:
    async def scenario() -> None:
        cluster = filled()
        async with client_of(cluster) as mq:
            reader = mq.reader("t", replica="any", unreachable_ms_max=200)
            assert await reader.poll(1)
            for broker in cluster.nodes:
                cluster.kill(broker, elect=False)
            with pytest.raises(BrokerUnreachable, match="connection re"):
                await all_of(reader)
            with pytest.raises(BrokerUnreachable):
                await reader.poll(1)

    run(scenario())


@pytest.mark.parametrize("replica", ["leader", "follower", "nearest", "any"])
def test_brokers_that_refuse_at_once_are_not_asked_without_end(replica: str) -> None:
    async def scenario() -> None:
        cluster = filled()
        reach, asked = cluster.reach, []
        async with client_of(cluster) as mq:
            reader = mq.reader("t", replica=replica, unreachable_ms_max=500)
            await reader.poll(1)
            cluster.down.update(cluster.nodes)
            for broker in cluster.nodes:
                cluster.break_streams(broker)
            cluster.reach = lambda broker: asked.append(broker) or reach(broker)  # type: ignore[method-assign, func-returns-value]
            with pytest.raises(BrokerUnreachable):
                await reader.poll(5)
        assert len(asked) < 100

    run(scenario())


def test_offsets_out_of_range() -> None:
    async def scenario() -> None:
        cluster = filled()
        cluster.topics["t"][1][0].log_start = 20
        async with client_of(cluster) as mq:
            with pytest.raises(OffsetOutOfRange) as raised:
                await mq.reader("t", start=Offset(5)).poll(1)
            assert raised.value.detail["log_start"] == "20"
            with pytest.raises(OffsetOutOfRange):
                await mq.reader("t", start=Offset(101)).poll(1)
            (first, *_) = await mq.reader("t").poll(1)
            assert first.offset == 20

    run(scenario())


@pytest.mark.parametrize("on_trimmed", ["raise", "skip"])
@pytest.mark.parametrize("read", [0, 40])
def test_records_that_took_the_place_of_what_was_read_are_not_gone_on_with(on_trimmed: str, read: int) -> None:
    """Not by a reader that only knows where the end was, either; one that is opened afterwards reads them."""

    async def scenario() -> None:
        cluster = filled()
        at = cluster.topics["t"][1][0]
        async with client_of(cluster) as mq:
            start = Offset(60) if read else "latest"
            reader = mq.reader("t", start=start, on_trimmed=on_trimmed, fetch_wait_ms=20)
            seen = 0
            while seen < read:
                seen += len(await reader.poll(5))
            await reader.open()
            at.lose(30)
            for _ in range(9):
                at.append(payload(10))
            at.log_start = 110
            cluster.notify()
            with pytest.raises(OffsetOutOfRange) as raised:
                await reader.poll(5)
            assert raised.value.detail == {"log_start": "110", "history_start": "30"}
            assert reader.buffer.cursors[0].skipped == 0
            assert [m.offset for m in await mq.reader("t", start=Offset(110)).poll(5, 10)] == list(range(110, 120))

    run(scenario())


@pytest.mark.parametrize("lost", [60, 100])
def test_a_reader_goes_on_before_what_was_lost_and_into_what_comes_then(lost: int) -> None:
    async def scenario() -> None:
        cluster = filled()
        at = cluster.topics["t"][1][0]
        async with client_of(cluster) as mq:
            reader = mq.reader("t", fetch_bytes_max=1, buffer_bytes_max=1, fetch_wait_ms=20)
            offsets = [m.offset for m in await reader.poll(5, 10)]
            at.lose(lost)
            for _ in range(3):
                at.append(payload(10))
            cluster.notify()
            while len(offsets) < lost + 30:
                offsets += [m.offset for m in await reader.poll(5)]
            assert offsets == list(range(lost + 30))
            at.lose(lost + 10)
            at.append(payload(80))
            cluster.notify()
            with pytest.raises(OffsetOutOfRange):
                await reader.poll(5)

    run(scenario())


def test_a_reader_tails_and_ends_with_its_topic() -> None:
    async def scenario() -> None:
        cluster = filled(batches=1)
        async with client_of(cluster) as mq:
            reader = mq.reader("t", start="latest", fetch_wait_ms=20)
            reading = asyncio.create_task(reader.__anext__())
            await until(lambda: any(r.startswith("ListOffsets") for r in cluster.requests))
            await mq.send("t", b"tail", key=b"k", headers=[("a", b"1"), ("a", None)], timestamp=FIRST)
            message = await reading
            assert (message.key, message.value, message.timestamp) == (b"k", b"tail", FIRST)
            assert message.headers == (("a", b"1"), ("a", None))
            assert (message.header("a"), message.header("b")) == (None, None)
            cluster.remove_topic("t")
            cluster.notify()
            with pytest.raises(UnknownTopic):
                await reader.__anext__()

    run(scenario())


def test_the_rack_nearby_is_preferred() -> None:
    async def scenario() -> None:
        cluster = filled()
        served: list[int] = []
        fetch = cluster.fetch
        cluster.fetch = lambda broker, request: served.append(broker) or fetch(broker, request)  # type: ignore[method-assign,func-returns-value]
        async with client_of(cluster, rack="rack-3") as mq:
            await mq.reader("t", replica="nearest").to_arrow()
        assert set(served) == {3}

    run(scenario())


@pytest.mark.parametrize("outage", [False, True])
def test_a_client_closed_at_any_moment_leaves_no_complaint(outage: bool) -> None:
    complaints: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        for turns in range(100):  # after about twenty turns of the loop the reader has all records of the poll
            cluster = filled()
            mq = client_of(cluster)
            reading = asyncio.create_task(mq.reader("t", fetch_bytes_max=1).poll(5, 1000))
            for turn in range(turns):
                await asyncio.sleep(0)
                if outage and turn == turns // 2:
                    for broker in cluster.nodes:
                        cluster.kill(broker, elect=False)
            await mq.close()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        gc.collect()

    run(scenario())
    gc.collect()
    assert complaints == []


def test_a_reader_whose_whole_range_is_gone_ends() -> None:
    async def scenario() -> None:
        cluster = filled()
        cluster.topics["t"][1][0].log_start = 50
        async with client_of(cluster) as mq:
            reader = mq.reader("t", start=Offset(5), end=Offset(20), on_trimmed="skip")
            assert await all_of(reader) == []
            assert (reader.skipped, reader.at_end) == (15, True)
            assert (await mq.reader("t", start=Offset(5), end=Offset(20), on_trimmed="skip").to_arrow()).num_rows == 0

    run(scenario())

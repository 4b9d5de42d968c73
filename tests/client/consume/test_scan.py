"""Scan a cluster in memory: exactly the planned rows, even if replicas die, lag, lie or come back meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from tests.client.consume.test_reader import filled
from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run
from tinymq.base.errors import (
    BrokerUnreachable,
    Closed,
    CorruptData,
    InvalidName,
    InvalidRequest,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from tinymq.client.consume import partition_fetcher
from tinymq.client.consume.records import TABLE_SCHEMA
from tinymq.client.consume.scan import ScanCore
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import to_wire

FOLLOWERS_FIRST = ((2, 3), (1,))


async def offsets_of(scan: ScanCore) -> list[int]:
    """Return the offsets of all rows that are left in a scan."""
    found: list[int] = []
    async with scan:
        async for batch in scan:
            assert batch.num_rows
            found += batch.column("offset").to_pylist()
            assert scan.offset == found[-1] + 1
    return found


RANGES = [(0, 100), (0, 0), (100, 100), (7, 13), (19, 20), (95, 100), (0, 1), (40, 50)]


@pytest.mark.parametrize(("start", "end"), RANGES)
def test_a_scan_gives_exactly_its_range(start: int, end: int) -> None:
    async def scenario() -> None:
        cluster = filled(partitions=2)
        async with client_of(cluster) as mq, mq.scan("t", 1, start, end, replicas=FOLLOWERS_FIRST) as scan:
            batches = [batch async for batch in scan]
            rows = pa.Table.from_batches(batches, schema=TABLE_SCHEMA)
            assert rows.column("offset").to_pylist() == list(range(start, end))
            assert rows.column("value").to_pylist() == cluster.values("t", 1)[start:end]
            assert set(rows.column("partition").to_pylist()) <= {1}
            assert (scan.offset, scan.skipped) == (end, 0)
            assert set(scan.served) <= {1, 3}, "partition 1 is led by broker 2"
            assert bool(scan.served) == (start < end)
            assert [batch async for batch in scan] == []

    run(scenario())


@pytest.mark.parametrize(
    ("replicas", "replica", "served"),
    [
        (((3,), (2,), (1,)), "leader", {3}),
        (((2,), (3,)), "follower", {2}),
        (((1,), (2, 3)), "follower", {1}),
        (((), (9,), (3,)), "leader", {3}),
        (None, "leader", {1}),
    ],
)
def test_the_first_tier_serves_all_of_it(replicas: Any, replica: str, served: set[int]) -> None:
    async def scenario() -> None:
        async with client_of(filled()) as mq:
            scan = mq.scan("t", 0, 0, 100, replicas=replicas, replica=replica, fetch_bytes_max=500)
            assert await offsets_of(scan) == list(range(100))
            assert set(scan.served) == served
            assert sum(scan.served.values()) > 1000

    run(scenario())


def test_the_present_leader_is_asked_last() -> None:
    async def scenario() -> None:
        cluster = filled()
        async with client_of(cluster) as mq:
            first = mq.scan("t", 0, 0, 100, replicas=((1,), (3,)), leader_last=True)
            assert await offsets_of(first) == list(range(100))
            assert set(first.served) == {3}
            cluster.move("t", 0, 3)
            moved = mq.scan("t", 0, 0, 100, replicas=((3,), (1,)), leader_last=True, fetch_bytes_max=500)
            assert await offsets_of(moved) == list(range(100))
            assert moved.served[3] < 1000 < moved.served[1], "it said that it leads now, and was left"
        with pytest.raises(InvalidRequest):
            mq.scan("t", 0, 0, 100, leader_last=True)

    run(scenario())


def test_of_a_partition_that_was_moved_away_any_replica_serves() -> None:
    async def scenario() -> None:
        async with client_of(filled()) as mq:
            assert await offsets_of(mq.scan("t", 0, 0, 100, replicas=((8, 9),))) == list(range(100))

    run(scenario())


@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_a_replica_that_dies_is_left_at_the_next_offset(fault: str) -> None:
    async def scenario() -> None:
        cluster = filled(batches=50)
        async with client_of(cluster) as mq:
            tiers = ((2,), (3,), (1,))
            scan = mq.scan("t", 0, 3, 497, replicas=tiers, fetch_bytes_max=500, buffer_bytes_max=2000, wait_ms=10)
            found = (await anext(scan)).column("offset").to_pylist()
            getattr(cluster, fault)(2, elect=False)
            async for batch in scan:
                found += batch.column("offset").to_pylist()
            assert found == list(range(3, 497))
            assert set(scan.served) == {2, 3}, "the leader was not needed"
            began_s = asyncio.get_running_loop().time()
            again = mq.scan("t", 0, 0, 9, replicas=tiers, wait_ms=600_000)
            assert await offsets_of(again) == list(range(9))
            assert asyncio.get_running_loop().time() - began_s < 10, "who is silent is not behind"

    run(scenario())


def test_a_replica_that_comes_back_is_preferred_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_fetcher, "RECONSIDERED_S", 0.0)

    async def scenario() -> None:
        cluster = filled(batches=50)
        cluster.kill(2, elect=False)
        async with client_of(cluster, metadata_max_age_ms=50) as mq:  # a refresh tells that it is back
            scan = mq.scan("t", 0, 0, 500, replicas=((2,), (1,)), fetch_bytes_max=500, buffer_bytes_max=1500)
            await anext(scan)
            assert set(scan.served) == {1}
            cluster.start(2)
            while 2 not in scan.served:
                await asyncio.sleep(0.02)  # while the replica is avoided
                await anext(scan)
            reached = scan.offset
            assert await offsets_of(scan) == list(range(reached, 500))

    run(scenario())


def test_a_reader_waits_for_a_lagging_replica_and_then_leaves_it() -> None:
    async def scenario() -> None:
        cluster = filled()
        at = cluster.topics["t"][1][0]
        at.shown = {2: 30}
        async with client_of(cluster) as mq:
            patient = mq.scan("t", 0, 0, 100, replicas=((2,), (1,)), wait_ms=60_000)
            async with patient:
                found = [(await anext(patient)).num_rows for _ in range(3)]
                assert sum(found) == 30
                assert patient.offset == 30
                at.shown = {}
                cluster.notify()
                assert await offsets_of(patient) == list(range(30, 100))
                assert set(patient.served) == {2}, "the range is there, later"
            at.shown = {2: 30}
            hasty = mq.scan("t", 0, 0, 100, replicas=((2,), (1,)), wait_ms=20)
            assert await offsets_of(hasty) == list(range(100))
            assert set(hasty.served) == {1, 2}
            whole = mq.scan("t", 0, 50, 100, replicas=((2,), (1,)), wait_ms=20)
            assert await offsets_of(whole) == list(range(50, 100))
            assert set(whole.served) == {1}, "it shows nothing of that"

    run(scenario())


def test_damaged_frames_are_never_given() -> None:
    async def scenario() -> None:
        cluster = filled()
        cluster.corrupt = {2}
        async with client_of(cluster) as mq:
            scan = mq.scan("t", 0, 0, 100, replicas=((2,), (3,)), fetch_bytes_max=500)
            assert await offsets_of(scan) == list(range(100))
            cluster.corrupt = {2, 3}
            with pytest.raises(CorruptData):
                await offsets_of(mq.scan("t", 0, 0, 100, replicas=((2,), (3,)), unreachable_ms_max=200))

    run(scenario())


@pytest.mark.parametrize("finds", [True, False])
def test_a_broker_that_sent_damage_is_made_to_verify(monkeypatch: pytest.MonkeyPatch, finds: bool) -> None:
    """A broker sends unverified frames. Asked to verify, it finds the damage, unless the network has caused it."""
    asked: list[tuple[int, bool]] = []

    async def scenario() -> None:
        cluster = filled()
        fetch = cluster.fetch

        def looking(broker: int, request: pb.FetchRequest) -> pb.FetchReply | None:
            asked.append((broker, request.verify))
            cluster.corrupt = {2} if broker == 2 and not request.verify and len(asked) < 3 else set()
            if finds and request.verify:
                failed = CorruptData("damaged, and now it is known")
                return pb.FetchReply(request_id=request.request_id, error=to_wire(failed))
            return fetch(broker, request)

        monkeypatch.setattr(cluster, "fetch", looking)
        async with client_of(cluster) as mq:
            scan = mq.scan("t", 0, 0, 100, replicas=((2,), (3,)), fetch_bytes_max=1 << 20)
            assert await offsets_of(scan) == list(range(100))
            assert set(scan.served) == {3 if finds else 2}

    run(scenario())
    assert asked[:2] == [(2, False), (2, True)]
    assert all(not verify for _, verify in asked[2:])


async def failure_of(cluster: FakeCluster, start: int = 0, **settings: Any) -> tuple[type, str]:
    # A machine that stands still for half a second must not look like brokers that are silent.
    async with client_of(cluster, request_timeout_ms=300, attempt_timeout_ms=10_000) as mq:
        scan = mq.scan("t", 0, start, 100, replicas=FOLLOWERS_FIRST, wait_ms=10, unreachable_ms_max=300, **settings)
        with pytest.raises(Exception) as raised:  # noqa: PT011
            await offsets_of(scan)
        with pytest.raises(type(raised.value)):
            await anext(scan)
        return type(raised.value), str(raised.value)


def test_when_no_broker_serves_the_error_has_each_brokers_reason() -> None:
    async def scenario() -> None:
        cluster = filled()
        cluster.topics["t"][1][0].shown = {1: 20, 3: 10}
        cluster.kill(2, elect=False)
        kind, text = await failure_of(cluster)
        assert kind is OffsetNotAvailable
        assert "fake:1: it is behind: its records end at 20" in text
        assert "fake:2: connection refused" in text
        assert "fake:3: beyond the end" in text or "fake:3: it is behind" in text
        for broker in (1, 3):
            cluster.kill(broker, elect=False)
        cluster.topics["t"][1][0].shown = {}
        assert (await failure_of(cluster))[0] is BrokerUnreachable

    run(scenario())


def test_an_old_leader_that_is_behind_is_left_like_any_other() -> None:
    """A deposed leader that does not know it answers OffsetOutOfRange for offsets beyond its own end."""

    async def scenario() -> None:
        cluster = filled()
        fetch = cluster.fetch

        def fenced(broker: int, request: pb.FetchRequest) -> pb.FetchReply | None:
            reply = fetch(broker, request)
            if broker == 2 and request.offset > 40:
                assert reply is not None
                reply.frames = b""
                reply.error.code, reply.error.detail["high_watermark"] = "OffsetOutOfRange", "40"
                reply.error.detail["log_start"] = "0"
            return reply

        cluster.fetch = fenced  # type: ignore[method-assign]
        async with client_of(cluster) as mq:
            scan = mq.scan("t", 0, 60, 100, replicas=((2,), (3,)))
            assert await offsets_of(scan) == list(range(60, 100))

    run(scenario())


@pytest.mark.parametrize(("log_start", "left"), [(20, 80), (99, 1), (100, 0), (130, 0)])
def test_removed_records_raise_or_are_skipped_and_counted(log_start: int, left: int) -> None:
    async def scenario() -> None:
        cluster = filled(batches=14)
        cluster.topics["t"][1][0].log_start = log_start
        async with client_of(cluster) as mq:
            with pytest.raises(OffsetOutOfRange) as raised:
                await offsets_of(mq.scan("t", 0, 5, 100, replicas=FOLLOWERS_FIRST))
            assert raised.value.detail["log_start"] == str(log_start)
            scan = mq.scan("t", 0, 5, 100, replicas=FOLLOWERS_FIRST, on_trimmed="skip")
            assert await offsets_of(scan) == list(range(100))[100 - left :]
            assert (scan.skipped, scan.offset) == (95 - left, 100)

    run(scenario())


@pytest.mark.parametrize("on_trimmed", ["raise", "skip"])
def test_records_that_took_the_place_of_others_are_not_gone_on_with(on_trimmed: str) -> None:
    async def scenario() -> None:
        cluster = filled()
        at = cluster.topics["t"][1][0]
        async with client_of(cluster) as mq:
            async with mq.scan("t", 0, 0, 100, fetch_bytes_max=1, buffer_bytes_max=1, on_trimmed=on_trimmed) as scan:
                while scan.offset < 60:
                    await anext(scan)
                at.lose(30)
                for frame in range(9):
                    at.append(_other(frame))
                with pytest.raises(OffsetOutOfRange) as raised:
                    await offsets_of(scan)
                assert raised.value.detail["history_start"] == "30"
            fresh = await offsets_of(mq.scan("t", 0, 60, 100))
            assert fresh == list(range(60, 100)), "who begins now reads what lies there now"

    run(scenario())


def _other(number: int) -> bytes:
    from tests.fakes.batches import payload

    return payload(10, value=b"%d+" % number)


def test_buffered_rows_are_bounded() -> None:
    async def scenario() -> None:
        cluster = filled(batches=200)
        async with (
            client_of(cluster) as mq,
            mq.scan("t", 0, 0, 2000, buffer_bytes_max=20_000, fetch_bytes_max=2_000) as s,
        ):
            await anext(s)
            for _ in range(300):
                await asyncio.sleep(0)
            assert sum(s.served.values()) < 30_000
            assert len(await offsets_of(s)) == 1990

    run(scenario())


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": 5}, {"topic": "no name!"}, {"partition": "0"}, {"start": -1}, {"start": "earliest"}, {"start": 101},
        {"end": None}, {"end": 1 << 63}, {"replicas": 2}, {"replicas": (2, 3)}, {"replicas": ()}, {"replicas": ((),)},
        {"replicas": ((0,),)}, {"replicas": ((2,), (2,))}, {"replicas": (("2",),)}, {"wait_ms": -1}, {"wait_ms": None},
        {"wait_ms": 1e9}, {"scan_id": "x" * 250}, {"scan_id": "a/b"}, {"replica": "nobody"}, {"fetch_bytes": 5},
        {"topic_id": "0" * 16}, {"topic_id": b"0" * 15},
    ],
    ids=str,
)  # fmt: skip
def test_an_invalid_scan_is_refused_at_once(wrong: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with client_of(filled()) as mq:
            with pytest.raises((InvalidRequest, InvalidName)) as raised:
                mq.scan(**{"topic": "t", "partition": 0, "start": 0, "end": 100, **wrong})
            assert raised.value.hint

    run(scenario())


def test_missing_names_are_reported() -> None:
    async def scenario() -> None:
        cluster = filled()
        async with client_of(cluster) as mq:
            with pytest.raises(UnknownTopic):
                await offsets_of(mq.scan("nope", 0, 0, 5))
            with pytest.raises(UnknownPartition):
                await offsets_of(mq.scan("t", 1, 0, 5))
            async with mq.scan("t", 0, 0, 100, fetch_bytes_max=1, buffer_bytes_max=1) as scan:
                await anext(scan)
                cluster.remove_topic("t")
                with pytest.raises(UnknownTopic):
                    await offsets_of(scan)

    run(scenario())


@pytest.mark.parametrize("knows", ["nothing", "the old one", "the new one"])
def test_another_topic_of_the_same_name_is_refused(knows: str) -> None:
    """The planned offsets belong to other records, whether or not the client has heard of the new topic."""

    async def scenario() -> None:
        cluster = filled()
        old_id = cluster.topics["t"][0]
        async with client_of(cluster) as mq:
            if knows == "the old one":
                assert await offsets_of(mq.scan("t", 0, 0, 100, topic_id=old_id)) == list(range(100))
            cluster.remove_topic("t")
            (made,) = cluster.add_topic("t")
            made.append(_other(1))
            new_id = cluster.topics["t"][0]
            if knows == "the new one":
                assert await offsets_of(mq.scan("t", 0, 0, 10)) == list(range(10))
            with pytest.raises(UnknownTopic, match="created again") as raised:
                await offsets_of(mq.scan("t", 0, 0, 10, topic_id=old_id))
            assert "plan the read again" in raised.value.hint
            assert await offsets_of(mq.scan("t", 0, 0, 10, topic_id=new_id)) == list(range(10)), "known of late"

    run(scenario())


def test_a_closed_scan_raises_closed_and_closes_with_its_client() -> None:
    async def scenario() -> None:
        cluster = filled()
        async with client_of(cluster) as mq:
            unused = mq.scan("t", 0, 0, 100)
            scan = mq.scan("t", 0, 0, 100, fetch_bytes_max=1, buffer_bytes_max=1)
            await anext(scan)
            await scan.close()
            await scan.close()
            open_one = mq.scan("t", 0, 0, 100, fetch_bytes_max=1, buffer_bytes_max=1)
            await anext(open_one)
        for closed in (scan, unused, open_one):
            with pytest.raises(Closed):
                await offsets_of(closed)

    run(scenario())


def test_the_quicker_one_of_two_serves() -> None:
    async def scenario() -> None:
        cluster = filled()
        async with client_of(cluster) as mq:
            await mq.admin.brokers()
            for slow, quick in ((2, 3), (3, 2)):
                core = mq.cluster()
                core.health = type(core.health)()
                core.health.served(cluster.addresses[slow], 0.1)
                core.health.served(cluster.addresses[quick], 0.001)
                scan = mq.scan("t", 0, 0, 100, replicas=FOLLOWERS_FIRST)
                assert await offsets_of(scan) == list(range(100))
                assert set(scan.served) == {quick}

    run(scenario())

"""Scans and many holds on a real cluster: which broker served what, and the bounds for hostile clients."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from tests.fakes.raw_client import WAIT_S, Raw, entries
from tinymq import Client, Offset
from tinymq.base.errors import (
    DeadlineExceeded,
    InvalidName,
    InvalidRequest,
    OffsetOutOfRange,
    OutcomeUnknown,
    UnknownPartition,
)
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.proto.bounds import REPEATED_MAX
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

ID = b"h" * 16
RANGES_MAX = REPEATED_MAX["HoldRequest.ranges"]


@pytest.fixture(scope="module")
def mq(tinymq_cluster: Cluster) -> Client:
    return tinymq_cluster.client()


def topic_of(cluster: Cluster, mq: Client, name: str, partitions: int = 1, records: int = 50) -> dict[int, int]:
    """Create a topic. Returns the leader of each partition once every replica returns all records."""
    described = mq.admin.create_topic(name, partitions=partitions)
    with mq.producer(batch_bytes_max=2000) as producer:
        for number in range(records * partitions):
            producer.send(name, b"%d" % number * 20, partition=number % partitions)
    for at in described.partitions:
        cluster.wait_leader(name, at.partition)

    def shown() -> bool:
        replicas = [
            app.serving.broker.replica_host.get(described.topic_id, at.partition)  # type: ignore[union-attr]
            for app in cluster.brokers.values()
            for at in described.partitions
        ]
        return all(replica is not None and replica.high_watermark == records for replica in replicas)

    cluster.wait_until(shown)
    return {at.partition: cluster.wait_leader(name, at.partition) for at in described.partitions}


def scanned_from_followers(cluster: Cluster, mq: Client, leaders: dict[int, int]) -> str:
    """Return the id of a scan of offsets 5 to 45 of "counted" during which no leader changed. On a busy machine a
    leader may change; then the scan is repeated.
    """
    while True:
        scan_id = f"q-{secrets.token_hex(4)}"
        for partition, leader in leaders.items():
            followers = tuple(broker for broker in (1, 2, 3) if broker != leader)
            with mq.scan("counted", partition, 5, 45, scan_id=scan_id, replicas=(followers,)) as scan:
                assert sum(batch.num_rows for batch in scan) == 40
            assert sum(scan.served.values()) > 1000
        now = {partition: cluster.wait_leader("counted", partition) for partition in leaders}
        if now == leaders:
            return scan_id
        leaders.update(now)


def test_brokers_know_what_they_sent_to_which_scan(tinymq_cluster: Cluster, mq: Client) -> None:
    leaders = topic_of(tinymq_cluster, mq, "counted", partitions=3)
    scan_id = scanned_from_followers(tinymq_cluster, mq, leaders)
    found = mq.admin.describe_scan(scan_id)
    assert (found.scan_id, found.silent, found.bytes_by("leader")) == (scan_id, (), 0)
    assert {each.partition: each.records for each in found.served} == {0: 40, 1: 40, 2: 40}
    assert all(each.broker != leaders[each.partition] and each.topic == "counted" for each in found.served)
    assert all(0 <= each.last_s < 60 for each in found.served)
    one = leaders[1]
    with mq.scan("counted", 1, 0, 50, scan_id=scan_id, replicas=((one,),)) as scan:
        assert sum(batch.num_rows for batch in scan) == 50
    led = [each for each in mq.admin.describe_scan(scan_id).served if each.role == "leader"]
    assert [(each.broker, each.partition, each.records, each.bytes) for each in led] == [(one, 1, 50, scan.served[one])]
    (summary,) = [each for each in mq.admin.list_scans() if each.scan_id == scan_id]
    assert (summary.records, summary.leader_bytes) == (170, scan.served[one])
    assert summary.bytes == sum(each.bytes for each in mq.admin.describe_scan(scan_id).served)
    assert mq.admin.describe_scan("unheard-of").served == ()
    with pytest.raises(InvalidName):
        mq.admin.describe_scan("no name!")


def test_no_more_is_sent_than_the_range(tinymq_cluster: Cluster, mq: Client) -> None:
    (leader,) = topic_of(tinymq_cluster, mq, "ended", records=0).values()

    async def main() -> None:
        async with Raw(tinymq_cluster.address(leader)) as raw:
            topic_id = (await raw.topic("ended")).topic_id
            for _ in range(3):
                assert not (await raw.send(topic_id, count=5)).HasField("error")
            for end, found in ((6, [0, 5]), (5, [0]), (0, [0, 5, 10])):
                some = entries(await raw.fetch(topic_id, end=end))
                assert [entry.header.base_offset for entry in some] == found

    asyncio.run(main())


def test_an_invalid_scan_id_is_refused_and_the_stream_continues(tinymq_cluster: Cluster, mq: Client) -> None:
    (leader,) = topic_of(tinymq_cluster, mq, "hostile").values()

    async def main() -> None:
        async with Raw(tinymq_cluster.address(leader)) as raw:
            topic_id = (await raw.topic("hostile")).topic_id
            ids = ["x" * 250, "x" * 1_000_000, "a b", "a/b", "..", "ä", "fine"]

            async def requests() -> AsyncIterator[pb.FetchRequest]:
                for number, scan_id in enumerate(ids):
                    yield pb.FetchRequest(request_id=number, topic_id=topic_id, scan_id=scan_id)

            replies = {r.request_id: r async for r in raw.broker.Fetch(requests(), timeout=WAIT_S)}
            assert [replies[n].error.code for n in range(len(ids))] == ["InvalidName"] * 6 + [""]
            assert all(len(reply.error.message) < 500 for reply in replies.values())
            for scan_id in ("", *ids[:-1]):
                described = await raw.admin.DescribeScan(pb.DescribeScanRequest(scan_id=scan_id), timeout=WAIT_S)
                assert described.error.code == "InvalidName"
            listed = await raw.admin.ListScans(pb.ListScansRequest(), timeout=WAIT_S)
            assert "fine" in {scan.scan_id for scan in listed.scans}
            assert not {scan.scan_id for scan in listed.scans} & set(ids[:-1])

    asyncio.run(main())


def held(mq: Client, topic: str) -> dict[int, tuple[bytes, int]]:
    return {hold.partition: (hold.hold_id, hold.offset) for hold in mq.admin.list_holds(topic)}


def indexes(cluster: Cluster, topic: str) -> dict[int, int]:
    """The last entry of each partition at its leader."""
    found: dict[int, int] = {}
    for app in cluster.brokers.values():
        for status in cluster.call(app.replica_statuses):
            record = app.serving.broker.registry.get_topic_by_id(status.group.topic_id)  # type: ignore[union-attr]
            if record is not None and record.name == topic:
                found[status.group.partition] = max(found.get(status.group.partition, 0), status.last_index)
    return found


def test_many_partitions_are_held_renewed_moved_and_released(tinymq_cluster: Cluster, mq: Client) -> None:
    topic_of(tinymq_cluster, mq, "held", partitions=7, records=10)
    assert mq.admin.trim("held", 3, Offset(2)) == 2
    ranges = dict.fromkeys(range(7), 4)
    starts = {**dict.fromkeys(range(7), 0), 3: 2}
    assert mq.admin.hold_many("held", ranges, hold_id=ID, lease=60) == starts
    assert held(mq, "held") == dict.fromkeys(range(7), (ID, 4))
    assert mq.admin.hold_many("held", {2: 6, 5: 7}, hold_id=ID, lease=600) == {2: 0, 5: 0}
    assert held(mq, "held") == {p: (ID, {2: 6, 5: 7}.get(p, 4)) for p in range(7)}
    left = {hold.partition: hold.left_s for hold in mq.admin.list_holds("held")}
    assert min(left[2], left[5]) > 500 > 60 >= left[0]
    with pytest.raises(OffsetOutOfRange, match="12") as raised:
        mq.admin.hold_many("held", {0: 3, 1: 12, 2: 8}, hold_id=ID, lease=1000)
    assert raised.value.detail["partition"] == "1"
    assert (held(mq, "held")[0], held(mq, "held")[2]) == ((ID, 3), (ID, 8)), "the other holds succeed"
    written = indexes(tinymq_cluster, "held")
    assert mq.admin.hold_many("held", {0: 7, 2: 9}, hold_id=ID, lease=900) == {0: 0, 2: 0}
    assert held(mq, "held")[2] == (ID, 8), "the partition keeps more than that, for long enough"
    assert indexes(tinymq_cluster, "held") == written
    mq.admin.hold_many("held", {2: 7}, hold_id=ID, lease=900)
    assert held(mq, "held")[2] == (ID, 7), "it kept less"
    with pytest.raises(OffsetOutOfRange):
        mq.admin.hold_many("held", {2: 99}, hold_id=ID, lease=900)
    assert mq.admin.hold_many("held", ranges, hold_id=ID, lease=0) == starts
    assert held(mq, "held") == {}


def test_impossible_holds_are_refused(tinymq_cluster: Cluster, mq: Client) -> None:
    topic_of(tinymq_cluster, mq, "not-held", partitions=2, records=1)
    with pytest.raises(UnknownPartition):
        mq.admin.hold_many("not-held", {0: 0, 2: 0}, hold_id=ID, lease=60)
    for wrong in ({}, {0: -1}, {"0": 1}, {0: "1"}, [0]):
        with pytest.raises(InvalidRequest):
            mq.admin.hold_many("not-held", wrong, hold_id=ID, lease=60)  # type: ignore[arg-type]
    for wrong in ({"lease": 0.5}, {"lease": 4000}, {"hold_id": b"short"}):
        with pytest.raises(InvalidRequest):
            mq.admin.hold_many("not-held", {0: 0}, **{"hold_id": ID, "lease": 60, **wrong})  # type: ignore[arg-type]
    assert held(mq, "not-held") == {}

    async def main() -> None:
        async with Raw(tinymq_cluster.address(1)) as raw:
            stub, topic_id = pb_grpc.ChannelsStub(raw.channel), (await raw.topic("not-held")).topic_id

            async def hold(*ranges: pb.HoldRange) -> pb.HoldReply:
                request = pb.HoldRequest(topic_id=topic_id, hold_id=ID, lease_ms=1000, ranges=ranges)
                return await stub.Hold(request, timeout=WAIT_S)

            for ranges in (
                [],
                [pb.HoldRange(partition=0, offset=0)] * 2,
                [pb.HoldRange(partition=n, offset=0) for n in range(RANGES_MAX + 1)],
            ):
                assert (await hold(*ranges)).error.code == "InvalidRequest"
            many = await hold(*[pb.HoldRange(partition=n + 2, offset=0) for n in range(RANGES_MAX)])
            assert not many.HasField("error")
            assert {outcome.error.code for outcome in many.outcomes} <= {"UnknownPartition", "NotReady"}
            (beyond,) = (await hold(pb.HoldRange(partition=0, offset=1 << 63))).outcomes
            assert beyond.error.code in ("InvalidRequest", "NotLeader")

    asyncio.run(main())


def test_offsets_go_on_while_a_leader_is_away_and_holds_wait_for_the_next(tinymq_cluster: Cluster) -> None:
    """Two of three brokers are down: no broker leads, and the last one reports its own scans."""
    with tinymq_cluster.client(attempt_timeout_ms=300, request_timeout_ms=5_000) as mq:
        leaders = topic_of(tinymq_cluster, mq, "away", partitions=3, records=9)
        mq.admin.offsets("away")
        for broker in (2, 3):
            tinymq_cluster.kill(broker)
        try:
            found = mq.admin.offsets("away")
            assert {p: at.high_watermark for p, at in found.items()} == dict.fromkeys(leaders, 9)
            assert mq.admin.find_offsets("away", "latest") == dict.fromkeys(leaders, 9)
            with pytest.raises((DeadlineExceeded, OutcomeUnknown)):  # it may still lead without hearing the others
                mq.admin.hold_many("away", dict.fromkeys(leaders, 0), hold_id=ID, lease=60, timeout=0.5)
        finally:
            for broker in (2, 3):
                tinymq_cluster.start(broker)
        assert set(mq.admin.hold_many("away", dict.fromkeys(leaders, 0), hold_id=ID, lease=60)) == set(leaders)


def test_a_scan_goes_on_while_its_replicas_die(tinymq_cluster: Cluster) -> None:
    with tinymq_cluster.client() as mq:
        (leader,) = topic_of(tinymq_cluster, mq, "dying", records=2_000).values()
        first, second = (broker for broker in (1, 2, 3) if broker != leader)
        tiers = ((first,), (second,), (leader,))
        killed: list[int] = []
        found: list[int] = []
        try:
            with mq.scan("dying", 0, 3, 1_990, replicas=tiers, fetch_bytes_max=2_000, buffer_bytes_max=4_000) as scan:
                for batch in scan:
                    found += batch.column("offset").to_pylist()
                    if len(killed) < 2 and len(found) > 600 * (len(killed) + 1):
                        killed.append((first, second)[len(killed)])
                        tinymq_cluster.kill(killed[-1])
                assert found == list(range(3, 1_990))
                assert set(scan.served) == {first, second, leader}, "the last one serves without a quorum"
        finally:
            for broker in killed:
                tinymq_cluster.start(broker)

"""Brokers scraped over HTTP: their metrics of themselves, of each other, and of events."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.fakes.patience import PATIENT
from tests.fakes.queue_client import QueueClient
from tests.metrics.pages import OPENMETRICS, get, parsed, scrape, status_of, value
from tests.test_app import config
from tinymq.app.broker_app import BrokerApp
from tinymq.base.meter import Unmetered
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.log.files.files import Files
from tinymq.metrics import state
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.operator_calls.cluster_formation import form_cluster
from tinymq.simulation.faulty_files import FaultyFiles
from tinymq.testing import Cluster
from tinymq.testing.cluster import SECRET

TOPIC = "orders"
RECORDS = 25


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three brokers, and a topic of one partition with records, a reader and a channel."""
    with Cluster(3, metrics=True, timing=PATIENT) as made:
        client = made.client()
        client.admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        for n in range(RECORDS):
            client.send(TOPIC, b"%d" % n)
        with client.reader(TOPIC) as reader:
            assert reader.to_arrow(limit=RECORDS).num_rows == RECORDS
        with client.queue(TOPIC, 0, "billing") as queue:
            assert len(queue.poll(10)) == 10
            queue.commit()
        yield made


def test_what_a_leader_did(cluster: Cluster) -> None:
    leader = cluster.wait_leader(TOPIC)
    page = scrape(cluster, leader)
    assert value(page, "tinymq_produced_records_total", topic=TOPIC) == RECORDS
    assert value(page, "tinymq_produced_batches_total", topic=TOPIC) == RECORDS
    assert value(page, "tinymq_produce_seconds_count") == RECORDS
    assert value(page, "tinymq_commit_seconds_count") == RECORDS
    assert 0 < value(page, "tinymq_commit_seconds_sum") <= value(page, "tinymq_produce_seconds_sum")
    written, read = (value(page, f"tinymq_{name}_bytes_total", topic=TOPIC) for name in ("produced", "fetched"))
    assert 0 < written < read, "frames have heads"
    assert value(page, "tinymq_fetch_seconds_count") > 0
    assert value(page, "tinymq_replica_kept_bytes", topic=TOPIC) == written
    assert value(page, "tinymq_channel_lag_records", topic=TOPIC, partition="0", channel="billing") == RECORDS - 10
    assert status_of(cluster, leader)["channels"] == [
        {"topic": TOPIC, "partition": 0, "channel": "billing", "lag": RECORDS - 10}
    ]


def test_cluster_status_says_where_it_is_shown(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "status", "-s", cluster.servers, "-o", "json"]) == Exit.OK
    shown = {broker["id"]: broker["metrics"] for broker in json.loads(capfd.readouterr().out)["brokers"]}
    assert shown == {broker: cluster.metrics_address(broker) for broker in (1, 2, 3)}
    with Cluster(1) as unwatched:
        assert run(["cluster", "status", "-s", unwatched.servers, "-o", "json"]) == Exit.OK
        assert [broker["metrics"] for broker in json.loads(capfd.readouterr().out)["brokers"]] == [None]


def test_what_became_of_topics_in_memory() -> None:
    def counted(name: str) -> float:
        return sum(value(scrape(made, broker), name) for broker in (1, 2, 3))

    with Cluster(3, metrics=True, timing=PATIENT) as made:
        client = made.client()
        client.admin.create_topic("m", settings={"storage": "memory", "max_bytes": 1 << 20})
        client.send("m", b"x" * 1000)
        made.wait_until(lambda: all(app._store.memory_bytes > 1000 for app in made.brokers.values() if app._store))
        assert counted("tinymq_memory_storage_bytes") > 3000
        assert counted("tinymq_partitions_revived_total") == counted("tinymq_partitions_lost_total") == 0
        for broker in (1, 2, 3):
            made.kill(broker)
        for broker in (1, 2, 3):
            made.run(made._start(broker))
        made.wait_leader("m")
        assert counted("tinymq_partitions_revived_total") == counted("tinymq_partitions_lost_total") == 1
        assert counted("tinymq_memory_storage_bytes") < 3000


def test_what_every_replica_is(cluster: Cluster) -> None:
    leader = cluster.wait_leader(TOPIC)
    for broker in (1, 2, 3):
        page = scrape(cluster, broker)
        leads = broker == leader
        assert value(page, "tinymq_replica_leading", topic=TOPIC, partition="0") == leads
        assert value(page, "tinymq_replica_log_bytes", topic=TOPIC) > 0
        assert value(page, "tinymq_sync_seconds_count") > 0
        assert value(page, "tinymq_synced_logs_total") > 0
        assert value(page, "tinymq_delayed_batches") == value(page, "tinymq_delayed_bytes") == 0
        assert value(page, "tinymq_staged_batches") == value(page, "tinymq_staged_bytes") == 0
        lags = [s.labels for s in page["tinymq_follower_lag_entries"].samples if s.labels["topic"] == TOPIC]
        assert [labels["follower"] for labels in lags] == ([str(b) for b in (1, 2, 3) if b != leader] if leads else [])
        assert len(page["tinymq_channel_lag_records"].samples) == leads, "counted once, at its leader"
        roles = {s.labels["role"]: s.value for s in page["tinymq_replicas"].samples}
        assert sum(roles.values()) == len(cluster.call(lambda b=broker: cluster.brokers[b].host.groups))  # type: ignore[misc]
        assert {s.labels["peer"]: s.value for s in page["tinymq_peer_alive"].samples} == {
            str(other): 1 for other in (1, 2, 3) if other != broker
        }
    cluster.wait_until(
        lambda: len({app.replica_statuses()[-1].high_watermark for app in cluster.brokers.values()}) == 1
    )
    assert {value(scrape(cluster, b), "tinymq_replica_high_watermark", topic=TOPIC) for b in (1, 2, 3)} == {RECORDS}


def test_who_a_broker_is(cluster: Cluster) -> None:
    page = scrape(cluster, 2)
    (info,) = page["tinymq_broker_info"].samples
    document = status_of(cluster, 2)
    assert info.labels == {
        "broker": "2", "cluster": document["cluster_id"], "rack": "", "version": document["version"],
    }  # fmt: skip
    assert document["address"] == cluster.address(2)
    assert [document[name] for name in ("broker_id", "state", "reason")] == [2, "running", ""]
    assert {s.labels["state"]: s.value for s in page["tinymq_broker_state"].samples} == {
        "unformed": 0, "starting": 0, "running": 1, "stopping": 0, "failed": 0,
    }  # fmt: skip
    assert value(page, "tinymq_metadata_leader") == document["metadata_leader"]
    assert value(page, "tinymq_registered_brokers") == 3
    assert value(page, "tinymq_topics") == 1
    (replica,) = [each for each in document["replicas"] if each["topic"] == TOPIC]
    assert replica["leader"] == cluster.wait_leader(TOPIC)
    assert replica["topic_id"] == cluster.client().admin.describe_topic(TOPIC).topic_id.hex()
    assert document["peers"] == [{"broker": 1, "alive": True}, {"broker": 3, "alive": True}]


def test_both_formats_say_the_same(cluster: Cluster) -> None:
    address = cluster.metrics_address(1)
    pages = [parsed(*reversed(get(address, "/metrics", accept)[1:])) for accept in ("", OPENMETRICS)]
    old, new = [{(f.name, f.type) for f in page.values() if f.name.startswith("tinymq_")} for page in pages]
    assert old == new
    assert get(address, "/metrics", OPENMETRICS)[1].startswith("application/openmetrics-text")


def test_errors_are_counted_by_call_and_code(cluster: Cluster) -> None:
    client = cluster.client()
    with pytest.raises(Exception, match="exists"):
        client.admin.create_topic(TOPIC, partitions=1, replication_factor=3)
    counted = [status_of(cluster, broker)["errors"].get("Admin.CreateTopic") for broker in (1, 2, 3)]
    assert [each for each in counted if each] == [{"TopicExists": 1}]
    calls = [s for b in (1, 2, 3) for s in scrape(cluster, b)["tinymq_call_seconds"].samples]
    assert {"Admin.CreateTopic", "Broker.Metadata"} <= {sample.labels["call"] for sample in calls}


def test_single_messages_are_counted_where_their_partition_is_led(cluster: Cluster) -> None:
    leader = cluster.wait_leader(TOPIC)
    before = scrape(cluster, leader)

    async def main() -> None:
        async with QueueClient([cluster.address(broker) for broker in (1, 2, 3)]) as client:
            for at in range(3):
                await client.call("ProduceMessage", pb.ProduceMessageRequest(topic=TOPIC, queue=0, value=b"m"), at=at)
            with pytest.raises(grpc.aio.AioRpcError):
                await client.call("FetchMessage", pb.FetchMessageRequest(topic="nothing"))

    asyncio.run(main())
    after = scrape(cluster, leader)
    for name, labels in (
        ("tinymq_produced_records_total", {"topic": TOPIC}), ("tinymq_commit_seconds_count", {}),
    ):  # fmt: skip
        assert value(after, name, **labels) - value(before, name, **labels) == 3, name
    counted = [status_of(cluster, broker)["errors"].get("QueueService.FetchMessage") for broker in (1, 2, 3)]
    assert {"UnknownTopic": 1} in counted


def test_no_more_replicas_are_named_than_a_page_may_have(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scrape(cluster, 1)
    assert value(before, "tinymq_replicas_not_shown") == value(before, "tinymq_channels_not_shown") == 0
    monkeypatch.setattr(state, "REPLICAS_MAX", 1)
    after = scrape(cluster, 1)
    assert len(after["tinymq_replica_leading"].samples) == 1
    assert value(after, "tinymq_replicas_not_shown") == len(before["tinymq_replica_leading"].samples) - 1
    leader = cluster.wait_leader(TOPIC)
    monkeypatch.setattr(state, "REPLICAS_MAX", 100)
    monkeypatch.setattr(state, "CHANNELS_MAX", 0)
    page = scrape(cluster, leader)
    assert page["tinymq_channel_lag_records"].samples == []
    assert value(page, "tinymq_channels_not_shown") == 1


def test_a_broker_that_is_gone_is_seen_and_its_lag_grows() -> None:
    with Cluster(3, metrics=True, timing=PATIENT) as cluster:
        client = cluster.client()
        client.admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        client.send(TOPIC, b"before")
        gone = cluster.wait_leader(TOPIC)
        cluster.kill(gone)
        leader = cluster.wait_leader(TOPIC, other_than=gone)
        client.send(TOPIC, b"after")
        page = scrape(cluster, leader)
        assert value(page, "tinymq_elections_won_total") >= 1
        assert value(page, "tinymq_leader_changes_total") >= 1
        assert value(page, "tinymq_peer_alive", peer=str(gone)) == 0
        assert value(page, "tinymq_peer_silence_seconds", peer=str(gone)) > 0
        assert value(page, "tinymq_follower_lag_entries", topic=TOPIC, follower=str(gone)) > 0
        cluster.start(gone)

        def caught_up() -> bool:
            group = next(g for g in cluster.brokers[leader].host.groups.values() if g.id.topic_id != bytes(16))
            return group.lags() == {} or group.lags()[gone] == 0

        cluster.wait_until(caught_up)
        assert value(scrape(cluster, gone), "tinymq_broker_state", state="running") == 1
        client.admin.delete_topic(TOPIC)
        brokers = [app.serving.broker for app in cluster.brokers.values()]
        cluster.wait_until(lambda: not any(broker.replica_host.partitions for broker in brokers if broker is not None))
        after = scrape(cluster, leader)
        for name in ("tinymq_produced_records", "tinymq_replica_log_bytes"):
            assert TOPIC not in {sample.labels.get("topic") for sample in after[name].samples}, name
        assert not cluster.brokers[leader].metrics._measures.tallies  # type: ignore[union-attr]


def test_before_there_is_a_cluster_and_after_the_disk_failed() -> None:
    disks: dict[int, FaultyFiles] = {}

    def disk(broker_id: int) -> Files:
        return disks.setdefault(broker_id, FaultyFiles(random.Random(broker_id)))

    with Cluster(1, metrics=True, form=False, files_factory=disk) as cluster:
        address = cluster.metrics_address(1)
        status, content_type, body = get(address, "/status")
        document = json.loads(body)
        assert (status, content_type) == (503, "application/json; charset=utf-8")
        assert (document["state"], document["cluster_id"], document["replicas"]) == ("unformed", None, [])
        page = scrape(cluster, 1)
        assert value(page, "tinymq_broker_state", state="unformed") == 1
        assert value(page, "tinymq_metadata_leader") == 0
        cluster.run(form_cluster([cluster.address(1)], SECRET, 1_000_000))
        cluster.wait_until(lambda: cluster._knows(1, {1}))
        assert get(address, "/status")[0] == 200
        disks[1].fail_sync("ballots*", once=False)
        host = cluster.brokers[1].host
        cluster.call(lambda: next(iter(host.groups.values())).replica.state.enter_term(99, None))
        cluster.wait_until(lambda: cluster.brokers[1].state.value == "failed")
        assert get(address, "/status")[0] == 503
        assert value(scrape(cluster, 1), "tinymq_replicas", role="failed") == 1


def test_a_replica_that_could_not_be_opened_counts_as_failed(cluster: Cluster) -> None:
    broker = cluster.brokers[3].serving.broker
    assert broker is not None
    queue = broker.registry.get_all_topics()[0].queues[0]
    failed = broker.replica_host._failed
    cluster.call(lambda: failed.__setitem__(queue.group, OSError("no such disk")))  # type: ignore[arg-type]
    try:
        assert value(scrape(cluster, 3), "tinymq_replicas", role="failed") == 1
    finally:
        cluster.call(lambda: failed.pop(queue.group))


def test_without_an_address_there_is_no_port_and_no_meter(tmp_path: Path) -> None:
    async def main() -> None:
        app = BrokerApp(config(tmp_path))
        await app.start()
        assert app.metrics.address == ""
        assert isinstance(app.serving.meter, Unmetered)
        await app.stop()

    asyncio.run(main())


def test_a_broker_that_stops_closes_the_port() -> None:
    with Cluster(1, metrics=True) as cluster:
        address = cluster.metrics_address(1)
        assert get(address, "/status")[0] == 200
        cluster.stop(1)
        with pytest.raises(urllib.error.URLError):
            get(address, "/status")

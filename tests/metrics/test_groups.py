"""What a broker shows of consumer groups: on its page, in /status, and to `describe`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.client.transaction.test_acked_jobs import stage
from tests.fakes.patience import PATIENT
from tests.metrics.pages import scrape, status_of, value, values
from tinymq.cli.main import run
from tinymq.client import Client
from tinymq.testing import Cluster

WAIT_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, metrics=True, timing=PATIENT) as made:
        yield made


@pytest.fixture(scope="module")
def mq(cluster: Cluster) -> Client:
    return cluster.client()


def shown(cluster: Cluster, name: str, group: str) -> float:
    return value(scrape(cluster, 1), name, group=group)


def wait_for(cluster: Cluster, name: str, group: str, wanted: float) -> None:
    """A row of a group appears when its coordinator, or the partition's leader, has looked at it."""
    deadline_s = time.monotonic() + WAIT_S
    while wanted not in (found := values(scrape(cluster, 1), name, group=group)):
        assert time.monotonic() < deadline_s, (name, found, wanted)


def test_a_queue_group_from_its_first_record_to_its_dead_letter(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("emails", partitions=1, replication_factor=1)
    mq.admin.create_group("mailer", "emails", kind="queue", settings={"retry_ms": "0,60000", "deliveries_max": 2})
    for n in range(5):
        mq.send("emails", b"%d" % n)
    assert shown(cluster, "tinymq_group_lag_records", "mailer") == 5
    assert shown(cluster, "tinymq_group_workers", "mailer") == 0
    first_s = shown(cluster, "tinymq_group_oldest_seconds", "mailer")
    with mq.worker("emails", group="mailer") as worker:
        jobs = [job for _ in range(5) for job in worker.poll(WAIT_S, 1)]
        assert shown(cluster, "tinymq_group_leased_records", "mailer") == 5
        assert shown(cluster, "tinymq_group_workers", "mailer") == 1
        for job in jobs[1:4]:
            job.ack()
        jobs[0].nack(error="busy")
        worker.flush()
        (again,) = worker.poll(WAIT_S, 1)
        assert (again.value, again.delivery) == (b"0", 2)
        assert shown(cluster, "tinymq_group_redelivered_records_total", "mailer") == 1
        assert shown(cluster, "tinymq_group_waiting_records", "mailer") == 1
        assert shown(cluster, "tinymq_group_lag_records", "mailer") == 2, "what is settled above the cursor is read"
        assert shown(cluster, "tinymq_group_oldest_seconds", "mailer") > first_s
        again.reject("never")
        jobs[4].ack()
        worker.flush()
        wait_for(cluster, "tinymq_group_buried_records_total", "mailer", 1)
    wait_for(cluster, "tinymq_group_lag_records", "mailer", 0)
    assert shown(cluster, "tinymq_group_oldest_seconds", "mailer") == 0
    assert shown(cluster, "tinymq_group_burying_records", "mailer") == 0


def test_jobs_whose_acks_a_transaction_has_staged(
    cluster: Cluster, mq: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    mq.admin.create_topic("mails", partitions=1, replication_factor=1)
    for n in range(3):
        mq.send("mails", b"%d" % n)
    settings = {"lease_ms": 600_000, "ask_ms": 60_000, "session_ms": 600_000, "rejoin_ms": 300_000}
    with mq.worker("mails", group="sender", group_settings=settings) as worker:
        jobs = [job for _ in range(3) for job in worker.poll(WAIT_S, 1)]
        assert shown(cluster, "tinymq_group_staged_records", "sender") == 0
        with mq.transaction("sender-1") as tx:
            tx.ack(*jobs[:2])
            stage(mq, tx)
            assert shown(cluster, "tinymq_group_staged_records", "sender") == 2
            assert shown(cluster, "tinymq_group_leased_records", "sender") == 1
            assert shown(cluster, "tinymq_group_lag_records", "sender") == 3
            (row,) = [row for row in status_of(cluster, 1)["groups"] if row["group"] == "sender"]
            assert (row["staged"], row["leased"]) == (2, 1)
            (cursor,) = mq.admin.group_lag("sender")
            assert (cursor.staged, cursor.leased, cursor.lag) == (2, 1, 3)
            assert run(["group", "describe", "sender", "--servers", cluster.servers]) == 0
            assert re.search(r"^mails +0 +1 +1 +2 +0 +0$", capsys.readouterr().out, re.MULTILINE)
        assert shown(cluster, "tinymq_group_staged_records", "sender") == 0
        assert shown(cluster, "tinymq_group_lag_records", "sender") == 1
        jobs[2].ack()


def test_a_stream_group(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("orders", partitions=1, replication_factor=1)
    mq.admin.create_group("billing", "orders")
    wait_for(cluster, "tinymq_group_members", "billing", 0)
    mq.send("orders", b"1")
    assert shown(cluster, "tinymq_group_lag_records", "billing") == 1
    with mq.consumer("orders", group="billing") as consumer:
        assert consumer.poll(WAIT_S)
        assert shown(cluster, "tinymq_group_members", "billing") == 1
        assert shown(cluster, "tinymq_group_rebalances_total", "billing") == 1
    wait_for(cluster, "tinymq_group_members", "billing", 0)
    assert shown(cluster, "tinymq_group_lag_records", "billing") == 0


def test_a_full_window_and_a_key_that_blocks(cluster: Cluster, mq: Client, capsys: pytest.CaptureFixture[str]) -> None:
    mq.admin.create_topic("jobs", partitions=1, replication_factor=1)
    mq.admin.create_group("narrow", "jobs", kind="queue", settings={"leased_max": 1})
    mq.admin.create_group("keyed", "jobs", kind="queue", settings={"leased_max": 4, "ordering": "key"})
    for n in range(4):
        mq.send("jobs", b"%d" % n, key=b"\x1b[2Ja")
    with mq.worker("jobs", group="narrow") as narrow, mq.worker("jobs", group="keyed") as keyed:
        assert narrow.poll(WAIT_S, 1)
        assert keyed.poll(WAIT_S, 1)
        page = scrape(cluster, 1)
        assert value(page, "tinymq_group_blocked", group="narrow", by="window_full") == 1
        assert value(page, "tinymq_group_blocked", group="keyed", by="key_blocked") == 1
        (row,) = [row for row in status_of(cluster, 1)["groups"] if row["group"] == "keyed"]
        assert row["blocked"][0]["by"] == "key_blocked"
        assert {name: row[name] for name in ("topic", "partition", "kind", "lag", "leased", "workers")} == {
            "topic": "jobs", "partition": 0, "kind": "queue", "lag": 4, "leased": 1, "workers": 1,
        }  # fmt: skip
        (cursor,) = mq.admin.group_lag("keyed")
        ((obstacle),) = cursor.blocked
        assert (obstacle.by, obstacle.offset, obstacle.key) == ("key_blocked", 0, b"\x1b[2Ja")
        assert run(["group", "describe", "keyed", "--servers", cluster.servers]) == 0
        text = capsys.readouterr().out
        assert re.search(r"^jobs +0  key_blocked  .* of key b'\\x1b\[2Ja' at offset 0$", text, re.MULTILINE)
        assert run(["group", "describe", "narrow", "-o", "json", "--servers", cluster.servers]) == 0
        (described,) = json.loads(capsys.readouterr().out)["partitions"]
        assert [each["by"] for each in described["blocked"]] == ["window_full"]
        assert (described["leased"], described["workers"]) == (1, 1)


def test_a_burial_that_cannot_go_on(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("bills", partitions=1, replication_factor=1)
    mq.admin.create_group("payer", "bills", kind="queue", settings={"dlq": "grave"})
    mq.admin.create_topic(
        "grave", partitions=1, replication_factor=1, settings={"storage": "memory", "max_bytes": 1 << 20}
    )
    mq.send("bills", b"x")
    with mq.worker("bills", group="payer") as worker:
        (job,) = worker.poll(WAIT_S, 1)
        job.reject("never")
        worker.flush()
        wait_for(cluster, "tinymq_group_burying_records", "payer", 1)
        deadline_s = time.monotonic() + WAIT_S
        while not (blocked := mq.admin.group_lag("payer")[0].blocked):
            assert time.monotonic() < deadline_s
        assert [each.by for each in blocked] == ["burial_blocked"]
        assert "grave" in blocked[0].reason


def test_a_deleted_group_leaves_the_page(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("short", partitions=1, replication_factor=1)
    mq.admin.create_group("lived", "short", kind="queue")
    assert shown(cluster, "tinymq_group_lag_records", "lived") == 0
    mq.admin.delete_group("lived")
    samples = [sample for family in scrape(cluster, 1).values() for sample in family.samples]
    assert not [sample for sample in samples if sample.labels.get("group") == "lived"]

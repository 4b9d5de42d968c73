"""Groups that are altered, paused, purged and bounded, on a real cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tinymq.base.errors import InvalidConfig, LeaseLost, WrongKind
from tinymq.cli.main import run
from tinymq.client import Client
from tinymq.client.facade.worker import Worker
from tinymq.client.work.job import Job
from tinymq.testing import Cluster

WAIT_S = 30.0
QUIET_S = 0.5  # of nothing, where nothing may come


@pytest.fixture
def topic(request: pytest.FixtureRequest, mq: Client) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:100]
    mq.admin.create_topic(name, partitions=1)
    return name


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s


def make(mq: Client, topic: str, records: int, **settings: object) -> None:
    mq.admin.create_group(topic, topic, kind="queue", settings={"retry_ms": "0", **settings})
    for n in range(records):
        mq.send(topic, b"%d" % n)


def take(worker: Worker, count: int) -> list[Job]:
    jobs: list[Job] = []
    while len(jobs) < count:
        found = worker.poll(WAIT_S, 1)
        assert found, f"{len(jobs)} of {count} came"
        jobs += found
    return jobs


def test_what_leases_were_granted_under_changes_once_there_are_none(mq: Client, topic: str) -> None:
    make(mq, topic, 2)
    with mq.worker(topic, group=topic) as worker:
        first, second = take(worker, 2)
        with pytest.raises(InvalidConfig, match="2 records are leased: lease_ms, ordering"):
            mq.admin.alter_group(topic, {"ordering": "key", "lease_ms": 5000, "waiting_max": 5})
        assert mq.admin.describe_group(topic).settings["waiting_max"] == "10000", "all of them, or none"
        assert mq.admin.alter_group(topic, {"waiting_max": 5}).settings["waiting_max"] == "5"
        first.ack()
        second.ack()
        worker.flush()
        assert mq.admin.alter_group(topic, {"ordering": "key"}, dry_run=True).settings["ordering"] == "key"
        assert mq.admin.describe_group(topic).settings["ordering"] == "none"
        mq.admin.alter_group(topic, {"ordering": "key", "lease_ms": 5000})
        # The worker attaches again, and goes on under the new settings.
        for value in (b"a", b"b"):
            mq.send(topic, value, key=b"k")
        (job,) = take(worker, 1)
        assert worker.poll(QUIET_S, 1) == [], "the other one of its key waits"
        job.ack()
        (job,) = take(worker, 1)
        assert job.value == b"b"
        job.ack()
        worker.flush()


def test_a_paused_group_grants_nothing_and_settles_what_is_out(mq: Client, topic: str) -> None:
    make(mq, topic, 2)
    with mq.worker(topic, group=topic, prefetch_records=1) as worker:
        (job,) = take(worker, 1)
        assert mq.admin.pause_group(topic).paused
        until(lambda: [each.by for each in mq.admin.group_lag(topic)[0].blocked] == ["paused"])
        job.ack()
        worker.flush()
        assert worker.poll(QUIET_S, 1) == []
        assert mq.admin.describe_group(topic).paused
        assert not mq.admin.resume_group(topic).paused
        assert [job.value for job in take(worker, 1)] == [b"1"]
    mq.admin.create_group(f"{topic}-s", topic)
    with pytest.raises(WrongKind):
        mq.admin.pause_group(f"{topic}-s")
    with pytest.raises(WrongKind):
        mq.admin.purge_group(f"{topic}-s", dry_run=True)


def test_a_purge_settles_all_that_is_there(mq: Client, topic: str) -> None:
    make(mq, topic, 5)
    with mq.worker(topic, group=topic, prefetch_records=2) as worker:
        held, done = take(worker, 2)
        done.ack()
        worker.flush()
        assert mq.admin.purge_group(topic, dry_run=True) == 4
        assert mq.admin.purge_group(topic) == 4
        assert mq.admin.group_lag(topic)[0].lag == 0
        held.ack()
        with pytest.raises(LeaseLost):
            worker.flush()
        mq.send(topic, b"new")
        assert [job.value for job in take(worker, 1)] == [b"new"]


def test_concurrency_and_rate(mq: Client, topic: str) -> None:
    make(mq, topic, 6, concurrency_max=2)
    with mq.worker(topic, group=topic) as worker:
        jobs = take(worker, 2)
        assert worker.poll(QUIET_S, 1) == []
        assert "concurrency_max" in mq.admin.group_lag(topic)[0].blocked[0].reason
        jobs[0].ack()
        jobs += take(worker, 1)
        mq.admin.alter_group(topic, {"concurrency_max": "none", "rate_max": 4})
        for job in jobs[1:]:
            job.ack()
        began_s = time.monotonic()
        for job in take(worker, 3):
            job.ack()
        assert time.monotonic() - began_s > 0.2, "the rate holds from the first record on"
        worker.flush()


def test_records_that_are_too_old_are_settled_unseen(mq: Client, topic: str) -> None:
    began_s = time.monotonic()
    make(mq, topic, 3, message_ttl_ms=1000)
    took_ms = (time.monotonic() - began_s) * 1000
    until(lambda: mq.admin.group_lag(topic)[0].oldest_ms > 1000 + took_ms)
    with mq.worker(topic, group=topic) as worker:
        assert worker.poll(QUIET_S, 1) == []
        until(lambda: mq.admin.group_lag(topic)[0].lag == 0)
        mq.admin.alter_group(topic, {"message_ttl_ms": "none"})
        mq.send(topic, b"new")
        (job,) = take(worker, 1)
        assert job.value == b"new"
        job.ack()
        worker.flush()
        assert mq.admin.group_lag(topic)[0].lag == 0


def test_one_worker_is_active_and_another_one_stands_by(mq: Client, topic: str) -> None:
    make(mq, topic, 4, max_members=1)
    with mq.worker(topic, group=topic, prefetch_records=1) as first:
        job = take(first, 1)[0]
        with mq.worker(topic, group=topic, prefetch_records=1) as second:
            until(lambda: mq.admin.group_lag(topic)[0].workers == 2)
            assert second.poll(QUIET_S, 1) == []
            job.ack()
            job = take(first, 1)[0]
            assert second.poll(QUIET_S, 1) == []
            job.ack()
            first.close()
            assert [job.value for job in take(second, 1)] == [b"2"]


def test_one_member_of_a_stream_group_is_active(mq: Client, topic: str) -> None:
    mq.admin.add_partition(topic)
    mq.admin.create_group(topic, topic, settings={"max_members": 1})
    with mq.consumer(topic, group=topic) as one, mq.consumer(topic, group=topic) as two:
        until(lambda: sorted(len(member.partitions) for member in mq.admin.group_members(topic)) == [0, 2])
        mq.admin.alter_group(topic, {"max_members": "none"})
        until(lambda: sorted(len(member.partitions) for member in mq.admin.group_members(topic)) == [1, 1])
        assert one is not two


def test_the_commands(cluster: Cluster, mq: Client, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    make(mq, topic, 2)

    def told(*words: str) -> object:
        assert run(["group", *words, "-o", "json", "--servers", cluster.servers]) == 0
        return json.loads(capsys.readouterr().out)

    change = {"setting": "rate_max", "from": "none", "to": "7"}
    assert told("alter", topic, "--set", "rate_max=7", "--dry-run") == {
        "group": topic, "dry_run": True, "changed": [change],
    }  # fmt: skip
    assert told("alter", topic, "--set", "rate_max=7") == {"group": topic, "dry_run": False, "changed": [change]}
    assert told("pause", topic) == {"group": topic, "paused": True}
    assert told("resume", topic) == {"group": topic, "paused": False}
    assert told("purge", topic, "--dry-run") == {"group": topic, "dry_run": True, "records": 2}
    assert told("purge", topic) == {"group": topic, "dry_run": False, "records": 2}
    assert told("purge", topic) == {"group": topic, "dry_run": False, "records": 0}

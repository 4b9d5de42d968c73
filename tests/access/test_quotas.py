"""Quotas of users, over real sockets: each bound, what a refusal says, and who is not bound by another's."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest

from tests.access.secured import Secured, named, secured
from tests.fakes.batches import payload
from tests.fakes.raw_client import batch
from tinymq import Client
from tinymq.access.quotas import MAKING_US, Thing, pack_made, pack_quota, parse_made, parse_quota, with_thing
from tinymq.base.errors import Denied, InvalidRequest, NotFound, QuotaExceeded, TinymqError
from tinymq.base.identity.quota import NAMES, NONE, Quota
from tinymq.cli.main import run
from tinymq.proto import tinymq_pb2 as pb
from tinymq.registry.state.values import MetadataRecord


@pytest.fixture(scope="module")
def s() -> Iterator[Secured]:
    with secured(nodes=3) as cluster:
        yield cluster


def took_s(count: int, *clients: Client) -> float:
    """The time in which each of these clients sends so many records of 10 KB."""
    began_s = time.monotonic()
    for client in clients:
        for _ in range(count):
            client.send("orders", b"x" * 10_000, partition=0)
    return time.monotonic() - began_s


def test_every_client_of_a_user_shares_its_bytes_and_nobody_else_waits(s: Secured) -> None:
    mq, other = s.user("writer", "write topic:orders"), s.user("writer2", "write topic:orders")
    s.root.access.set_quota("writer", produce_bytes_per_s=100_000)
    s.wait_heard()
    second = s.client("writer")
    assert took_s(15, mq, second) > 1.5  # 300 KB at 100 KB/s, the first second's at once
    other.send("orders", b"x" * 10_000, partition=0)
    limits = [app.quotas.produce.limits for app in s.cluster.brokers.values()]
    assert all(limit("user:writer") and not limit("user:writer2") for limit in limits)


def test_calls_over_the_rate_say_how_long_to_wait(s: Secured) -> None:
    s.user("caller", "describe topic:orders")
    s.root.access.set_quota("caller", requests_per_s=5)
    s.wait_heard()
    request, token = pb.MetadataRequest(topics=["orders"]), s.tokens["caller"]
    answers = [s.raw(named("Broker.Metadata"), request, token) for _ in range(20)]
    refused = [answer for answer in answers if isinstance(answer, QuotaExceeded)]
    assert 5 <= len(answers) - len(refused) <= 15
    assert 0 < int(refused[0].detail["retry_after_ms"]) <= 1000
    assert "over its requests per second" in refused[0].message
    mq = s.client("caller")
    for _ in range(8):
        assert mq.admin.describe_topic("orders").partitions  # a client waits, and asks again


def test_a_batch_counts_as_a_request(s: Secured) -> None:
    mq = s.user("drip", "write topic:orders")
    s.root.access.set_quota("drip", requests_per_s=10)
    s.wait_heard()
    began_s = time.monotonic()
    for _ in range(25):
        mq.send("orders", b"x", partition=0)
    assert time.monotonic() - began_s > 0.9


def test_connections_are_bounded_for_their_user_only(s: Secured) -> None:
    s.user("many", "write topic:orders", "read topic:orders")
    s.root.access.set_quota("many", connections=2)
    s.wait_heard()
    clients = [s.client("many", request_timeout_ms=2000) for _ in range(4)]
    outcomes: list[TinymqError | None] = []

    def write(client: Client) -> None:
        try:
            client.producer(delivery_timeout_ms=2000).send("orders", b"x", partition=0).result()
            outcomes.append(None)
        except TinymqError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=write, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(None) == 2
    failed = next(error for error in outcomes if error is not None)
    assert "may have 2" in failed.message
    s.root.send("orders", b"x", partition=0)
    for client in clients:
        client.close()
    s.cluster.wait_until(lambda: not any(app.gate.guards("many") for app in s.cluster.brokers.values()))
    assert s.client("many").send("orders", b"x", partition=0).offset >= 0  # there is room again


def test_topics_partitions_and_groups_count_to_their_maker(s: Secured) -> None:
    mq = s.user("maker", "create topic:m.*", "alter topic:m.*", "delete topic:m.*", "create group:m*", "read topic:m.*")
    s.root.access.set_quota("maker", topics=2, partitions=5, groups=1)
    s.wait_heard()
    mq.admin.create_topic("m.a", 2, replication_factor=1)
    with pytest.raises(QuotaExceeded, match="may have 5 partitions, and this would be 6"):
        mq.admin.create_topic("m.b", 4, replication_factor=1)
    mq.admin.create_topic("m.b", 2, replication_factor=1)
    with pytest.raises(QuotaExceeded, match="may have 2 topics, and this would be 3"):
        mq.admin.create_topic("m.c", 1, replication_factor=1)
    mq.admin.add_partition("m.a")
    with pytest.raises(QuotaExceeded, match="5 partitions"):
        mq.admin.add_partition("m.b")
    mq.admin.create_group("m1", "m.a")
    with pytest.raises(QuotaExceeded, match=r"1 groups.*tinymq quota set maker --groups N"):
        mq.admin.create_group("m2", "m.a")
    mq.admin.create_group("m1", "m.a", exist_ok=True)
    s.root.admin.create_topic("m.of-root", 1, replication_factor=1)


def test_many_at_once_do_not_exceed_a_count(s: Secured) -> None:
    mq = s.user("racer", "create topic:r.*")
    s.root.access.set_quota("racer", topics=3)
    s.wait_heard()
    errors: list[TinymqError] = []

    def make(number: int) -> None:
        try:
            mq.admin.create_topic(f"r.{number}", 1, replication_factor=1)
        except QuotaExceeded as error:
            errors.append(error)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([topic for topic in s.root.admin.list_topics() if topic.name.startswith("r.")]) == 3
    assert len(errors) == 5


def test_invented_producer_ids_push_out_nobody_elses(s: Secured) -> None:
    """A program that speaks the protocol itself, and names another producer in each batch."""
    s.user("inventor", "write topic:orders")
    s.root.access.set_quota("inventor", producer_ids_per_h=20)
    s.wait_heard()
    leader = s.root.admin.describe_topic("orders").partitions[1].leader
    token, topic_id = s.tokens["inventor"], s.topic_id("orders")

    def write(producer_id: int) -> pb.ProduceResult | TinymqError:
        data = payload(1, producer=producer_id, sequence=0)
        request = pb.ProduceRequest(batches=[batch(topic_id, data, partition=1)])
        answer: pb.ProduceResult | TinymqError = s.raw(named("Broker.Produce"), request, token, leader)
        return answer

    answers = [write(1 << 40 | number) for number in range(25)]
    refused = [answer for answer in answers if isinstance(answer, QuotaExceeded)]
    assert len(refused) == 5
    assert int(refused[0].detail["retry_after_ms"]) > 60_000
    assert not isinstance(write(1 << 40), QuotaExceeded)  # a known one, again


def test_a_bound_for_every_user_holds_where_a_user_has_none_and_never_for_administrators(s: Secured) -> None:
    mq = s.user("plain", "create topic:p.*")
    own = s.user("own", "create topic:p.*")
    try:
        s.root.access.set_quota("*", topics=0)
        s.root.access.set_quota("own", topics=1)
        s.wait_heard()
        with pytest.raises(QuotaExceeded, match="may have 0 topics"):
            mq.admin.create_topic("p.a", 1, replication_factor=1)
        own.admin.create_topic("p.b", 1, replication_factor=1)
        s.root.admin.create_topic("p.c", 1, replication_factor=1)
    finally:
        s.root.access.delete_quota("*")
    s.wait_heard()
    mq.admin.create_topic("p.d", 1, replication_factor=1)


def test_quotas_are_administered_by_administrators(s: Secured) -> None:
    mq = s.user("curious")
    for call in (
        lambda: mq.access.set_quota("curious", topics=5), mq.access.list_quotas, lambda: mq.access.delete_quota("x")
    ):  # fmt: skip
        with pytest.raises(Denied):
            call()  # type: ignore[operator]
    with pytest.raises(NotFound):
        s.root.access.delete_quota("curious")
    with pytest.raises(InvalidRequest, match="requests_per_s=0"):
        s.root.access.set_quota("curious", requests_per_s=0)
    with pytest.raises(InvalidRequest, match="is no bound of a quota"):
        s.root.access.set_quota("curious", speed=7)


def test_the_command_line_sets_lists_and_deletes(
    s: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TINYMQ_TOKEN", s.tokens["root"])
    monkeypatch.setenv("TINYMQ_SERVERS", s.cluster.servers)
    assert run(["quota", "set", "anna", "--produce-bytes-per-s", "1.5MB", "--topics", "20"]) == 0
    assert run(["quota", "set", "anna", "--topics", "none", "--groups", "3"]) == 0
    capsys.readouterr()
    assert run(["quota", "list", "anna", "-o", "json"]) == 0
    bounds = {"produce_bytes_per_s": 1_500_000, "groups": 3}
    assert json.loads(capsys.readouterr().out) == {"quotas": [{"user": "anna", "bounds": bounds}]}
    assert run(["quota", "delete", "anna"]) == 0
    assert run(["quota", "list", "anna"]) != 0
    assert run(["quota", "set", "anna"]) != 0
    assert "no bound is named" in capsys.readouterr().err


def test_what_is_stored_reads_back() -> None:
    every = Quota(**dict.fromkeys(NAMES, 7))
    assert parse_quota(MetadataRecord("quota", "u", pack_quota(every), 1)) == every
    assert parse_quota(MetadataRecord("quota", "u", b"", 1)) == NONE
    things = [Thing("topic", "a", 5, 3), Thing("group", "b")]
    assert parse_made(MetadataRecord("made", "u", pack_made(things), 1)) == things


def test_a_deleted_topic_counts_no_more_and_one_that_is_being_made_does() -> None:
    quota, there = Quota(topics=1), {("topic", "a"): 2}
    exists = lambda kind, name: there.get((kind, name))  # noqa: E731
    made = with_thing([], Thing("topic", "a", MAKING_US, 2), quota, exists, 0, "u")
    with pytest.raises(QuotaExceeded):
        with_thing(made, Thing("topic", "b", MAKING_US, 2), quota, exists, 0, "u")
    there.clear()
    with pytest.raises(QuotaExceeded):  # it may still appear
        with_thing(made, Thing("topic", "b", MAKING_US, 2), quota, exists, MAKING_US - 1, "u")
    left = with_thing(made, Thing("topic", "b", 2 * MAKING_US, 2), quota, exists, MAKING_US, "u")
    assert [thing.name for thing in left] == ["b"]

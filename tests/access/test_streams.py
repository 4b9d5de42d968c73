"""Streams are checked for each topic and group, and a revocation reaches those that are open: over real sockets, with
the client that applications use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.access.secured import Secured, named, secured
from tinymq.base.errors import Denied, TinymqError, Unauthenticated, UnknownTopic
from tinymq.proto import tinymq_pb2 as pb

REVOKED_S = 5.0  # docs/security.md: so soon a revocation takes effect


@pytest.fixture(scope="module")
def s() -> Iterator[Secured]:
    with secured(nodes=3) as cluster:
        cluster.root.send("orders", b"first", partition=0)
        cluster.root.send("orders.eu", b"first", partition=0)
        yield cluster


def refused(work: Callable[[], object]) -> TinymqError:
    with pytest.raises(TinymqError) as caught:
        work()
    return caught.value


def error_within(work: Callable[[], object], timeout_s: float) -> TinymqError:
    """Repeat `work` until it raises, and return the error."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        try:
            work()
        except TinymqError as error:
            return error
    raise AssertionError(f"nothing was refused within {timeout_s} s")


class Waiting:
    """Work in a thread of its own, and the error that ends it."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.error: TinymqError | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except TinymqError as error:
            self.error = error

    def ended(self, timeout_s: float) -> TinymqError | None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "it still waits"
        return self.error


def test_a_writer_writes_what_it_may_and_nothing_else(s: Secured) -> None:
    mq = s.user("writer", "write topic:orders.*")
    mq.send("orders.eu", b"mine", partition=1)
    error = refused(lambda: mq.send("orders", b"not mine"))
    assert type(error) is Denied
    assert "tinymq acl grant writer describe topic:orders" in error.hint
    assert type(refused(lambda: mq.send("secret-plans", b"x"))) is Denied
    assert type(refused(lambda: next(iter(mq.reader("orders.eu"))))) is Denied, "writing is not reading"


def test_a_denial_is_the_same_for_a_topic_that_is_not_there(s: Secured) -> None:
    mq = s.user("curious")
    there = refused(lambda: mq.admin.describe_topic("secret-plans"))
    nowhere = refused(lambda: mq.admin.describe_topic("no-such-plans"))
    assert type(there) is type(nowhere) is Denied
    assert there.message.replace("secret", "no-such") == nowhere.message
    assert mq.admin.list_topics() == []
    assert mq.admin.list_groups() == []


def test_answers_leave_out_what_a_caller_may_not_describe(s: Secured) -> None:
    mq = s.user("watcher", "describe cluster", "describe topic:orders")
    assert [topic.name for topic in mq.admin.list_topics()] == ["orders"]
    shown = {replica.topic for broker in mq.admin.cluster_status().brokers for replica in broker.replicas}
    assert shown <= {"orders", ""}


def test_a_stranger_and_a_user_with_too_little_get_their_errors(s: Secured) -> None:
    stranger = s.client("")
    error = refused(lambda: stranger.send("orders", b"x"))
    assert type(error) is Unauthenticated
    assert "TINYMQ_TOKEN" in error.hint
    reader = s.user("reader", "read topic:orders")
    assert next(iter(reader.reader("orders", [0]))).value == b"first"
    assert type(refused(lambda: reader.send("orders", b"x"))) is Denied
    assert type(refused(lambda: reader.admin.delete_topic("orders"))) is Denied
    assert type(refused(lambda: reader.access.grant("reader", "write", "topic:orders"))) is Denied


@pytest.mark.parametrize("acks", ["quorum", "leader"])
def test_an_open_producer_loses_what_is_revoked(s: Secured, acks: str) -> None:
    name = f"producer-{acks}"
    mq = s.user(name, "write topic:orders")
    producer = mq.producer(acks=acks)  # type: ignore[arg-type]
    producer.send("orders", b"1", partition=0).result(20)
    s.root.access.revoke(name, "write", "topic:orders")
    error = error_within(lambda: producer.send("orders", b"2", partition=0).result(20), REVOKED_S)
    assert type(error) is Denied, error


def test_a_reader_that_waits_is_told_within_moments(s: Secured) -> None:
    """Its fetch waits at the broker, and nothing comes that could be refused."""
    mq = s.user("patient", "read topic:orders")
    reader = mq.reader("orders", [1], start="latest")
    waiting = Waiting(lambda: next(iter(reader)))
    s.cluster.wait_until(lambda: any(g for app in s.cluster.brokers.values() for g in app.gate.guards("patient")))
    s.root.access.revoke("patient", "read", "topic:orders")
    assert type(waiting.ended(REVOKED_S)) is Denied


def test_a_revoked_token_ends_what_it_opened(s: Secured) -> None:
    mq = s.user("goner", "read topic:orders", "write topic:orders")
    producer = mq.producer()
    producer.send("orders", b"1", partition=0).result(20)
    reader = mq.reader("orders", [1], start="latest")
    waiting = Waiting(lambda: next(iter(reader)))
    s.cluster.wait_until(lambda: any(g for app in s.cluster.brokers.values() for g in app.gate.guards("goner")))
    s.root.access.revoke_token("goner")
    assert isinstance(waiting.ended(REVOKED_S), Unauthenticated)
    assert isinstance(
        error_within(lambda: producer.send("orders", b"2", partition=0).result(20), REVOKED_S), Unauthenticated
    )
    assert isinstance(refused(lambda: mq.access.who_am_i()), Unauthenticated)


def test_the_connection_of_a_revoked_or_expired_token_ends(s: Secured) -> None:
    """A client that goes on regardless keeps no connection by a proof that does not hold any more."""
    mq = s.user("quitter", "write topic:orders")
    producer = mq.producer()

    def open_streams() -> int:
        return sum(len(app.gate.guards("quitter")) for app in s.cluster.brokers.values())

    producer.send("orders", b"x").result()
    assert s.cluster.call(open_streams)
    s.root.access.revoke_token("quitter")
    s.cluster.wait_until(lambda: not open_streams(), REVOKED_S)
    token = s.root.access.create_token("quitter", lifetime=3.0)
    s.wait_heard()
    with s.cluster.client(token=token) as again, again.producer() as another:
        assert error_within(lambda: another.send("orders", b"x").result(), 10.0).message.count("has expired on 20")
        s.cluster.wait_until(lambda: not open_streams(), REVOKED_S)


def test_a_worker_loses_its_jobs_with_its_grant(s: Secured) -> None:
    s.root.admin.create_group("shop", ["orders"], kind="queue")
    mq = s.user("worker", "read topic:orders", "read group:shop")
    worker = mq.worker("orders", group="shop")
    job = next(iter(worker))
    job.ack()
    waiting = Waiting(lambda: [job.ack() for job in worker])
    s.root.access.revoke("worker", "read", "group:shop")
    s.cluster.wait_until(lambda: not any(app.gate.guards("worker", "group") for app in s.cluster.brokers.values()))
    s.root.send("orders", b"after", partition=0)
    mq.close()
    waiting.ended(20)


def test_a_member_of_a_stream_group_needs_the_topic_too(s: Secured) -> None:
    s.root.admin.create_group("team", ["orders"])
    mq = s.user("member", "read group:team")
    waiting = Waiting(lambda: next(iter(mq.consumer("orders", group="team"))))
    assert isinstance(waiting.ended(20), Denied)


def test_unmaking_a_topic_and_its_id_tell_no_name(s: Secured) -> None:
    mq = s.user("prober", "describe topic:orders")
    error = s.raw(
        named("Broker.ListOffsets"),
        pb.ListOffsetsRequest(topic_id=s.topic_id("secret-plans"), queries=[pb.OffsetQuery(timestamp_us=-1)]),
        s.tokens["prober"],
    )
    assert type(error) is Denied
    assert "secret" not in error.message + error.hint
    assert isinstance(refused(lambda: mq.admin.describe_topic("orders.none")), Denied | UnknownTopic)

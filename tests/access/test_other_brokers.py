"""What one broker knows of callers of another: forwarded calls, and brokers that hear nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.access.secured import Secured, named, secured
from tinymq.base.errors import Denied, NotReady, TinymqError, Unauthenticated
from tinymq.proto import tinymq_pb2 as pb


@pytest.fixture(scope="module")
def s() -> Iterator[Secured]:
    with secured(nodes=3, links=True) as cluster:
        cluster.user("app", "write topic:orders", "read topic:orders", "read channel:c")
        cluster.user("other", "write topic:orders.eu")
        yield cluster


def away(s: Secured) -> int:
    """A broker that does not lead the queue."""
    leader = s.cluster.wait_leader("orders", 0)
    return next(broker for broker in s.cluster.brokers if broker != leader)


PRODUCE = named("QueueService.ProduceMessage")
MESSAGE = pb.ProduceMessageRequest(topic="orders", queue=0, value=b"forwarded")


def test_a_forwarded_call_carries_its_caller(s: Secured) -> None:
    reply = s.raw(PRODUCE, MESSAGE, s.tokens["app"], broker=away(s))
    assert isinstance(reply, pb.ProduceMessageReply), reply
    taken = s.raw(
        named("QueueService.ConsumeMessage"),
        pb.ConsumeMessageRequest(topic="orders", queue=0, channel="c"),
        s.tokens["app"],
        broker=away(s),
    )
    assert taken.message.value == b"forwarded"
    assert type(s.raw(PRODUCE, MESSAGE, s.tokens["other"], broker=away(s))) is Denied


@pytest.mark.parametrize("mark", ["1.1." + "0" * 64, "nonsense"])
@pytest.mark.parametrize("user", ["", "other"])
def test_a_client_cannot_say_that_it_is_forwarded(s: Secured, mark: str, user: str) -> None:
    """Neither by a mark of its own, nor by a name beside it."""
    leader = s.cluster.wait_leader("orders", 0)
    claim = json.dumps(["root", []])
    error = s.raw(PRODUCE, MESSAGE, s.tokens.get(user, ""), leader, tinymq_forwarded=mark, tinymq_principal=claim)
    assert isinstance(error, NotReady if not user else Denied), error


def test_a_broker_that_hears_nothing_lets_nobody_in(s: Secured) -> None:
    s.cluster.partition({1}, {2, 3})
    try:
        s.cluster.wait_until(lambda: s.cluster.registry(2).version > 0)
        assert isinstance(s.raw(named("Users.WhoAmI"), pb.WhoAmIRequest(), s.tokens["app"], broker=1), pb.WhoAmIReply)
        s.cluster.clock.advance(seconds=30)
        s.cluster.wait_until(lambda: s.cluster.brokers[1].gate.deaf)
        for token in (s.tokens["app"], s.tokens["root"]):
            assert isinstance(s.raw(named("Users.WhoAmI"), pb.WhoAmIRequest(), token, broker=1), NotReady)
            fetch = pb.FetchRequest(topic_id=s.topic_id("orders"), request_id=1)
            error = s.raw(named("Broker.Fetch"), fetch, token, broker=1)
            assert isinstance(error, TinymqError)
            assert not isinstance(error, Unauthenticated)
    finally:
        s.cluster.heal()
    s.wait_checked()
    assert isinstance(s.raw(named("Users.WhoAmI"), pb.WhoAmIRequest(), s.tokens["app"], broker=1), pb.WhoAmIReply)

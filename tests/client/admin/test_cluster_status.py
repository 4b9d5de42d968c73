"""The brokers' reports, compared with the brokers that should exist."""

from __future__ import annotations

from tinymq.base.errors import BrokerUnreachable, TinymqError
from tinymq.client.admin.cluster_status import BrokerStatus, TopicDescription, summarise
from tinymq.client.cluster.routing import Broker, Partition
from tinymq.client.common.values import as_datetime
from tinymq.proto import tinymq_pb2 as pb

ID = b"c" * 16


def broker(number: int) -> Broker:
    return Broker(number, f"b{number}:1", "", True)


def reply(number: int, voters: list[int], heard_ms: dict[int, int] | None = None) -> pb.ClusterStatusReply:
    heard = [pb.HeardBroker(id=b, age_ms=ms) for b, ms in (heard_ms or {}).items()]
    return pb.ClusterStatusReply(broker_id=number, state="running", metadata_voters=voters, heard=heard)


def on(*brokers: int) -> TopicDescription:
    return TopicDescription("t", b"i" * 16, (Partition(0, 1, 1, brokers),), len(brokers), as_datetime(0))


def states(
    *replies: pb.ClusterStatusReply | TinymqError, topics: tuple[TopicDescription, ...] | None = ()
) -> dict[int, BrokerStatus]:
    """The states that follow from the replies of brokers 1, 2, ..., the only ones that are registered."""
    status = summarise(ID, [broker(n) for n in range(1, len(replies) + 1)], dict(enumerate(replies, 1)), topics)
    return {each.broker_id: each for each in status.brokers}


def test_a_voter_that_is_not_registered_is_missing() -> None:
    found = states(reply(1, [1, 2, 3], {3: 12_400}), reply(2, [1, 2, 3], {3: 12_300}))
    assert {b: each.state for b, each in found.items()} == {1: "running", 2: "running", 3: "missing"}
    assert (found[3].alive, found[3].votes, found[3].heard_s) == (False, True, 12.3)
    assert found[3].reason == "it votes on the metadata, and is not registered; last heard 12 s ago"


def test_a_replica_holder_that_is_not_registered_is_missing() -> None:
    found = states(reply(1, [1]), topics=(on(1, 7),))
    assert found[7].state == "missing"
    assert found[7].reason == "it has replicas, and is not registered; never heard by the brokers that answer"
    assert not found[7].votes


def test_a_former_observer_without_replicas_is_not_missing() -> None:
    assert set(states(reply(1, [1], {4: 5000}), topics=(on(1),))) == {1}
    assert set(states(reply(1, []), topics=None)) == {1}


def test_a_broker_that_is_registered_and_does_not_answer_is_unreachable() -> None:
    found = states(reply(1, [1, 2], {2: 700}), BrokerUnreachable("b2:1: connection refused"))
    assert (found[2].state, found[2].reason, found[2].heard_s) == ("unreachable", "b2:1: connection refused", 0.7)

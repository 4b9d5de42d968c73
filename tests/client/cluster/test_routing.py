"""The view of the cluster: a leader epoch never goes back, and replicas are ordered as configured."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run
from tinymq.base.errors import NotLeader, UnknownPartition
from tinymq.client.cluster import routing
from tinymq.client.cluster.broker_health import ClusterHealth
from tinymq.client.cluster.routing import Broker, Partition, Topic, View
from tinymq.proto import tinymq_pb2 as pb

ID = b"1" * 16
OTHER = b"2" * 16


def reply(version: int, leader: int, epoch: int, topic_id: bytes = ID, name: str = "t") -> pb.MetadataReply:
    made = pb.MetadataReply(cluster_id=b"c", version=version)
    for n in (1, 2, 3):
        made.brokers.add(id=n, address=f"b:{n}", alive=True)
    at = pb.PartitionInfo(partition=0, leader=leader, leader_epoch=epoch, replicas=[1, 2, 3])
    made.topics.add(name=name, topic_id=topic_id, partitions=[at], replication_factor=3)
    return made


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(1, 9)), max_size=20))
@settings(deadline=None)
def test_epochs_never_go_back(news: list[tuple[int, int, int]]) -> None:
    view = routing.merge(View(), reply(1, 1, 1), ["t"])
    seen = 0
    for version, leader, epoch in news:
        view = routing.merge(view, reply(version, leader, epoch), ["t"])
        at = view.partition("t", 0)
        assert at.leader_epoch >= max(seen, epoch if leader else 0)
        seen = at.leader_epoch
        view = routing.learn_leader(view, "t", 0, leader, epoch)
        assert view.partition("t", 0).leader_epoch >= seen


def test_a_recreated_topic_replaces_the_old_one() -> None:
    view = routing.merge(View(), reply(1, 1, 7), ["t"])
    view = routing.merge(view, reply(2, 2, 1, OTHER), ["t"])
    assert (view.topics["t"].topic_id, view.partition("t", 0).leader_epoch) == (OTHER, 1)
    stale = routing.merge(view, reply(1, 1, 7), ["t"])
    assert stale.topics["t"].topic_id == OTHER


def test_a_topic_that_is_gone_is_forgotten_unless_the_news_is_old() -> None:
    view = routing.merge(View(), reply(5, 1, 1), ["t"])
    gone = pb.MetadataReply(version=4)
    gone.topics.add(name="t", error=pb.Error(code="UnknownTopic"))
    assert "t" in routing.merge(view, gone, ["t"]).topics
    gone.version = 5
    gone.topics[0].error.code = "NotReady"
    assert "t" in routing.merge(view, gone, ["t"]).topics, "a broker that cannot say is not believed"
    gone.topics[0].error.code = "UnknownTopic"
    assert "t" not in routing.merge(view, gone, ["t"]).topics


def test_a_topic_deleted_here_does_not_come_back_by_a_broker_that_lags() -> None:
    view = routing.without_topic(routing.merge(View(), reply(1, 1, 1), ["t"]), "t")
    assert not routing.merge(view, reply(1, 1, 1), ["t"]).topics
    assert routing.merge(view, reply(2, 1, 1, OTHER), ["t"]).topics["t"].topic_id == OTHER
    assert routing.without_topic(view, "t") is view


def test_not_leader_teaches_leader_address_and_epoch() -> None:
    view = routing.merge(View(), reply(1, 1, 1), ["t"])
    taught = routing.learn_from(view, "t", 0, NotLeader("", leader=9, leader_address="b:9", leader_epoch=2))
    assert taught.partition("t", 0).leader == 9
    assert taught.address(9) == "b:9"
    assert routing.learn_from(taught, "t", 0, NotLeader("", leader=1, leader_epoch=1)) is taught
    assert routing.learn_from(taught, "t", 0, NotLeader("")) is taught
    assert routing.learn_from(taught, "t", 5, NotLeader("", leader=1, leader_epoch=9)) is taught


def numbered(version: int, *numbers: int, leader: int = 1, epoch: int = 1) -> pb.MetadataReply:
    made = reply(version, leader, epoch)
    del made.topics[0].partitions[:]
    for number in numbers:
        made.topics[0].partitions.add(partition=number, leader=leader, leader_epoch=epoch, replicas=[1, 2, 3])
    return made


def test_partitions_are_known_by_number() -> None:
    view = routing.merge(View(), numbered(1, 5, 0, 2), ["t"])
    topic = view.topics["t"]
    assert topic.numbers == (0, 2, 5)
    assert [view.partition("t", n).partition for n in (0, 2, 5)] == [0, 2, 5]
    for number in (-1, 1, 3, 4, 6, 1 << 40):
        assert topic.partition(number) is None
        with pytest.raises(UnknownPartition, match="0, 2, 5"):
            view.partition("t", number)
    view = routing.learn_leader(view, "t", 5, 3, 2)
    assert [at.leader for at in view.topics["t"].partitions] == [1, 1, 3]
    assert routing.learn_leader(view, "t", 1, 3, 2) is view
    many = routing.merge(View(), numbered(1, 0, 1, 2, 4, 6, 7), ["t"]).topics["t"]
    assert "partitions 0-2, 4, 6-7" in many.unknown(9).message


def test_partitions_come_and_go_and_keep_their_leaders() -> None:
    view = routing.merge(View(), numbered(1, 0, 1, leader=2, epoch=7), ["t"])
    view = routing.merge(view, numbered(2, 1, 2), ["t"])
    topic = view.topics["t"]
    assert [(at.partition, at.leader, at.leader_epoch) for at in topic.partitions] == [(1, 2, 7), (2, 1, 1)]
    stale = routing.merge(view, numbered(1, 0, 1, leader=3, epoch=9), ["t"]).topics["t"]
    assert [(at.partition, at.leader, at.leader_epoch) for at in stale.partitions] == [(1, 3, 9), (2, 1, 1)], (
        "who lags behind the registry does not bring back what is gone, and may know who leads"
    )


def test_partitions_added_or_deleted_by_this_client_are_known_at_once() -> None:
    view = routing.merge(View(), numbered(1, 0, 2), ["t"])
    added = routing.with_partition(view, "t", Partition(1, 0, 0, (1,)))
    assert added.topics["t"].numbers == (0, 1, 2)
    assert routing.with_partition(added, "t", Partition(1, 3, 3, (3,))) is added
    assert routing.without_partition(added, "t", 2).topics["t"].numbers == (0, 1)
    assert routing.without_partition(view, "t", 1) is view
    assert routing.without_partition(view, "u", 1) is routing.with_partition(view, "u", AT) is view


def test_an_answer_with_settings() -> None:
    made = reply(1, 1, 1)
    made.topics[0].settings.add(name="retention_ms", value="none")
    assert routing.read_topic(made.topics[0]).settings == (("retention_ms", "none"),)


AT = Partition(0, leader=1, leader_epoch=1, replicas=(1, 2, 3))
VIEW = View(brokers={n: Broker(n, f"b:{n}", True, f"r{n}") for n in (1, 2, 3)}, topics={"t": Topic("t", ID, (AT,))})


def order(replica: str, aside: set[int] | None = None, turn: int = 0, rack: str = "", latency: int = 0) -> list[int]:
    def cost(broker: int) -> tuple[float, float]:
        return (1.0 if broker in (aside or ()) else 0.0, 0.5 if broker == latency else 0.001)

    return routing.read_order(VIEW, AT, replica, rack=rack, cost=cost, turn=turn)


def test_replicas_are_ordered_as_asked() -> None:
    assert order("leader", turn=2)[0] == 1
    assert order("follower")[-1] == 1
    assert {order("follower", turn=t)[0] for t in range(3)} == {2, 3}
    assert order("follower", {2, 3})[0] == 1
    assert order("nearest", rack="r3")[0] == 3
    assert order("nearest", {3}, rack="r3")[0] != 3
    assert order("nearest", latency=1)[-1] == 1
    assert {order("any", turn=t)[0] for t in range(3)} == {1, 2, 3}


def test_slow_brokers_are_put_aside_for_longer_and_dead_ones_for_growing_whiles() -> None:
    health = ClusterHealth()
    for latency_s, aside_s in ((0.1, 0), (0.55, 2), (1.8, 5), (3.0, 6), (5.0, 10), (15.0, 30)):
        health = ClusterHealth()
        health.answered("a", latency_s, 100.0)
        assert health.cost("a", 100.0)[0] == aside_s
    asides = []
    for _ in range(10):
        health.failed("b", "refused", 0.0)
        asides.append(health.cost("b", 0.0)[0])
    assert asides == sorted(asides)
    assert asides[0] < 0.2
    assert asides[-1] == asides[-2] == 2.0
    health.answered("b", 0.001, 1.0)
    assert health.cost("b", 1.0)[0] == 0


@pytest.mark.parametrize("lagging", [1, 2, 3])
def test_a_deleted_topic_that_a_lagging_broker_brings_back_leaves_with_the_next_refresh(lagging: int) -> None:
    """One broker says that the topic is gone, then the lagging one says that it is there: its name stays asked for."""

    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t")
        async with client_of(cluster) as mq:
            known = await mq.cluster().topic("t", 5.0)
            cluster.slow_to_hear = {lagging}
            cluster.remove_topic("t")
            await mq.cluster().still_there("t", known.topic_id, 5.0)
            cluster.outdated.clear()
            await mq.cluster().refresh(timeout_s=5.0)
            assert "t" not in mq.cluster().view.topics

    run(scenario())

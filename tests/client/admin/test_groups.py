"""Groups on a real cluster: made, listed, moved and deleted; added partitions, channels in the way, failures."""

from __future__ import annotations

import grpc
import pytest

from tinymq.base.errors import (
    AlreadyExists,
    InvalidConfig,
    InvalidName,
    InvalidRequest,
    UnknownGroup,
    UnknownTopic,
    WrongKind,
)
from tinymq.base.group_config import GroupKind
from tinymq.base.types import Offset
from tinymq.broker.groups.definition import GroupDefinition, GroupPhase
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.testing import Cluster

pytest_plugins = ["tinymq.testing.fixture"]


def places(mq: object, name: str) -> list[tuple[str, int, int, int]]:
    return [(c.topic, c.partition, c.position, c.lag) for c in mq.admin.group_lag(name)]  # type: ignore[attr-defined]


def test_a_group_has_a_cursor_everywhere_when_create_answers(tinymq_cluster: Cluster) -> None:
    mq = tinymq_cluster.client()
    mq.admin.create_topic("ga", partitions=3)
    mq.send("ga", b"1", partition=0)
    made = mq.admin.create_group("g-early", "ga")
    assert (made.name, made.kind, made.state, made.topics) == ("g-early", "stream", "ready", ("ga",))
    assert made.settings["assignor"] == "balanced"
    mq.admin.create_group("g-late", ["ga"], start="latest", settings={"revoke_ms": 5})
    assert places(mq, "g-early") == [("ga", 0, 0, 1), ("ga", 1, 0, 0), ("ga", 2, 0, 0)]
    assert places(mq, "g-late")[0] == ("ga", 0, 1, 0)
    assert [g.name for g in mq.admin.list_groups() if g.name.startswith("g-")] == ["g-early", "g-late"]
    assert mq.admin.list_channels("ga") == [], "groups are no channels"
    moved = mq.admin.seek_group("g-late", Offset(0), topic="ga", partitions=[0])
    assert [(c.partition, c.position) for c in moved] == [(0, 0)]
    mq.admin.delete_group("g-early")
    mq.admin.delete_group("g-late")
    assert not any(p.state.cursors for app in tinymq_cluster.brokers.values() for p in led(app, "ga"))
    with pytest.raises(UnknownGroup):
        mq.admin.delete_group("g-late")


def test_a_call_without_a_command_id_makes_a_group_once(tinymq_cluster: Cluster) -> None:
    """Clients of other languages may send none."""
    mq = tinymq_cluster.client()
    mq.admin.create_topic("gn", partitions=1)
    request = pb.CreateGroupRequest(name="nameless", kind="queue", topics=["gn"], timeout_ms=30_000)
    with grpc.insecure_channel(tinymq_cluster.servers.partition(",")[0]) as channel:
        make = pb_grpc.GroupsStub(channel).CreateGroup
        first, second = make(request, timeout=60), make(request, timeout=60)
    assert (first.group.state, first.error.code) == ("ready", "")
    assert second.error.code == "AlreadyExists"


def led(app: object, topic: str) -> list:  # type: ignore[type-arg]
    hosted = app.serving.broker.replica_host.partitions.values()  # type: ignore[attr-defined]
    return [p for p in hosted if p.name.startswith(f"{topic}/") and p.leading]


def test_an_added_partition_and_a_new_topic_have_the_cursor_before_the_first_record(tinymq_cluster: Cluster) -> None:
    mq = tinymq_cluster.client()
    mq.admin.create_topic("gp-a", partitions=1)
    mq.admin.create_group("gp", "gp-*", start="latest")
    added = mq.admin.add_partition("gp-a").partition
    mq.admin.create_topic("gp-b", partitions=1)
    mq.send("gp-a", b"1", partition=added)
    mq.send("gp-b", b"1")
    assert places(mq, "gp") == [("gp-a", 0, 0, 0), ("gp-a", 1, 0, 1), ("gp-b", 0, 0, 1)], "and nothing is missed"


def test_a_channel_keeps_its_name(tinymq_cluster: Cluster) -> None:
    mq = tinymq_cluster.client()
    mq.admin.create_topic("gc", partitions=2)
    with mq.queue("gc", 1, "taken") as queue:
        queue.open()
    with pytest.raises(AlreadyExists, match="a channel of this partition"):
        mq.admin.create_group("taken", "gc")
    with pytest.raises(UnknownGroup):
        mq.admin.describe_group("taken")
    assert [(c.partition, c.channel) for c in mq.admin.list_channels("gc")] == [(1, "taken")]
    mq.admin.delete_channel("gc", 1, "taken")
    mq.admin.create_group("taken", "gc", kind="queue")
    with pytest.raises(WrongKind):
        mq.queue("gc", 0, "taken").open()
    with pytest.raises(WrongKind):
        mq.admin.create_group("taken", "gc", exist_ok=True)


def test_an_impossible_group_is_refused(tinymq_cluster: Cluster) -> None:
    mq = tinymq_cluster.client()
    mq.admin.create_topic("gx")
    with pytest.raises(UnknownTopic):
        mq.admin.create_group("x", "no-such-topic")
    with pytest.raises(InvalidConfig):
        mq.admin.create_group("x", "gx", settings={"asignor": "range"})
    with pytest.raises(InvalidConfig):
        mq.admin.create_group("x", "gx", kind="broadcast")
    with pytest.raises(InvalidName):
        mq.admin.create_group("x", "__coordinator")
    with pytest.raises(InvalidName):
        mq.admin.create_group("a b", "gx")
    with pytest.raises(InvalidRequest):
        mq.admin.create_group("x", [])
    mq.admin.create_group("x", "gx")
    with pytest.raises(AlreadyExists):
        mq.admin.create_group("x", "gx")
    assert mq.admin.create_group("x", "gx", exist_ok=True).name == "x"


def test_what_a_broker_began_the_leader_of_the_metadata_finishes(tinymq_cluster: Cluster) -> None:
    """The first record of a group is written, and the broker that wrote it does nothing more."""
    mq = tinymq_cluster.client()
    mq.admin.create_topic("gf", partitions=2)
    registry = next(iter(tinymq_cluster.brokers.values())).serving.broker.registry  # type: ignore[union-attr]
    left = GroupDefinition("left", GroupKind.STREAM, ("gf",))
    tinymq_cluster.run(registry.put_record("group", "left", left.pack(), 0))
    assert mq.admin.describe_group("left").state == "making"
    known = next(iter(tinymq_cluster.brokers.values())).serving.running_groups().known
    tinymq_cluster.wait_until(lambda: known.get("left").phase is GroupPhase.READY)  # type: ignore[union-attr]
    assert len(places(mq, "left")) == 2


def test_the_cursor_of_a_group_that_the_registry_does_not_know_is_dropped(tinymq_cluster: Cluster) -> None:
    mq = tinymq_cluster.client()
    mq.admin.create_topic("gd", partitions=1)
    mq.admin.create_group("gone", "gd")
    registry = next(iter(tinymq_cluster.brokers.values())).serving.broker.registry  # type: ignore[union-attr]
    tinymq_cluster.run(registry.refresh(10.0))  # another broker may have made the group
    record = registry.get_record("group", "gone")
    assert record is not None
    tinymq_cluster.run(registry.remove_record("group", "gone", record.version))
    leader = tinymq_cluster.brokers[tinymq_cluster.wait_leader("gd")]
    tinymq_cluster.wait_until(lambda: all("gone" not in p.state.cursors for p in led(leader, "gd")))


def test_a_group_without_members_has_none_and_a_queue_group_has_workers() -> None:
    """No member has made the coordinators' topic yet, which a user does not know."""
    with Cluster(nodes=1) as cluster, cluster.client() as mq:
        mq.admin.create_topic("gm", partitions=1)
        mq.admin.create_group("gm-stream", "gm")
        mq.admin.create_group("gm-queue", "gm", kind="queue")
        assert mq.admin.group_members("gm-stream") == []
        with pytest.raises(WrongKind, match="it has workers"):
            mq.admin.group_members("gm-queue")

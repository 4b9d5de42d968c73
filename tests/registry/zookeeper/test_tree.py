"""The writes of a command to ZooKeeper, and their largest size. No server."""

from __future__ import annotations

import json
import random

import pytest

from tests.registry.records import broker
from tinymq.base.types import TopicId
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.state import bounds
from tinymq.registry.state.state import RegistryState
from tinymq.registry.state.values import BrokerRecord
from tinymq.registry.state.wire import broker_to_wire
from tinymq.registry.zookeeper import tree
from tinymq.registry.zookeeper.registry import REQUEST_BYTES_MAX
from tinymq.registry.zookeeper.tree import CreateNode, Op, PutNode, RemoveNode, StoredChange

NAME = "n" * 249


class Written:
    """A state, and the transactions of its commands."""

    def __init__(self) -> None:
        self.state = RegistryState()
        self.deleted: dict[TopicId, str] = {}
        self._rng = random.Random(1)

    def do(self, **kind: object) -> list[Op]:
        command = pb.Command(command_id=self._rng.randbytes(16), time_us=1 << 50, **kind)  # type: ignore[arg-type]
        before, self.state = self.state, self.state.fork()
        reply, effects = self.state.apply(command)
        assert not reply.error_code, reply
        ops = tree.change_ops(before, self.state, 7, StoredChange(command, reply), effects, self.deleted)
        for topic_id in self.state.deleted:
            self.deleted.setdefault(topic_id, tree.deleted_name(self.state.version, topic_id))
        return ops

    def create(self, name: str, partitions: int, factor: int) -> list[Op]:
        wanted = pb.CreateTopic(
            name=name, topic_id=self._rng.randbytes(16), partitions=partitions, replication_factor=factor
        )
        return self.do(create_topic=wanted)

    def fill(self, name: str, partition: int, channel: str, consumer: str) -> None:
        """Like `consume`, but without a check of the writes."""
        wanted = pb.SetConsumer(topic=name, partition=partition, channel=channel, consumer=consumer)
        reply, _ = self.state.apply(pb.Command(set_consumer=wanted))
        assert not reply.error_code

    def consume(self, name: str, partition: int, channel: str, consumer: str = "x") -> list[Op]:
        wanted = pb.SetConsumer(topic=name, partition=partition, channel=channel, consumer=consumer)
        return self.do(set_consumer=wanted)


@pytest.fixture
def written() -> Written:
    made = Written()
    for number in range(1, 6):
        record = broker(number)
        big = BrokerRecord((1 << 32) - number, record.incarnation, (1 << 63) - 1, "h" * 200, "h" * 200, "r" * 100)
        made.do(register_broker=broker_to_wire(big))
    return made


def paths(ops: list[Op], kind: type[Op]) -> list[str]:
    return [op.path for op in ops if isinstance(op, kind)]


def test_a_change_writes_only_the_differences(written: Written) -> None:
    assert paths(written.create("a", 2, 3), CreateNode) == ["/changes/00000000000000000006", "/topics/a"]
    made = written.consume("a", 1, "c")
    group = written.state.queue("a", 1).group
    assert paths(made, CreateNode) == ["/changes/00000000000000000007", f"/consumers/{group.topic_id.hex()}-1"]
    again = written.consume("a", 1, "d")
    assert paths(again, PutNode) == ["/version", f"/consumers/{group.topic_id.hex()}-1"]
    altered = pb.AlterTopic(name="a", settings=[pb.Setting(name="retention_ms", value="5000")])
    assert paths(written.do(alter_topic=altered), PutNode) == ["/version", "/topics/a"]
    more = written.do(create_queue=pb.AddPartition(topic="a"))
    assert (paths(more, PutNode), paths(more, RemoveNode)) == (["/version", "/topics/a"], [])
    gone = written.do(delete_queue=pb.DeletePartition(topic="a", partition=1))
    assert (paths(gone, PutNode), paths(gone, RemoveNode)) == (
        ["/version", "/topics/a"],
        [f"/consumers/{group.topic_id.hex()}-1"],
    )
    written.consume("a", 0, "c")
    gone = written.do(delete_topic=pb.DeleteTopic(name="a"))
    assert paths(gone, RemoveNode) == ["/topics/a", f"/consumers/{group.topic_id.hex()}-0"]
    assert paths(gone, CreateNode)[1:] == [f"/deleted/{13:020d}-{group.topic_id.hex()}"]
    ids = written.do(take_producer_ids=pb.TakeProducerIds(count=5))
    assert (len(ids), ids[0].path) == (2, "/version")
    assert all(isinstance(op, PutNode) and op.version == 7 for ops in (made, gone, ids) for op in ops[:1])


def test_remembered_answers_are_bounded(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "ANSWERED_MAX", 4)
    monkeypatch.setattr(bounds, "DELETED_MAX", 1)
    written.create("a", 1, 1)
    written.create("b", 1, 1)
    (oldest,) = [written.state.topics["a"].topic_id]
    assert paths(written.do(delete_topic=pb.DeleteTopic(name="a")), RemoveNode) == [tree.change_path(4), "/topics/a"]
    gone = written.do(delete_topic=pb.DeleteTopic(name="b"))
    assert paths(gone, RemoveNode) == [tree.change_path(5), "/topics/b", f"/deleted/{8:020d}-{oldest.hex()}"]


def test_the_largest_changes_fit_into_one_request(written: Written) -> None:
    made = written.create(NAME, bounds.PARTITIONS_PER_TOPIC_MAX, 5)
    assert 400_000 < tree.size_of(made) < REQUEST_BYTES_MAX
    for partition in range(bounds.PARTITIONS_PER_TOPIC_MAX):
        written.fill(NAME, partition, "c", "x")
    gone = written.do(delete_topic=pb.DeleteTopic(name=NAME))
    assert len(gone) > bounds.PARTITIONS_PER_TOPIC_MAX
    assert tree.size_of(gone) < REQUEST_BYTES_MAX
    written.create("t", 1, 5)
    for number in range(1, bounds.CONSUMERS_PER_QUEUE_MAX):
        written.fill("t", 0, f"{number:0249d}", NAME)
    last = written.consume("t", 0, f"{0:0249d}", NAME)
    assert len(written.state.consumers) == bounds.CONSUMERS_PER_QUEUE_MAX
    assert 500_000 < tree.size_of(last) < REQUEST_BYTES_MAX


def test_contents_are_json_that_a_person_can_read(written: Written) -> None:
    ops = written.create("a", 1, 1)
    by_path = {op.path: json.loads(op.data) for op in ops if isinstance(op, CreateNode | PutNode)}
    assert by_path["/topics/a"]["partitions"][0]["replicas"][0]["broker_id"] == (1 << 32) - 5
    assert by_path["/changes/00000000000000000006"]["command"]["create_topic"]["name"] == "a"
    assert by_path["/version"]["version"] == "6"
    assert len(by_path["/version"]["brokers"]) == 5


# ZooKeeper stores JSON, so the names of these fields are stored bytes. Fields may be added, and never renamed.
STORED_FIELDS = {
    "Command": "command_id time_us register_broker unregister_broker create_topic delete_topic take_producer_ids"
    " alter_topic create_queue delete_queue set_consumer unset_consumer raise_feature_level put_record",
    "Broker": "broker_id incarnation session address peer_address rack feature_level",
    "UnregisterBroker": "broker_id session",
    "CreateTopic": "name topic_id partitions replication_factor config",
    "DeleteTopic": "name",
    "TopicConfig": "storage sync_interval_ms retention_ms retention_bytes segment_bytes segment_ms max_records"
    " max_bytes on_full",
    "Setting": "name value",
    "AlterTopic": "name settings",
    "AddPartition": "topic",
    "DeletePartition": "topic partition with_topic topic_id",
    "SetConsumer": "topic partition channel consumer",
    "UnsetConsumer": "topic partition channel epoch",
    "RaiseFeatureLevel": "level at_version",
    "PutRecord": "kind name value version remove",
    "Record": "kind name value version",
    "Announced": "broker_id feature_level",
    "TakeProducerIds": "count",
    "Topic": "name topic_id replication_factor created_us partitions config next_partition config_version",
    "Partition": "replicas number created_us",
    "Consumer": "topic_id partition channel consumer epoch",
    "Replica": "broker_id incarnation",
    "Reply": "version error_code error_message first_producer_id error_hint partition epoch",
    "State": "format version brokers topics deleted_topic_ids next_producer_id answered feature_level consumers"
    " announced records",
    "Answered": "command_id reply",
}


@pytest.mark.parametrize("message", sorted(STORED_FIELDS))
def test_the_names_of_stored_fields_stay(message: str) -> None:
    names = [field.name for field in pb.DESCRIPTOR.message_types_by_name[message].fields]
    stored = STORED_FIELDS[message].split()
    assert names[: len(stored)] == stored


def test_a_stored_change_of_the_first_release_is_read() -> None:
    stored = b'{"command":{"command_id":"YQ==","time_us":"1","create_queue":{"topic":"a"}},"reply":{"version":"9"}}'
    change = tree.unpack_change(tree.change_name(9), stored)
    assert change.command.WhichOneof("command") == "create_queue"
    assert change.command.create_queue.topic == "a"
    assert tree.pack_change(change) == stored

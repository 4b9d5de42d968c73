"""Runs under the base build, without the rest of this repository: prints its stored bytes and their meaning as JSON."""

from __future__ import annotations

import json
import sys

from tinymq.entry import Kind, make_entry
from tinymq.raft.membership import Membership, Replica, pack_membership
from tinymq.registry.wire import config_to_wire
from tinymq.topic_config import make
from tinymq.types import GroupId, TopicId

from tinymq.broker.state import PartitionState
from tinymq.proto import partition_pb2, registry_pb2
from tinymq.registry.state import RegistryState

TOPICS = {
    "plain": [],
    "bounded": [("max_bytes", "1000000"), ("max_records", "7"), ("on_full", "drop_oldest"), ("retention_ms", "none")],
    "memory": [("storage", "memory"), ("max_bytes", "1000"), ("retention_bytes", "500")],
    "lazy": [("sync", "250"), ("segment_ms", "5000"), ("segment_bytes", "100000")],
}


def registry() -> RegistryState:
    state = RegistryState()
    number = 0

    def run(**command: object) -> None:
        nonlocal number
        number += 1
        sent = registry_pb2.Command(command_id=b"%016d" % number, time_us=number, **command)  # type: ignore[arg-type]
        reply, _ = state.apply(sent)
        assert not reply.error_code, reply

    for broker in (1, 2, 3):
        run(register_broker=registry_pb2.Broker(
            broker_id=broker, incarnation=bytes([broker]) * 16, session=broker, address="a:1", peer_address="b:1",
            rack="r",
        ))  # fmt: skip
    for name, settings in TOPICS.items():
        run(create_topic=registry_pb2.CreateTopic(
            name=name, topic_id=name.encode().ljust(16, b"."), partitions=3, replication_factor=2,
            config=config_to_wire(make(settings)),
        ))  # fmt: skip
    run(delete_topic=registry_pb2.DeleteTopic(name="lazy"))
    run(delete_queue=registry_pb2.DeleteQueue(topic="plain", partition=1))
    run(alter_topic=registry_pb2.AlterTopic(name="plain", settings=[registry_pb2.Setting(name="sync", value="9")]))
    run(set_consumer=registry_pb2.SetConsumer(topic="plain", partition=2, channel="c", consumer="me"))
    run(take_producer_ids=registry_pb2.TakeProducerIds(count=7))
    return state


def partition() -> PartitionState:
    state = PartitionState()
    commands = [
        partition_pb2.Command(open=partition_pb2.OpenChannel(channel="c", epoch=3)),
        partition_pb2.Command(commit=partition_pb2.Commit(channel="c", epoch=3, generation=1, offset=4)),
        partition_pb2.Command(hold=partition_pb2.Hold(hold_id=b"h" * 16, offset=5, lease_ms=60_000)),
        partition_pb2.Command(consume=partition_pb2.Consume(channel="d", request_id=b"r" * 16)),
        partition_pb2.Command(move_start=partition_pb2.MoveStart(offset=2, reason=partition_pb2.MoveStart.TRIM)),
    ]
    packed = partition_pb2.Commands(commands=commands).SerializeToString()
    base = 0
    for index, (kind, payload, count) in enumerate(
        [(Kind.CONFIG, config(), 0), (Kind.DATA, b"x" * 100, 10), (Kind.DATA, b"y" * 50, 2), (Kind.COMMAND, packed, 0)],
        1,
    ):
        entry = make_entry(
            kind=kind, index=index, term=1, prev_crc=0, base_offset=base, record_count=count,
            append_time_us=1_000_000 * index, max_timestamp_us=0, payload=payload,
        )  # fmt: skip
        state.apply(entry)
        base += count
    return state


def config() -> bytes:
    group = GroupId(TopicId(b"t" * 16), 4)
    listed = tuple(Replica(n, bytes([n]) * 16, n) for n in (1, 2, 3))
    return pack_membership(Membership(group, 9, listed, 1 << 33, (Replica(2, b"o" * 16, 0),)))


def main() -> None:
    state = registry()
    said = {
        "registry": state.dump().hex(),
        "settings": {name: topic.config.settings() for name, topic in state.topics.items()},
        "partition": partition().dump().hex(),
        "config": config().hex(),
        "asked": TOPICS,
    }
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()

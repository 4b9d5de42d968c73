"""A request must name what it changes: an absent number is refused, and never means number 0."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tests.fakes.queue_client import QueueClient
from tests.fakes.raw_client import Raw
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.rpc.services.channels import BY_OFFSET
from tinymq.testing import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

WAIT_S = 20.0
ID = b"i" * 16
OURS = (("tinymq-client-id", "an older client of tinymq's own"),)

# Numbers whose absence means 0, and why that is harmless. A new field belongs here, or is `optional` and checked.
ABSENT_IS_ZERO = {
    "timeout_ms": "the broker's own",
    "ConsumeMessageRequest.wait_ms": "does not wait",
    "FetchMessageRequest.queue": "reads queue 0, as older clients mean; changes nothing",
    "FetchMessageRequest.offset": "reads the first message",
    "FetchMessageRequest.wait_ms": "does not wait",
    "CreateQueueRequest.replication_factor": "the default",
    "CreateTopicRequest.partitions": "refused",
    "CreateTopicRequest.replication_factor": "refused",
    "TransferLeaderRequest.to": "any broker",
    "UnsetConsumerRequest.epoch": "whichever",
    "GetConsumerRequest.partition": "reads",
    "ListChannelsRequest.partitions": "reads, of none",
    "ChannelOpen.epoch": "fences nobody",
    "ChannelCommit.epoch": "a fence that never matches",
    "ChannelCommit.generation": "a fence that never matches",
    "ChannelSeek.epoch": "of no consumer",
    "HoldRequest.enough_ms": "renews either way",
    "ChannelCommand.kind": "a channel",
    "ChannelCommand.group_id": "a channel",
    "HeartbeatRequest.group_id": "refused",
    "HeartbeatRequest.number": "the oldest list",
    "HeartbeatRequest.taken": "no assignment was taken",
    "HeartbeatRequest.fenced_at": "by no epoch",
    "OwnedPartition.partition": "the first one of its topic",
    "OwnedPartition.epoch": "an epoch that was never given",
    "AwaitAssignmentRequest.group_id": "refused",
    "AwaitAssignmentRequest.digest": "no assignment",
    "AwaitAssignmentRequest.wait_ms": "does not wait",
    "ListMembersRequest.group_id": "refused",
    "GrantRun.offset": "the first record",
    "GrantRun.count": "refused",
    "GrantRun.term": "LeaseLost",
    "GrantRun.number": "LeaseLost",
    "GrantRun.delivery": "LeaseLost",
    "Grants.history": "there was no recovery",
    "Grants.generation": "LeaseLost",
    "WorkRequest.ping": "no answer",
    "WorkAttach.attachment": "refused",
    "WorkAttach.group_id": "refused",
    "WorkAttach.credit_records": "nothing is granted",
    "WorkAttach.credit_bytes": "one record at a time",
    "WorkAttach.term": "none was seen",
    "WorkCredit.attachment": "ignored",
    "WorkCredit.records": "no further record",
    "WorkCredit.bytes": "no further byte",
    "WorkSettle.attachment": "ignored",
    "WorkSettle.request_id": "no answer",
    "WorkSettle.verb": "refused",
    "WorkDetach.attachment": "ignored",
    "SettleRequest.verb": "NONE, which is refused",
    "CreateGroupRequest.start_us": "at the earliest record",
    "TransactionPartition.batches": "none was sent",
    "BatchTransaction.writer": "the only one, or the first",
    "ListTransactionalIdsRequest.limit": "the broker's own",
    "ListHungTransactionsRequest.limit": "the broker's own",
    "CommitSetsRequest.writers": "none: no task had a row",
    "BeginHalfMessageRequest.check_after_ms": "the broker's own",
    "AwaitChecksRequest.checks_max": "the broker's own",
    "AwaitChecksRequest.wait_ms": "does not wait",
    "ListHalfMessagesRequest.limit": "the broker's own",
    "FeatureLevelRequest.action": "shows",
    "FeatureLevelRequest.level": "the present one",
}


def _scalars(message: Descriptor) -> Iterator[tuple[Descriptor, FieldDescriptor]]:
    """The numbers of a request and its nested messages."""
    for field in message.fields:
        if field.message_type is not None:
            yield from _scalars(field.message_type)
        elif field.cpp_type not in (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_BOOL):
            yield message, field


def test_every_number_of_a_request_that_may_be_absent_is_harmless() -> None:
    unknown = set()
    for name in ("Admin", "Channels", "Groups", "QueueService", "Transactions"):
        for method in pb.DESCRIPTOR.services_by_name[name].methods:
            for message, field in _scalars(method.input_type):
                full = f"{message.name}.{field.name}"
                if not field.has_presence and full not in ABSENT_IS_ZERO and field.name not in ABSENT_IS_ZERO:
                    unknown.add(full)
    assert unknown == set()


def test_a_queue_that_is_not_named_is_not_deleted(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with Raw(tinymq_cluster.address(1)) as raw:
            await raw.create("unnamed")
        for client_id in ("", "any client may choose its quota's name"):
            async with QueueClient([tinymq_cluster.address(1)], client_id) as client:
                status, error = await client.refused("DeleteQueue", pb.DeleteQueueRequest(topic="unnamed"))
                assert (status, error.code) == (grpc.StatusCode.INVALID_ARGUMENT, "InvalidRequest")
                assert "does not say which queue" in error.message
        async with Raw(tinymq_cluster.address(1)) as raw:
            assert len((await raw.topic("unnamed")).partitions) == 1
        async with QueueClient([tinymq_cluster.address(1)]) as client:
            await client.call("DeleteQueue", pb.DeleteQueueRequest(topic="unnamed", queue=0))

    asyncio.run(main())


COMMANDS: dict[str, pb.ChannelCommand] = {
    "partition of a delete": pb.ChannelCommand(channel="c", delete=pb.ChannelDelete()),
    "partition of a consume": pb.ChannelCommand(channel="c", consume=pb.ChannelConsume(request_id=ID)),
    "place of an open": pb.ChannelCommand(partition=0, channel="d", open=pb.ChannelOpen()),
    "place of a seek": pb.ChannelCommand(partition=0, channel="c", seek=pb.ChannelSeek(request_id=ID)),
    "offset of a seek": pb.ChannelCommand(
        partition=0, channel="c", seek=pb.ChannelSeek(request_id=ID, to_us=BY_OFFSET)
    ),
    "offset of a commit": pb.ChannelCommand(partition=0, channel="c", commit=pb.ChannelCommit(generation=1)),
}


def test_an_absent_number_is_not_zero(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with Raw(tinymq_cluster.address(1)) as raw:
            topic = await raw.create("unsaid", partitions=2)
        leader = await asyncio.to_thread(tinymq_cluster.wait_leader, "unsaid")
        async with Raw(tinymq_cluster.address(leader)) as raw:
            await raw.send(topic.topic_id)
            stub: Any = pb_grpc.ChannelsStub(raw.channel)
            made = pb.ChannelCommand(partition=0, channel="c", open=pb.ChannelOpen(start_us=-1))
            (before,) = await _change(stub, topic.topic_id, made)
            assert (before.position, before.error.code) == (1, "")
            for what, command in COMMANDS.items():
                (outcome,) = await _change(stub, topic.topic_id, command)
                assert outcome.error.code == "InvalidRequest", what
                assert "does not say which" in outcome.error.message, what
            listed = await stub.List(pb.ListChannelsRequest(topic_id=topic.topic_id, partitions=[0]), timeout=WAIT_S)
            (channels,) = listed.partitions
            assert [(c.channel, c.position) for c in channels.channels] == [("c", 1)]
            for call, request in _unsaid(raw, stub, topic):
                reply = await call(request, timeout=WAIT_S)
                assert reply.error.code == "InvalidRequest", request
                assert "does not say which" in reply.error.message, request
            assert (await raw.fetch(topic.topic_id)).log_start == 0
            assert len((await raw.topic("unsaid")).partitions) == 2

    asyncio.run(main())


def test_an_older_client_of_our_own_means_zero_where_it_leaves_it_out(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with Raw(tinymq_cluster.address(1)) as raw:
            topic = await raw.create("older", partitions=2)
        leader = await asyncio.to_thread(tinymq_cluster.wait_leader, "older")
        async with Raw(tinymq_cluster.address(leader)) as raw:
            stub: Any = pb_grpc.ChannelsStub(raw.channel)
            made = pb.ChannelCommand(channel="c", open=pb.ChannelOpen(start_us=-2))
            (opened,) = await _change(stub, topic.topic_id, made, OURS)
            assert opened.error.code == ""
            (held,) = (
                await stub.Hold(
                    pb.HoldRequest(topic_id=topic.topic_id, hold_id=ID, ranges=[pb.HoldRange()]),
                    timeout=WAIT_S,
                    metadata=OURS,
                )
            ).outcomes
            assert held.error.code == "", "a release"
            gone = pb.DeletePartitionRequest(topic="older", timeout_ms=10_000)
            reply = await raw.admin.DeletePartition(gone, timeout=WAIT_S, metadata=OURS)
            assert not reply.HasField("error"), reply.error
            assert [p.partition for p in (await raw.topic("older")).partitions] == [1]

    asyncio.run(main())


async def _change(stub: Any, topic_id: bytes, command: pb.ChannelCommand, metadata: Any = ()) -> list[Any]:
    request = pb.ChannelsRequest(topic_id=topic_id, commands=[command])
    return list((await stub.Change(request, timeout=WAIT_S, metadata=metadata)).outcomes)


def _unsaid(raw: Raw, stub: Any, topic: pb.TopicInfo) -> list[tuple[Any, Any]]:
    """Calls that do not name what they change."""
    t = topic.topic_id
    return [
        (raw.admin.DeletePartition, pb.DeletePartitionRequest(topic="unsaid")),
        (raw.admin.TransferLeader, pb.TransferLeaderRequest(topic="unsaid")),
        (stub.SetConsumer, pb.SetConsumerRequest(topic="unsaid", channel="c", consumer="me")),
        (stub.UnsetConsumer, pb.UnsetConsumerRequest(topic="unsaid", channel="c")),
        (stub.Trim, pb.TrimRequest(topic_id=t, before_us=-1)),
        (stub.Trim, pb.TrimRequest(topic_id=t, partition=0)),
        (stub.Trim, pb.TrimRequest(topic_id=t, partition=0, before_us=BY_OFFSET)),
        (stub.Hold, pb.HoldRequest(topic_id=t, hold_id=ID, ranges=[pb.HoldRange(partition=0, offset=0)])),
        (stub.Hold, pb.HoldRequest(topic_id=t, hold_id=ID, lease_ms=1000, ranges=[pb.HoldRange(offset=0)])),
        (stub.Hold, pb.HoldRequest(topic_id=t, hold_id=ID, lease_ms=1000, ranges=[pb.HoldRange(partition=0)])),
    ]


@pytest.mark.parametrize("message", [pb.DeleteQueueRequest, pb.TrimRequest, pb.HoldRange, pb.ChannelCommand])
def test_the_bytes_are_as_before_but_for_a_zero_that_is_said(message: Any) -> None:
    """Clients that know no field presence read and write the same bytes."""
    field = "queue" if message is pb.DeleteQueueRequest else "partition"
    number = message.DESCRIPTOR.fields_by_name[field].number
    assert message(**{field: 7}).SerializeToString() == bytes([number << 3, 7])
    assert message(**{field: 0}).SerializeToString() == bytes([number << 3, 0])
    assert message().SerializeToString() == b""

"""Every door of a broker has a row in the gate's table, and a stranger and a user without rights find it closed.

The doors are enumerated from the descriptors, so a new one without a row fails here.
"""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.access.secured import ALL, CALL_S, Secured, named, secured
from tests.rpc.common.test_rpc_method import SERVICES
from tinymq.base.config import MIB, parse_address
from tinymq.base.errors import Denied, Unauthenticated, WrongSecret
from tinymq.base.identity.grants import OPERATIONS
from tinymq.format.feature_level import PEER_MESSAGES
from tinymq.metrics.doorkeeper import Doorkeeper
from tinymq.net.frame_socket import FrameSocket
from tinymq.net.framing import FrameReader
from tinymq.proto import peer_pb2
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.methods import METHODS, method_named
from tinymq.rpc.common.rpc_method import access_of
from tinymq.rpc.server.foreign_services import RULES

SECRET = [label for label in ALL if access_of(SERVICES[named(label).service], named(label)).operation == "secret"]
SESSION = b"s" * 16
BEGUN = pb.TransactionRef(producer_id=1, epoch=0, number=1)


@pytest.fixture(scope="module")
def s() -> Iterator[Secured]:
    with secured(metrics=True) as cluster:
        cluster.root.admin.create_group("readers", ["orders"])
        cluster.user("nobody")  # a user who may do nothing
        cluster.user("half", "read channel:*", "read group:*")  # has half of what a reader needs
        yield cluster


def requests(s: Secured) -> dict[str, Any]:
    """A request of each RPC that would be served if its caller might: of "orders", and of "readers"."""
    t = s.topic_id("orders")
    grant = pb.AccessGrant(operation="read", kind="topic", name="orders")
    return {
        "Broker.Produce": pb.ProduceRequest(batches=[pb.ProduceBatch(topic_id=t, request_id=1, payload=b"x")]),
        "Broker.Fetch": pb.FetchRequest(topic_id=t, request_id=1),
        "Broker.Metadata": pb.MetadataRequest(topics=["orders"]),
        "Broker.ListOffsets": pb.ListOffsetsRequest(topic_id=t, queries=[pb.OffsetQuery(timestamp_us=-1)]),
        "Broker.OpenProducer": pb.OpenProducerRequest(),
        "Channels.SetConsumer": pb.SetConsumerRequest(topic="orders", partition=0, channel="c", consumer="me"),
        "Channels.UnsetConsumer": pb.UnsetConsumerRequest(topic="orders", partition=0, channel="c"),
        "Channels.GetConsumer": pb.GetConsumerRequest(topic="orders", partition=0, channel="c"),
        "Channels.Change": pb.ChannelsRequest(
            topic_id=t,
            commands=[pb.ChannelCommand(channel="c", partition=0, consume=pb.ChannelConsume(request_id=SESSION))],
        ),
        "Channels.List": pb.ListChannelsRequest(topic_id=t, partitions=[0]),
        "Channels.Trim": pb.TrimRequest(topic_id=t, partition=0, before_us=-2),
        "Channels.Hold": pb.HoldRequest(topic_id=t, hold_id=SESSION, lease_ms=1000),
        "Groups.CreateGroup": pb.CreateGroupRequest(name="g", kind="stream", topics=["orders"]),
        "Groups.DeleteGroup": pb.DeleteGroupRequest(name="readers"),
        "Groups.ListGroups": pb.ListGroupsRequest(name="readers"),
        "Groups.Heartbeat": pb.HeartbeatRequest(group="readers", member="m", session=SESSION),
        "Groups.AwaitAssignment": pb.AwaitAssignmentRequest(group="readers", member="m", session=SESSION),
        "Groups.ListMembers": pb.ListMembersRequest(group="readers"),
        "Workers.Work": pb.WorkRequest(
            attach=[pb.WorkAttach(attachment=1, topic_id=t, partition=0, group="readers", session=SESSION)]
        ),
        "DeadLetters.ExplainRecord": pb.ExplainRecordRequest(topic_id=t, partition=0, offset=0),
        "DeadLetters.RedriveRecord": pb.RedriveRecordRequest(topic_id=t, partition=0, offset=0, run=SESSION),
        "DeadLetters.PurgeRecords": pb.PurgeRecordsRequest(topic_id=t, partition=0, before=0),
        "Schedules.ListScheduled": pb.ListScheduledRequest(topic_id=t, partition=0),
        "Schedules.CancelScheduled": pb.CancelScheduledRequest(topic_id=t, partition=0, schedule_id=1),
        "Users.ChangeUser": pb.ChangeUserRequest(name="nobody", grant=grant),
        "Users.TestAccess": pb.TestAccessRequest(user="nobody", wanted=grant),
        "Admin.CreateTopic": pb.CreateTopicRequest(name="new", partitions=1, default_factor=True),
        "Admin.DeleteTopic": pb.DeleteTopicRequest(name="orders"),
        "Admin.AlterTopic": pb.AlterTopicRequest(name="orders"),
        "Admin.AddPartition": pb.AddPartitionRequest(topic="orders"),
        "Admin.DeletePartition": pb.DeletePartitionRequest(topic="orders", partition=0),
        "Admin.TransferLeader": pb.TransferLeaderRequest(topic="orders", partition=0),
        "Admin.FeatureLevel": pb.FeatureLevelRequest(action=pb.FeatureLevelRequest.RELEASE),
        "QueueService.ProduceMessage": pb.ProduceMessageRequest(topic="orders", value=b"x"),
        "QueueService.AsyncProduceMessage": pb.ProduceMessageRequest(topic="orders", value=b"x"),
        "QueueService.ConsumeMessage": pb.ConsumeMessageRequest(topic="orders", channel="c"),
        "QueueService.FetchMessage": pb.FetchMessageRequest(topic="orders", queue=0),
        "QueueService.CreateQueue": pb.CreateQueueRequest(topic="orders"),
        "QueueService.DeleteQueue": pb.DeleteQueueRequest(topic="orders", queue=0),
        "QueueService.GetQueueSize": pb.GetQueueSizeRequest(topic="orders", channel="c"),
    }


def of_transactions(s: Secured) -> dict[str, Any]:
    """The same, of the id "billing" and a partition of "orders"."""
    place = pb.TransactionPartition(topic_id=s.topic_id("orders"), partition=0)
    return {
        "Transactions.RegisterOwner": pb.RegisterOwnerRequest(transactional_id="billing"),
        "Transactions.BeginTransaction": pb.BeginTransactionRequest(transactional_id="billing", producer_id=1, epoch=0),
        "Transactions.AddPartitions": pb.AddPartitionsRequest(
            transactional_id="billing",
            transaction=BEGUN,
            partitions=[place],
        ),
        "Transactions.CommitTransaction": pb.CommitTransactionRequest(transactional_id="billing", transaction=BEGUN),
        "Transactions.AbortTransaction": pb.AbortTransactionRequest(transactional_id="billing", transaction=BEGUN),
        "Transactions.ResolveTransaction": pb.ResolveTransactionRequest(transaction=BEGUN, coordinator=0, commit=True),
        "Transactions.OpenSet": pb.OpenSetRequest(application="billing", version=1, run="r"),
        "Transactions.CommitSets": pb.CommitSetsRequest(application="billing", version=1),
        "Transactions.DiscardSets": pb.DiscardSetsRequest(application="billing", transaction=BEGUN),
        "Transactions.ListTransactionalIds": pb.ListTransactionalIdsRequest(transactional_id="billing"),
    }


def of_half_messages(s: Secured) -> dict[str, Any]:
    """The same, of the producer group "checkout" and a partition of "orders"."""
    return {
        "HalfMessages.BeginHalfMessage": pb.BeginHalfMessageRequest(
            producer_group="checkout", topic_id=s.topic_id("orders"), partition=0
        ),
        "HalfMessages.EndHalfMessage": pb.EndHalfMessageRequest(
            producer_group="checkout", transaction=BEGUN, commit=True
        ),
        "HalfMessages.AwaitChecks": pb.AwaitChecksRequest(producer_group="checkout", member=b"m" * 16),
        "HalfMessages.CountCheck": pb.CountCheckRequest(producer_group="checkout", transaction=BEGUN, number=0),
        "HalfMessages.ListHalfMessages": pb.ListHalfMessagesRequest(producer_group="checkout"),
    }


# Each answers about the caller, or leaves out the names that the caller may not know.
OPEN_TO_USERS = {"Users.WhoAmI", "Admin.DescribeScan", "Transactions.ListHungTransactions"}


def request_of(s: Secured, label: str) -> Any:
    return (requests(s) | of_transactions(s) | of_half_messages(s)).get(label, named(label).request())


@pytest.mark.parametrize("label", ALL)
def test_a_stranger_finds_every_rpc_closed(s: Secured, label: str) -> None:
    error = s.raw(named(label), request_of(s, label))
    assert isinstance(error, WrongSecret if label in SECRET else Unauthenticated), error


@pytest.mark.parametrize("label", [label for label in ALL if label not in SECRET])
def test_so_does_a_caller_with_an_invented_token(s: Secured, label: str) -> None:
    error = s.raw(named(label), request_of(s, label), "tmq_" + "A" * 43)
    assert isinstance(error, Unauthenticated), error
    assert "AAAA" not in str(error)


@pytest.mark.parametrize("label", [label for label in ALL if label not in SECRET and label not in OPEN_TO_USERS])
def test_a_user_without_rights_is_denied_by_every_rpc(s: Secured, label: str) -> None:
    error = s.raw(named(label), request_of(s, label), s.tokens["nobody"])
    assert type(error) is Denied, error
    assert "orders" not in error.message or b"orders" in request_of(s, label).SerializeToString()


NEEDS_TOPIC = [
    label
    for label in ALL
    if any(kind.kind == "topic" for _, kind in access_of(SERVICES[named(label).service], named(label)).also)
]


@pytest.mark.parametrize("label", NEEDS_TOPIC)
def test_half_of_the_rights_is_not_enough(s: Secured, label: str) -> None:
    """Whoever may read every channel and group still needs the topic."""
    error = s.raw(named(label), request_of(s, label), s.tokens["half"])
    assert type(error) is Denied, error


def test_each_operation_has_a_word_in_the_table() -> None:
    rows = [access_of(SERVICES[method.service], method) for method in METHODS.values()]
    assert {row.operation for row in rows} <= {*OPERATIONS, "known", "secret", "switch"}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_of_a_token_has_no_case(s: Secured, scheme: str) -> None:
    asked = method_named("Users", "WhoAmI")
    told = s.raw(asked, asked.request(), authorization=f"{scheme} {s.tokens['root']}")
    assert told.name == "root"


# ---- the other services of the gRPC port --------------------------------------------------------------------------


def registered(s: Secured) -> set[str]:
    """What reflection tells of the services, as an administrator sees it."""
    channel = grpc.insecure_channel(s.cluster.address(1))
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with channel:
        (reply,) = stub.ServerReflectionInfo(
            iter([request]), metadata=[("authorization", f"Bearer {s.tokens['root']}")]
        )
    return {service.name for service in reply.list_services_response.service}


def test_every_service_is_in_the_table(s: Secured) -> None:
    ours = {path.split("/")[1] for path in METHODS}
    assert registered(s) == ours | {path.split("/")[1] for path in RULES}


def test_reflection_wants_to_know_its_caller(s: Secured) -> None:
    with grpc.insecure_channel(s.cluster.address(1)) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]


def test_health_is_open_and_says_only_whether_the_broker_serves(s: Secured) -> None:
    with grpc.insecure_channel(s.cluster.address(1)) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


# ---- the stream port ------------------------------------------------------------------------------------------------


def welcome(s: Secured, kind: int, token: str) -> pb.StreamWelcome:
    address = parse_address(s.cluster.call(lambda: s.cluster.brokers[1].serving.stream_address))
    with socket.create_connection(address) as sock:
        stream = FrameSocket(sock, FrameReader(MIB, MIB))
        hello = pb.StreamHello(protocol=1, kind=pb.StreamKind.ValueType(kind), broker_id=99, token=token)
        stream.send(hello.SerializeToString(), (), CALL_S)
        head, _ = stream.receive(CALL_S)
        return pb.StreamWelcome.FromString(bytes(head))


KINDS = [kind for kind in pb.StreamKind.values() if kind]


@pytest.mark.parametrize("token", ["", "tmq_" + "A" * 43])
@pytest.mark.parametrize("kind", KINDS)
def test_the_stream_port_wants_a_token_before_it_tells_anything(s: Secured, kind: int, token: str) -> None:
    assert welcome(s, kind, token).error.code == "Unauthenticated", "not even which broker this is"


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_gets_as_far_as_the_topics(s: Secured, kind: int) -> None:
    assert welcome(s, kind, s.tokens["nobody"]).error.code == "WrongBroker"


# ---- HTTP ---------------------------------------------------------------------------------------------------------


def status(s: Secured, path: str, **headers: str) -> int:
    request = urllib.request.Request(f"http://{s.cluster.metrics_address(1)}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def routes(s: Secured) -> list[str]:
    server = s.cluster.brokers[1].metrics.server
    return list(server.routes) if server is not None else []


def test_http_on_loopback_answers_programs_and_no_web_page(s: Secured) -> None:
    assert routes(s) == ["/metrics", "/status"]
    for path in routes(s):
        assert status(s, path) == 200
        assert status(s, path, Host="attacker.example") == 421


def test_http_for_other_machines_wants_a_token(s: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    server, gate = s.cluster.brokers[1].metrics.server, s.cluster.brokers[1].gate
    assert server is not None
    monkeypatch.setattr(server, "admit", Doorkeeper(gate, on_loopback=False).admit)
    s.user("monitor", "describe cluster")
    expected: dict[str, int] = {"": 401, "tmq_wrong": 401, "nobody": 403, "monitor": 200, "root": 200}
    for path in routes(s):
        for user, code in expected.items():
            token = s.tokens.get(user, user)
            assert status(s, path, **({"Authorization": f"Bearer {token}"} if token else {})) == code, (path, user)


# ---- between brokers ----------------------------------------------------------------------------------------------


def test_every_peer_message_needs_the_secret() -> None:
    """A connection between brokers is no door of users: its handshake proves the cluster's secret before any message.

    tests/raft/net and tests/test_strangers.py try it. A kind of message that is new belongs into this table, too.
    """
    kinds = {field.name for field in peer_pb2.Peer.DESCRIPTOR.oneofs[0].fields}
    assert kinds == set(PEER_MESSAGES)

"""Random client requests, built from the messages' descriptors, to a running broker. Each ends in time with a reply,
and a wrong request gets an error with a known code. Any other exception of a service would come back as a gRPC status.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.batches import payload
from tests.fuzz.driver import allocating
from tinymq.base.config import MIB, Limits, Timing
from tinymq.base.errors import BY_CODE
from tinymq.format.batch import Codec
from tinymq.format.entry import crc32c
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.proto.methods import METHODS, Method
from tinymq.testing.cluster import Cluster

QUICK = settings(
    max_examples=40, derandomize=True, database=None, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
CALL_S_MAX = 20.0
CALL_BYTES_MAX = 32 * MIB  # of this process, the broker and the client: three new logs of segments of 1 MiB take 12
PARTITIONS_MAX = 3  # creating a topic for real takes files
LIMITS = Limits(batch_bytes_max=MIB, record_bytes_max=MIB, batch_uncompressed_bytes_max=2 * MIB, segment_bytes=MIB)
TIMING = Timing(fetch_wait_s_max=0.05)


class Bench:
    """One broker with a topic, and stubs for it."""

    def __init__(self, cluster: Cluster) -> None:
        self.channel = grpc.insecure_channel(cluster.address(1), [("grpc.max_receive_message_length", 64 * MIB)])
        self.broker: Any = pb_grpc.BrokerStub(self.channel)
        self.admin: Any = pb_grpc.AdminStub(self.channel)
        wanted = pb.CreateTopicRequest(name="t", partitions=2, replication_factor=1, timeout_ms=10_000)
        self.topic_id = self.admin.CreateTopic(wanted, timeout=CALL_S_MAX, wait_for_ready=True).topic.topic_id
        assert self.topic_id
        self._coordinates = False

    def coordinate(self) -> None:
        """Make the coordinators of transactions, once: a request that made them would take 64 MiB."""
        if not self._coordinates:
            owner = pb_grpc.TransactionsStub(self.channel)
            wanted = pb.RegisterOwnerRequest(transactional_id="a")
            while owner.RegisterOwner(wanted, timeout=CALL_S_MAX).HasField("error"):
                pass  # its partition has no leader yet
            self._coordinates = True

    def still_serves(self) -> None:
        data = payload(2)
        batch = pb.ProduceBatch(topic_id=self.topic_id, payload=data, payload_crc=crc32c(data))
        (reply,) = self.broker.Produce(iter([pb.ProduceRequest(batches=[batch])]), timeout=CALL_S_MAX)
        assert not reply.results[0].HasField("error"), reply


_RUNNING: list[Bench] = []


@cache
def _kept() -> Cluster:
    """A bench for a process without tests, which ends with the process."""
    return Cluster(nodes=1, limits=LIMITS, timing=TIMING).__enter__()


def bench() -> Bench:
    if not _RUNNING:
        _RUNNING.append(Bench(_kept()))
    return _RUNNING[-1]


@pytest.fixture(scope="module", autouse=True)
def _running() -> Iterator[None]:
    with Cluster(nodes=1, limits=LIMITS, timing=TIMING) as cluster:
        _RUNNING.append(Bench(cluster))
        yield
        _RUNNING.pop().channel.close()


# ---- messages at random ------------------------------------------------------------------------------------

PAYLOADS = [payload(3), payload(2, producer=5, epoch=1, sequence=0), payload(2, codec=Codec.ZSTD), b"", b"x" * 40]
TEXTS = st.one_of(st.sampled_from(["t", "a", "b", "", "..", "a/b", "x" * 300, "é"]), st.text(max_size=10))
U32 = st.one_of(st.sampled_from([0, 1, 2, 3, 1 << 31, (1 << 32) - 1]), st.integers(0, (1 << 32) - 1))
U64 = st.one_of(st.sampled_from([0, 1, 2, 1 << 63, (1 << 64) - 1]), st.integers(0, (1 << 64) - 1))
I64 = st.one_of(st.sampled_from([0, -1, -2, -3, -4, -(1 << 63), (1 << 63) - 1]), st.integers(-(1 << 63), (1 << 63) - 1))
NUMBERS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_UINT32: U32,
    FieldDescriptor.TYPE_FIXED32: U32,
    FieldDescriptor.TYPE_UINT64: U64,
    FieldDescriptor.TYPE_FIXED64: U64,
    FieldDescriptor.TYPE_INT64: I64,
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_ENUM: st.sampled_from([0, 1, 2, 7, (1 << 31) - 1, -1]),
    FieldDescriptor.TYPE_STRING: TEXTS,
}
TOPIC_IDS = st.sampled_from([b"THE TOPIC", b"", bytes(16), b"u" * 16, b"short", b"l" * 100])
SETTLED = frozenset({"max_wait_ms", "payload_crc"})  # omitted or corrected: otherwise most drawn requests end there


def field_values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return messages(field.message_type)
    if field.name == "payload":
        return st.one_of(st.sampled_from(PAYLOADS), st.binary(max_size=60))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return TOPIC_IDS if field.name == "topic_id" else st.binary(max_size=40)
    return NUMBERS[field.type]


@cache
def messages(kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Draw any message of this type, as a dictionary."""
    optional = {}
    for field in kind.fields:
        values = field_values(field)
        optional[field.name] = st.lists(values, max_size=3) if field.is_repeated else values
    return st.fixed_dictionaries({}, optional={name: s for name, s in optional.items() if name not in SETTLED})


def made(kind: type[Message], values: dict[str, Any]) -> Any:
    """Return the message, changed to name the existing topic."""

    def there(value: Any) -> Any:
        if isinstance(value, dict):
            inner = {name: there(item) for name, item in value.items()}
            if "payload" in inner:
                inner["payload_crc"] = crc32c(inner["payload"])
            return inner
        if isinstance(value, list):
            return [there(item) for item in value]
        return bench().topic_id if value == b"THE TOPIC" else value

    return kind(**there(values))


def errors_of(message: Message) -> Iterator[pb.Error]:
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE and not field.message_type.GetOptions().map_entry:
            for item in value if field.is_repeated else [value]:
                if isinstance(item, pb.Error):
                    yield item
                else:
                    yield from errors_of(item)


def check(reply: Message) -> None:
    for error in errors_of(reply):
        assert error.code in BY_CODE, error
        assert error.code != "BrokenInvariant", "a bug of the broker"
        assert error.message, error


def unary(*services: str) -> list[Method]:
    """The unary RPCs of `services`, as their descriptors declare them."""
    return [method for method in METHODS.values() if method.service in services and not method.streams]


def calls(*services: str) -> st.SearchStrategy[tuple[Method, dict[str, Any]]]:
    """Draws an RPC and the fields of a request for it."""
    return st.sampled_from(unary(*services)).flatmap(
        lambda method: st.tuples(st.just(method), messages(method.request.DESCRIPTOR))
    )


def harmless(method: Method, values: dict[str, Any]) -> dict[str, Any]:
    """The same fields, changed so that the bench keeps its topic, creates few partitions, and checkers do not wait."""
    if method.name == "AwaitChecks":
        values["wait_ms"] = 0
    if method.name.startswith(("Delete", "Alter")):
        values |= {name: "a" for name in ("name", "topic") if values.get(name) == "t"}
    if method.name == "CreateTopic" and values.get("partitions", 0) <= 1024:
        values["partitions"] = min(values.get("partitions", 0), PARTITIONS_MAX)
    return values


def call(method: Method, request: Message) -> Any:
    """Call the RPC on the broker of the bench. Raises grpc.RpcError."""
    serialize, parse = method.request.SerializeToString, method.reply.FromString
    return bench().channel.unary_unary(method.path, serialize, parse)(request, timeout=CALL_S_MAX)


@given(calls("Broker", "Admin"))
@QUICK
def test_calls(drawn: tuple[Method, dict[str, Any]]) -> None:
    method, values = drawn
    request = made(method.request, harmless(method, values))
    with allocating(CALL_BYTES_MAX, f"{method.label} with {request.ByteSize()} bytes"):
        check(call(method, request))


@pytest.mark.long
@given(calls("Transactions", "HalfMessages"))
@QUICK
def test_calls_about_transactions(drawn: tuple[Method, dict[str, Any]]) -> None:
    bench().coordinate()
    method, values = drawn
    request = made(method.request, harmless(method, values))
    with allocating(CALL_BYTES_MAX, f"{method.label} with {request.ByteSize()} bytes"):
        check(call(method, request))
    bench().still_serves()


@given(st.lists(messages(pb.ProduceRequest.DESCRIPTOR), max_size=4))
@QUICK
def test_produce_streams(requests: list[dict[str, Any]]) -> None:
    sent = [made(pb.ProduceRequest, values) for values in requests]
    answered = 0
    with allocating(CALL_BYTES_MAX, f"Produce with {sum(request.ByteSize() for request in sent)} bytes"):
        for reply in bench().broker.Produce(iter(sent), timeout=CALL_S_MAX):
            check(reply)
            answered += len(reply.results)
    assert answered == sum(batch.acks != pb.ACKS_NONE for request in sent for batch in request.batches)
    bench().still_serves()


@given(st.lists(messages(pb.FetchRequest.DESCRIPTOR), max_size=6))
@QUICK
def test_fetch_streams(requests: list[dict[str, Any]]) -> None:
    sent = [made(pb.FetchRequest, values) for values in requests]
    with allocating(CALL_BYTES_MAX, f"Fetch with {sum(request.ByteSize() for request in sent)} bytes"):
        replies = list(bench().broker.Fetch(iter(sent), timeout=CALL_S_MAX))
    for reply in replies:
        check(reply)
    assert len(replies) <= sum(not request.cancel for request in sent)
    if not any(request.cancel for request in sent):
        assert len(replies) == len(sent)


LARGEST = {
    FieldDescriptor.TYPE_UINT32: (1 << 32) - 1,
    FieldDescriptor.TYPE_UINT64: (1 << 64) - 1,
    FieldDescriptor.TYPE_INT64: (1 << 63) - 1,
}


def with_one_number_at_its_largest(message: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, copy of the request) for each number in it and its repeated messages."""
    for field in message.DESCRIPTOR.fields:
        copy = type(message).FromString(message.SerializeToString())
        if field.type in LARGEST and not field.is_repeated:
            setattr(copy, field.name, LARGEST[field.type])
            yield field.name, copy
        elif field.type == FieldDescriptor.TYPE_MESSAGE and field.is_repeated and getattr(message, field.name):
            for name, larger in with_one_number_at_its_largest(getattr(message, field.name)[0]):
                getattr(copy, field.name)[0].CopyFrom(larger)
                yield name, copy


def test_no_number_makes_a_broker_allocate_what_it_says() -> None:
    """The rest of each request is valid, so that the number reaches the service."""
    bench().still_serves()
    topic_id, data = bench().topic_id, payload(2)
    good: dict[str, Any] = {
        "Fetch": pb.FetchRequest(request_id=1, topic_id=topic_id, max_bytes=1, min_bytes=1, max_wait_ms=1),
        "Produce": pb.ProduceRequest(
            batches=[pb.ProduceBatch(request_id=1, topic_id=topic_id, payload=data, payload_crc=crc32c(data))]
        ),
        "ListOffsets": pb.ListOffsetsRequest(topic_id=topic_id, queries=[pb.OffsetQuery()]),
        "CreateTopic": pb.CreateTopicRequest(name="large", partitions=1, replication_factor=1),
    }
    tried = []
    for method, message in good.items():
        call = getattr(bench().admin if method == "CreateTopic" else bench().broker, method)
        for field, request in with_one_number_at_its_largest(message):
            tried.append(f"{method}.{field}")
            with allocating(CALL_BYTES_MAX, f"{method} with the largest {field}"):
                answer = call(iter([request]) if method in ("Fetch", "Produce") else request, timeout=CALL_S_MAX)
                for reply in answer if method in ("Fetch", "Produce") else [answer]:
                    check(reply)
    assert {"Fetch.max_bytes", "Fetch.offset", "CreateTopic.partitions", "ListOffsets.partition"} <= set(tried)
    bench().still_serves()


def test_a_small_request_gets_no_huge_reply() -> None:
    """Every empty item takes two bytes in the request, and hundreds in the error of the answer."""
    many = 300_000
    asked = pb.ListOffsetsRequest(topic_id=bench().topic_id, queries=[pb.OffsetQuery(partition=9)] * many)
    reply = bench().broker.ListOffsets(asked, timeout=CALL_S_MAX)
    check(reply)
    assert reply.ByteSize() < asked.ByteSize()
    described = pb.MetadataRequest(topics=[""] * many)
    about = bench().broker.Metadata(described, timeout=CALL_S_MAX)
    check(about)
    assert about.error.code == "InvalidRequest"
    assert about.ByteSize() < described.ByteSize()
    bench().still_serves()

"""Repeated fields of requests: each has a bound, and a request over it is refused before it is parsed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.test_requests import messages
from tinymq.base.errors import InvalidRequest
from tinymq.base.topic_config import SETTINGS_MAX
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.bounds import OTHERS_MAX, REPEATED_MAX, bounds_of, parse

REQUESTS: dict[str, Descriptor] = {
    method.input_type.name: method.input_type
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
} | {"TakeOverOrders": pb.TakeOverOrders.DESCRIPTOR}  # packed in a field of its own


def repeated(kind: Descriptor) -> Iterator[str]:
    for field in kind.fields:
        if field.is_repeated:
            yield f"{kind.name}.{field.name}"
        if field.message_type is not None:
            yield from repeated(field.message_type)


def item(name: str) -> Any:
    """An empty item, to repeat in a field."""
    kind, field = name.split(".")
    found = pb.DESCRIPTOR.message_types_by_name[kind].fields_by_name[field]
    if found.message_type is not None:
        return GetMessageClass(found.message_type)()
    return "" if found.type == found.TYPE_STRING else 1


def test_every_repeated_field_of_a_request_has_a_bound() -> None:
    """A new field without a bound fails here, and at the start of every broker."""
    assert {name for kind in REQUESTS.values() for name in repeated(kind)} == set(REPEATED_MAX)
    for kind in REQUESTS.values():
        bounds_of(kind)
        assert len(kind.fields) < OTHERS_MAX // 2
    assert {most for name, most in REPEATED_MAX.items() if name.endswith(".settings")} == {SETTINGS_MAX}


@pytest.mark.parametrize("name", sorted(REPEATED_MAX))
def test_as_many_as_the_bound_and_no_more(name: str) -> None:
    message, field = name.split(".")
    kind: Any = GetMessageClass(pb.DESCRIPTOR.message_types_by_name[message])
    most, one = REPEATED_MAX[name], item(name)
    request = kind(**{field: [one] * most})
    assert parse(kind, request.SerializeToString()) == request
    getattr(request, field).extend([one])
    with pytest.raises(InvalidRequest, match=f"more than {most} {field}"):
        parse(kind, request.SerializeToString())


@pytest.mark.parametrize("name", sorted(REPEATED_MAX))
def test_an_empty_occurrence_counts_as_one(name: str) -> None:
    """Otherwise 8 MiB of them are within every bound, and are scanned completely."""
    message, field = name.split(".")
    descriptor = pb.DESCRIPTOR.message_types_by_name[message]
    empty = bytes((descriptor.fields_by_name[field].number << 3 | 2, 0))
    kind: Any = GetMessageClass(descriptor)
    assert parse(kind, empty * REPEATED_MAX[name]) == kind.FromString(empty * REPEATED_MAX[name])
    with pytest.raises(InvalidRequest, match=f"more than {REPEATED_MAX[name]} {field}"):
        parse(kind, empty * (REPEATED_MAX[name] + 1))


def test_numbers_that_are_not_packed_count_alike() -> None:
    one, most = b"\x10\x01", REPEATED_MAX["ListChannelsRequest.partitions"]
    assert len(parse(pb.ListChannelsRequest, one * most).partitions) == most
    with pytest.raises(InvalidRequest):
        parse(pb.ListChannelsRequest, one * (most + 1))
    packed = pb.ListChannelsRequest(partitions=[300] * (most // 2)).SerializeToString()
    assert len(parse(pb.ListChannelsRequest, packed + packed).partitions) == most
    with pytest.raises(InvalidRequest):
        parse(pb.ListChannelsRequest, packed + packed + one)


def test_a_bound_inside_of_a_repeated_message_holds() -> None:
    most = REPEATED_MAX["TakeOverOrder.replicas"]
    order = pb.TakeOverOrder(topic_id=b"t" * 16, replicas=[pb.ReplicaIdentity()] * (most + 1))
    with pytest.raises(InvalidRequest, match="replicas"):
        parse(pb.TakeOverOrders, pb.TakeOverOrders(orders=[pb.TakeOverOrder(), order]).SerializeToString())


MANY = 100_000
JUNK = {
    "unknown numbers": b"\x78\x00" * MANY,
    "unknown bytes": b"\x7a\x00" * MANY,
    "one field again and again": pb.FetchRequest(offset=1).SerializeToString() * MANY,
    "a group": b"\x7b" * MANY,
    "an end too soon": b"\x0a\xff\xff\x7f" + bytes(MANY),
    "an endless number": b"\xff" * MANY,
}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("kind", [pb.ProduceRequest, pb.FetchRequest, pb.MetadataRequest])
def test_junk_is_refused_and_not_parsed(junk: str, kind: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse(kind, JUNK[junk])


def test_junk_in_a_submessage_is_refused_and_not_parsed() -> None:
    inside = b"\x08\x01" * (1 << 13)
    with pytest.raises(InvalidRequest, match="ProduceBatch"):
        parse(pb.ProduceRequest, b"\x0a\x80\x80\x01" + inside)


@settings(max_examples=100, derandomize=True, database=None, deadline=None)
@given(st.sampled_from(sorted(REQUESTS)).flatmap(lambda name: st.tuples(st.just(name), messages(REQUESTS[name]))))
def test_requests_within_their_bounds_are_what_protobuf_makes_of_them(drawn: tuple[str, dict[str, Any]]) -> None:
    kind: Any = GetMessageClass(REQUESTS[drawn[0]])
    request = kind(**drawn[1])
    assert parse(kind, request.SerializeToString()) == request

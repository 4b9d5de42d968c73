"""Bounds how often a field may repeat in a client's request. The check reads the packed bytes, before they are parsed.

Protobuf needs seconds and some 200 MB to parse 8 MiB of empty submessages. The count here ends at the first submessage
too many. Every repeated field of every request has a bound: `bounds_of` fails for a message with an unbounded field.
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tinymq.base.errors import InvalidRequest
from tinymq.base.value import value

M = TypeVar("M", bound=Message)

BATCHES_MAX = 4096  # in one ProduceRequest

REPEATED_MAX: dict[str, int] = {
    "ProduceRequest.batches": BATCHES_MAX,
    "MetadataRequest.topics": 10_000,
    "ListOffsetsRequest.queries": 1024,  # a topic has no more partitions
    "ListChannelsRequest.partitions": 1024,
    "HoldRequest.ranges": 1024,
    "ChannelsRequest.commands": 1000,
    "ProduceMessageRequest.headers": 10_000,
    "CreateTopicRequest.settings": 64,
    "ChangeQuotaRequest.bounds": 64,
    "AlterTopicRequest.settings": 64,
    "CreateQueueRequest.settings": 64,
    "HeartbeatRequest.owned": 10_000,
    "AddPartitionsRequest.partitions": 1000,  # of one transaction
    "AddPartitionsRequest.offsets": 1000,
    "CommitTransactionRequest.partitions": 1000,
    "CommitSetsRequest.partitions": 1000,
    "CommitSetsRequest.writers": 10_000,
    "CreateGroupRequest.topics": 100,
    "CreateGroupRequest.settings": 64,
    "AlterGroupRequest.settings": 64,
    "WorkRequest.attach": 1024,
    "WorkRequest.settle": 4096,
    "WorkRequest.credit": 1024,
    "WorkRequest.detach": 1024,
    "WorkAttach.held": 64,
    "WorkAttach.started": 64,
    "Grants.runs": 10_000,  # as many as a worker may hold of one partition
    "TakeOverOrders.orders": 20_001,  # every partition that a cluster can have, and the metadata
    "TakeOverOrder.replicas": 64,
}
"""By message and field, for all requests. The client splits its requests by the same numbers."""

OTHERS_MAX = 64  # other fields in one message: a correct client sends each at most once, and no message has so many
UNSCANNED_BYTES_MAX = 4096  # a request up to this size is parsed unchecked, in a millisecond at most
UNSCANNED_PART_BYTES_MAX = 1024  # a submessage up to this size is not checked

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_CONTINUED = bytes(range(0x80, 0x100))


@value
class Bounds:
    """The bounds of one kind of message, by field number."""

    name: str
    repeated: dict[int, FieldDescriptor]
    most: dict[int, int]  # the bound of each repeated field
    parts: dict[int, Bounds]  # submessages
    unscanned_bytes_max: int  # a message up to this size cannot exceed a bound


@cache
def bounds_of(kind: Descriptor) -> Bounds:
    """Return the bounds of a kind of message. Raises KeyError for a repeated field without a bound."""
    repeated = {field.number: field for field in kind.fields if field.is_repeated}
    most = {number: REPEATED_MAX[f"{kind.name}.{field.name}"] for number, field in repeated.items()}
    parts = {field.number: bounds_of(field.message_type) for field in kind.fields if field.message_type is not None}
    least = min([*most.values(), *(part.unscanned_bytes_max for part in parts.values()), UNSCANNED_BYTES_MAX])
    return Bounds(kind.name, repeated, most, parts, least)


def parse(kind: type[M], data: bytes) -> M:
    """Parse a message that is within its bounds. Raises InvalidRequest for any other, before any part of it takes
    effect."""
    bounds = bounds_of(kind.DESCRIPTOR)
    if len(data) > bounds.unscanned_bytes_max:
        try:
            _scan(bounds, data, 0, len(data))
        except IndexError:
            raise _malformed(bounds) from None
    try:
        return kind.FromString(data)
    except DecodeError:
        raise _malformed(bounds) from None


def _scan(bounds: Bounds, data: bytes, position: int, end: int) -> None:
    """Check one message. Raises InvalidRequest, and IndexError for a message that ends in the middle of a field."""
    left = dict(bounds.most)
    others_left = OTHERS_MAX
    while position < end:
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = _varint(data, position - 1)
        number, wire = tag >> 3, tag & 7
        start = position
        if wire == _LENGTH:
            length, start = _varint(data, position)
            position = start + length
        elif wire == _VARINT:
            _, position = _varint(data, position)
        elif wire in (_FIXED32, _FIXED64):
            position += 4 if wire == _FIXED32 else 8
        else:
            raise _malformed(bounds)
        if position > end:
            raise _malformed(bounds)
        if number in left:
            left[number] -= _items(bounds.repeated[number], wire, data, start, position)
            if left[number] < 0:
                raise _too_many(bounds, number)
        else:
            others_left -= 1
            if others_left < 0:
                raise _malformed(bounds)
        part = bounds.parts.get(number)
        if (
            part is not None
            and wire == _LENGTH
            and position - start > min(part.unscanned_bytes_max, UNSCANNED_PART_BYTES_MAX)
        ):
            _scan(part, data, start, position)


def _items(field: FieldDescriptor, wire: int, data: bytes, start: int, end: int) -> int:
    """Count the items in one occurrence of a repeated field. Packed numbers can make it more than one.

    An empty packed occurrence counts as one item. Otherwise the scan of 4,000,000 of them would itself take seconds.
    """
    if wire != _LENGTH or field.message_type is not None or field.type in _BYTES:
        return 1
    return max(1, len(data[start:end].translate(None, _CONTINUED)))


_BYTES = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return (the value of a varint, the position after it)."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return byte, position
    value = byte & 0x7F
    for shift in range(7, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError("a varint of more than ten bytes")


def _too_many(bounds: Bounds, number: int) -> InvalidRequest:
    most, name = bounds.most[number], bounds.repeated[number].name
    return InvalidRequest(f"a {bounds.name} with more than {most} {name}", hint=f"send at most {most} at once")


def _malformed(bounds: Bounds) -> InvalidRequest:
    return InvalidRequest(f"not a {bounds.name}, or one that repeats its fields")

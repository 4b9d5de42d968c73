"""Values that every package shares. No I/O, and no behaviour beyond construction and naming."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, NewType

from tinymq.base.errors import InvalidName, InvalidRequest, TinymqError
from tinymq.base.value import value

BrokerId = NewType("BrokerId", int)
"""A broker's number, 1 or more. On the wire, 0 means that no broker is known."""

TopicId = NewType("TopicId", bytes)
"""16 random bytes. A topic that is deleted and created again under its old name is another topic."""

METADATA_TOPIC = TopicId(bytes(16))
"""The metadata group's topic id, which no user's topic has."""

PAYLOAD_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one log entry's payload. A stored length above this is damage, even if the checksum is right."""

TOPIC_NAME_LENGTH_MAX = 249
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")


class GroupId(NamedTuple):
    """Names one Raft group: a partition of a topic, or the metadata group.

    It is a tuple, because it is a key that is looked up a dozen times per message. A dataclass is hashed and compared
    in Python.
    """

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        if self.topic_id == METADATA_TOPIC:
            return "metadata"
        return f"{self.topic_id.hex()[:8]}/{self.partition}"


METADATA_GROUP = GroupId(METADATA_TOPIC, 0)


class PartitionId(NamedTuple):
    """A partition of a topic, in messages and states that know no TopicId."""

    topic_id: bytes
    partition: int


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The address at which a broker listens for other brokers."""

    broker_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.broker_id}@{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Position:
    """The place of a proposed entry. The entry is durable or committed only when its group says so."""

    index: int
    term: int
    base_offset: int
    append_time_us: int


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """A record's place in its partition. It is a type of its own, so that no time can pass for an offset.

    for message in mq.reader("orders", start=Offset(1), end=Offset(2)):
        print(message.offset)
    """

    value: int

    def __int__(self) -> int:
        return self.value


@value
class RecordMetadata:
    """The place and time of an acknowledged record.

    meta = mq.send("orders", b"...")
    print(meta.partition, meta.offset)
    """

    topic: str
    partition: int
    offset: int  # -1: not known, with acks="none", or as a duplicate of a delayed record
    append_time_us: int  # the leader's clock when the record was appended, not the user's timestamp
    duplicate: bool = False  # an earlier attempt of the same send had already stored it


def check_topic_name(name: str) -> str:
    """Return `name`, or raise `InvalidName`, whose message says what is wrong.

    1 to 249 characters of A-Z a-z 0-9 . _ -, and neither "." nor ".." (the names Kafka allows).
    """
    return _check_name("topic", name)


INTERNAL_PREFIX = "__"


def is_internal(topic: str) -> bool:
    """Whether the topic belongs to the cluster: users neither make, write, alter nor delete it."""
    return topic.startswith(INTERNAL_PREFIX)


def check_user_topic(name: str) -> str:
    """Return `name`, or raise InvalidName for a topic that belongs to the cluster."""
    if is_internal(name):
        raise InvalidName(
            f"topic {name[:60]!r} belongs to the cluster",
            hint=f"users' topics do not begin with {INTERNAL_PREFIX}",
        )
    return name


def check_channel_name(name: str) -> str:
    """As `check_topic_name`, for channels and consumer groups, which share one namespace."""
    return _check_name("channel", name)


def check_consumer_name(name: str) -> str:
    """As `check_topic_name`, for the consumer that reads a channel."""
    return _check_name("consumer", name)


def check_transactional_id(name: str) -> str:
    """As `check_topic_name`, for the name under which a program begins transactions."""
    return _check_name("transactional id", name)


def check_producer_group(name: str) -> str:
    """As `check_topic_name`, for the producers that check each other's half messages."""
    return _check_name("producer group", name)


def check_scan_id(name: str) -> str:
    """As `check_topic_name`, for the name under which brokers count a scan's bytes."""
    return _check_name("scan", name)


def _check_name(what: str, name: str) -> str:
    hint = f"{what} names: 1 to {TOPIC_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ -"
    if not name:
        raise InvalidName(f"a {what} name cannot be empty", hint=hint)
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise InvalidName(
            f"a {what} name has at most {TOPIC_NAME_LENGTH_MAX} characters, this one {len(name)}", hint=hint
        )
    if name in (".", ".."):
        raise InvalidName(f"{name!r} cannot be a {what} name", hint=hint)
    if not _TOPIC_NAME.fullmatch(name):
        bad = next(c for c in name if not _TOPIC_NAME.fullmatch(c))
        text = f"{what} name {name[:60]!r} contains {bad!r}: use letters, digits, '.', '_' and '-'"
        raise InvalidName(text, hint=hint)
    return name


_TRANSACTION_NAME = re.compile(r"(\d{1,19})-(\d{1,10})-(\d{1,19})", re.ASCII)
_TRANSACTION_BOUNDS = (1 << 63, 1 << 32, 1 << 63)  # exclusive


class TransactionNumbers(NamedTuple):
    """The numbers that name a transaction of a cluster. People read and type them as 1042-0-17."""

    producer_id: int
    epoch: int
    number: int


def transaction_name(producer_id: int, epoch: int, number: int) -> str:
    return f"{producer_id}-{epoch}-{number}"


def parse_transaction_name(name: str) -> TransactionNumbers:
    """The inverse of `transaction_name`. Raises InvalidRequest."""
    found = _TRANSACTION_NAME.fullmatch(name) if isinstance(name, str) else None
    numbers = tuple(map(int, found.groups())) if found is not None else ()
    if not numbers or any(number >= bound for number, bound in zip(numbers, _TRANSACTION_BOUNDS, strict=True)):
        hint = "a transaction is named by three numbers: tinymq transaction list --hung"
        raise InvalidRequest(f"no transaction is named {name!r:.100}", hint=hint)
    return TransactionNumbers(*numbers)


@dataclass(frozen=True, slots=True)
class Unsent:
    """A record that was not acknowledged, and the reason.

    try:
        producer.flush()
    except NotDelivered as error:
        for record in error.records:
            print(record.topic, record.key, record.error.code)
    """

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_us: int
    error: TinymqError
    delay: timedelta | None = None  # as it was sent: delivered so long after it is stored
    deliver_at: datetime | None = None  # as it was sent

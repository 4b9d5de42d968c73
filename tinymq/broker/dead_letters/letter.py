"""A dead letter as a record: the original's key, value and headers, and headers that say why it was buried. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from tinymq.base.errors import InvalidRequest
from tinymq.proto import group_pb2 as wire

REASON_BYTES_MAX = 1024
TRACEBACK_BYTES_MAX = 4096

TOPIC = "tinymq-source-topic"
PARTITION = "tinymq-source-partition"
OFFSET = "tinymq-source-offset"
GROUP = "tinymq-group"
DELIVERIES = "tinymq-deliveries"
FIRST_FAILURE = "tinymq-first-failure"  # append time in microseconds; missing: not known
LAST_FAILURE = "tinymq-last-failure"
CAUSE = "tinymq-cause"  # nack, reject, lease_expired or session_ended; missing: not known
REASON = "tinymq-reason"
TRACEBACK = "tinymq-traceback"
LOST = "tinymq-lost"  # retention removed the record before it was copied: there are only headers
CUT = "tinymq-cut"  # the parts that were left out, because the record and these headers together were too large
REDRIVE_GROUP = "tinymq-redrive-group"  # the group for which the record is sent back
REDRIVEN_FROM = "tinymq-redriven-from"

OWN = frozenset(
    [TOPIC, PARTITION, OFFSET, GROUP, DELIVERIES, FIRST_FAILURE, LAST_FAILURE, CAUSE, REASON, TRACEBACK, LOST, CUT]
) | {REDRIVE_GROUP, REDRIVEN_FROM}

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that a queue group gives up, as the leader of the group knows it.

    `reason` and `traceback` come from a worker, and are cut to REASON_BYTES_MAX and TRACEBACK_BYTES_MAX.
    """

    offset: int
    reason: str
    deliveries: int = 0  # how many deliveries failed
    cause: str = ""  # what ended the last delivery; "": not known
    traceback: str = ""
    first_failure_us: int = 0  # append times; 0: not known
    last_failure_us: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a dead letter comes from, as its headers say."""

    topic: str
    partition: int
    offset: int
    group: str
    lost: bool


def letter_headers(record: DeadLetter, topic: str, partition: int, group: str) -> list[tuple[str, bytes]]:
    """The headers that a burial adds to those of the original."""
    headers = [
        (TOPIC, topic.encode()),
        (PARTITION, b"%d" % partition),
        (OFFSET, b"%d" % record.offset),
        (GROUP, group.encode()),
        (DELIVERIES, b"%d" % record.deliveries),
    ]
    if record.first_failure_us:
        headers.append((FIRST_FAILURE, b"%d" % record.first_failure_us))
    if record.last_failure_us:
        headers.append((LAST_FAILURE, b"%d" % record.last_failure_us))
    if record.cause:
        headers.append((CAUSE, record.cause.encode()))
    headers.append((REASON, cut_text(record.reason, REASON_BYTES_MAX)))
    if record.traceback:
        # The end of a traceback names the error.
        headers.append((TRACEBACK, cut_text(record.traceback, TRACEBACK_BYTES_MAX, keep_end=True)))
    return headers


def cut_text(text: str, bytes_max: int, *, keep_end: bool = False) -> bytes:
    """The text as at most so many bytes of UTF-8, without a half character."""
    data = text.encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return data
    part = data[-bytes_max:] if keep_end else data[:bytes_max]
    return part.decode("utf-8", "ignore").encode()


def pack_headers(headers: Iterable[tuple[str, bytes]]) -> bytes:
    """Pack headers for the field `headers` of a BuryRecord."""
    packed = wire.CopyHeaders(headers=[wire.CopyHeader(key=key, value=value) for key, value in headers])
    return packed.SerializeToString(deterministic=True)


def unpack_headers(data: bytes) -> list[tuple[str, bytes]]:
    """The inverse of `pack_headers`. Returns no headers for bytes that do not parse, such as those of another build."""
    try:
        return [(header.key, header.value) for header in wire.CopyHeaders.FromString(data).headers]
    except DecodeError:
        return []


def strip(headers: Headers) -> list[tuple[str, bytes | None]]:
    """The headers of the original: all but tinymq's own."""
    return [(key, value) for key, value in headers if key not in OWN]


def origin(headers: Headers) -> Origin:
    """Where a dead letter comes from. Raises InvalidRequest for a record that is not a dead letter."""
    found = by_name(headers)
    try:
        return Origin(
            topic=found[TOPIC].decode(),
            partition=int(found[PARTITION]),
            offset=int(found[OFFSET]),
            group=found[GROUP].decode(),
            lost=found.get(LOST) == b"true",
        )
    except (KeyError, ValueError):
        raise InvalidRequest("the record is no dead letter: it has no headers that say where it comes from") from None


def by_name(headers: Headers) -> Mapping[str, bytes]:
    """Tinymq's own headers by name. The last one of a name counts, because the original may have had the same name."""
    return {key: value for key, value in headers if key in OWN and value is not None}

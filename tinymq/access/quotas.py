"""Quotas, and the things that count towards them, as the registry stores them: values, their bytes, and the rules.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from tinymq.base.errors import CorruptData, QuotaExceeded
from tinymq.base.identity.quota import DEFAULT_NAME, NAMES, Quota
from tinymq.base.types import check_consumer_name
from tinymq.proto import access_pb2 as pb
from tinymq.registry.state.values import MetadataRecord

QUOTA, MADE = "quota", "made"  # kinds of registry records
DEFAULT_RECORD = "=default"  # of DEFAULT_NAME; no user can have this name
MAKING_US = 60_000_000  # a thing counts for so long while it is being made, and does not exist yet
THINGS_MAX = 2000  # that count for one user: with usual names they fit into a record


def record_name(user: str) -> str:
    """The name of the record of a user's quota. Raises InvalidName."""
    return DEFAULT_RECORD if user == DEFAULT_NAME else check_consumer_name(user)


def user_of(record: MetadataRecord) -> str:
    """The inverse."""
    return DEFAULT_NAME if record.name == DEFAULT_RECORD else record.name


def pack_quota(quota: Quota) -> bytes:
    bounds = sorted(quota.bounds().items())
    return pb.Quota(bounds=[pb.Bound(name=name, value=value) for name, value in bounds]).SerializeToString()


def parse_quota(record: MetadataRecord) -> Quota:
    """The quota of a registry record. Bounds that this build does not know are left out. Raises CorruptData."""
    try:
        stored = pb.Quota.FromString(record.value)
    except DecodeError:
        raise CorruptData(f"this build cannot read the record of quota {record.name!r}") from None
    return Quota(**{bound.name: bound.value for bound in stored.bounds if bound.name in NAMES})


@dataclass(frozen=True, slots=True)
class Thing:
    """A topic or a group that a user has made, or is making."""

    kind: str
    name: str
    until_us: int = 0  # it counts until then, even if there is no such thing
    partitions: int = 0  # of a topic that is being made


Exists = Callable[[str, str], int | None]
"""Called with the kind and the name of a thing: returns its partitions (of a group: 0), or None if there is none."""


def pack_made(things: Iterable[Thing]) -> bytes:
    return pb.Made(
        things=[pb.Thing(kind=t.kind, name=t.name, until_us=t.until_us, partitions=t.partitions) for t in things]
    ).SerializeToString(deterministic=True)


def parse_made(record: MetadataRecord | None) -> list[Thing]:
    """Raises CorruptData."""
    try:
        stored = pb.Made.FromString(record.value) if record is not None else pb.Made()
    except DecodeError:
        raise CorruptData("this build cannot read the record of the things that a user has made") from None
    return [Thing(t.kind, t.name, t.until_us, t.partitions) for t in stored.things]


def with_thing(
    things: Iterable[Thing], new: Thing, quota: Quota, exists: Exists, now_us: int, user: str
) -> list[Thing]:
    """The things that count for a user, with a new one added, or one that has more partitions. Raises QuotaExceeded."""
    counted: dict[tuple[str, str], int] = {}
    kept = []
    for thing in things:
        partitions = exists(thing.kind, thing.name)
        if partitions is None and thing.until_us <= now_us:
            continue  # it is deleted, or was never made
        kept.append(thing)
        counted[thing.kind, thing.name] = thing.partitions if partitions is None else partitions
    before = counted.get((new.kind, new.name))
    counted[new.kind, new.name] = max(before or 0, new.partitions)
    topics = [partitions for (kind, _), partitions in counted.items() if kind == "topic"]
    groups = len(counted) - len(topics)
    _check(user, "topics", len(topics), quota.topics if new.kind == "topic" and before is None else None)
    _check(user, "groups", groups, quota.groups if new.kind == "group" and before is None else None)
    _check(user, "partitions", sum(topics), quota.partitions if new.kind == "topic" else None)
    _check(user, "things that count", len(counted), THINGS_MAX)
    return kept if before is not None else [*kept, new]


def _check(user: str, what: str, count: int, bound: int | None) -> None:
    if bound is not None and count > bound:
        hint = f"delete some, or ask an administrator: tinymq quota set {user} --{what} N"
        raise QuotaExceeded(f"user {user!r} may have {bound} {what}, and this would be {count}", hint=hint)

"""The table of the gate: the operation and the resources of each RPC. No decision is made here (tinymq/access/gate.py).

Every method that serves an RPC declares its row (tinymq/rpc/common/rpc_method.py), and `targets` reads from a request
what the caller wants to do to which resources. Streams check each message by the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from google.protobuf.message import Message

from tinymq.base.errors import TinymqError
from tinymq.base.group_config import GroupKind, is_pattern, parse_group_settings
from tinymq.base.identity.grants import Operation
from tinymq.broker.groups.dead_letter_topic import SUFFIX as DEAD_LETTERS_SUFFIX
from tinymq.broker.state.cursor import CursorKind

Rule = Operation | Literal["known", "secret", "switch"]
"""Beside the operations: `known`, every caller who proves who it is; `secret`, the request itself proves the cluster's
secret; `switch`, the method decides, because it is needed while nobody is checked."""


class AccessTarget(NamedTuple):
    """One thing that a request wants to do."""

    operation: str
    kind: str
    name: str | bytes  # of a topic also its id
    all: bool = False  # every name that begins with `name`


Targets = Callable[[Any], Iterable[AccessTarget]]


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of resource that a request names."""

    kind: str
    fields: tuple[str, ...] = ()  # of requests, such as "name"; the first one that the request has, names the resource
    targets: Targets | None = None  # instead of `fields`


CLUSTER = Resource("cluster")
TOPIC = Resource("topic", ("topic", "topic_id", "topics", "batches.topic_id", "attach.topic_id", "name"))
SOME_TOPIC = Resource("topic")  # any one: the request names none
GROUP = Resource("group", ("group", "attach.group", "name"))
CHANNEL = Resource("channel", ("channel",))
TRANSACTIONAL_ID = Resource("transactional_id", ("transactional_id", "application"))
PRODUCER_GROUP = Resource("producer_group", ("producer_group",))


KINDS_OF_CURSORS = ("open", "commit", "seek", "stage", "stage_acks")  # the other commands know channels only


def _cursors(request: Any) -> Iterator[AccessTarget]:
    """The channels and groups whose cursors a ChannelsRequest moves or deletes."""
    for command in request.commands:
        ours = command.WhichOneof("command") in KINDS_OF_CURSORS
        kind = "group" if ours and command.kind != CursorKind.CHANNEL else "channel"
        yield AccessTarget("delete" if command.HasField("delete") else "read", kind, command.channel)


def _group_topics(request: Any) -> Iterator[AccessTarget]:
    """The operations that a new group needs: read its topics, and create and fill the topics of its dead letters."""
    for topic in request.topics:
        if is_pattern(topic):
            yield AccessTarget("read", "topic", _beginning(topic), all=True)
        else:
            yield AccessTarget("read", "topic", topic)
    try:
        kind = GroupKind(request.kind)
        settings = parse_group_settings(kind, [(each.name, each.value) for each in request.settings])
    except (TinymqError, ValueError):
        return  # the method refuses the request, and says why
    if kind is GroupKind.QUEUE:
        yield from dead_letter_targets(settings.get("dlq", ""), request.topics)


def dead_letter_targets(dlq: str | None, topics: Iterable[str]) -> Iterator[AccessTarget]:
    """The operations of a queue group with this setting on the topics of its dead letters: its brokers create them at
    their first use, and write to them. "": each topic's own, TOPIC.dlq. None: there are no dead letters."""
    if dlq is None:
        return
    for operation in ("create", "write"):
        for topic in topics if not dlq else (dlq,):
            if is_pattern(topic):
                yield AccessTarget(operation, "topic", _beginning(topic), all=True)
            else:
                yield AccessTarget(operation, "topic", topic if dlq else topic + DEAD_LETTERS_SUFFIX)


def _beginning(pattern: str) -> str:
    """The prefix of every name that a pattern matches."""
    return pattern.partition("*")[0].partition("?")[0]


def _consumer(request: Any) -> Iterator[AccessTarget]:
    """The group or the channel of a ConsumeMessageRequest."""
    yield (
        AccessTarget("read", "group", request.group)
        if request.group
        else AccessTarget("read", "channel", request.channel)
    )


def _dead_letters(request: Any) -> Iterator[AccessTarget]:
    """The topic that a group gets for its dead letters, if it gets a named one. For "" the method asks: the request
    does not name the group's topics."""
    for setting in request.settings:
        if setting.name == "dlq" and setting.value not in ("", "none"):
            yield from dead_letter_targets(setting.value, ())


def _queue_channel(request: Any) -> Iterator[AccessTarget]:
    """The channel of a request that may name none."""
    if request.channel:
        yield AccessTarget("describe", "channel", request.channel)


def _level(request: Any) -> Iterator[AccessTarget]:
    """A FeatureLevelRequest shows, or changes."""
    yield AccessTarget("alter" if request.action else "describe", "cluster", "")


def _added_topics(request: Any) -> Iterator[AccessTarget]:
    """The topics of an AddPartitionsRequest: those that it writes to, and those whose cursors it moves."""
    for each in request.partitions:
        yield AccessTarget("write", "topic", each.topic_id)
    for each in request.offsets:
        yield AccessTarget("read", "topic", each.topic_id)


def _rolled_back(request: Any) -> Iterator[AccessTarget]:
    """An owner names the transaction that it rolls back, and needs `write`. A request without one ends another
    program's transaction, and needs `alter`."""
    operation = "write" if request.HasField("transaction") else "alter"
    yield AccessTarget(operation, "transactional_id", request.transactional_id)


CURSORS = Resource("channel", targets=_cursors)
GROUP_TOPICS = Resource("topic", targets=_group_topics)
CONSUMER = Resource("channel", targets=_consumer)
DEAD_LETTERS = Resource("topic", targets=_dead_letters)
QUEUE_CHANNEL = Resource("channel", targets=_queue_channel)
LEVEL = Resource("cluster", targets=_level)
ADDED_TOPICS = Resource("topic", targets=_added_topics)
ROLLED_BACK = Resource("transactional_id", targets=_rolled_back)


@dataclass(frozen=True, slots=True)
class Access:
    """The row of one RPC: what a caller needs."""

    operation: Rule
    resource: Resource
    also: tuple[tuple[Operation, Resource], ...] = ()
    filters: bool = False  # the method itself leaves out what the caller may not describe


def targets(access: Access, request: Message) -> Iterator[AccessTarget]:
    """Yield everything that a request wants to do, repeats included. Raises nothing."""
    for operation, resource in ((access.operation, access.resource), *access.also):
        if resource.targets is not None:
            yield from resource.targets(request)
        elif resource.kind == "cluster":
            yield AccessTarget(operation, "cluster", "")
        else:
            for name in _named(resource, request):
                yield AccessTarget(operation, resource.kind, name)


def field_of(resource: Resource, kind: Any) -> str | None:
    """The field that names the resource in a message of this descriptor."""
    return next((path for path in resource.fields if _has(kind, path)), None)


def _has(kind: Any, path: str) -> bool:
    name, _, rest = path.partition(".")
    field = kind.fields_by_name.get(name)
    return field is not None and (not rest or (field.message_type is not None and _has(field.message_type, rest)))


def _named(resource: Resource, request: Message) -> Iterable[str | bytes]:
    path = field_of(resource, request.DESCRIPTOR)
    assert path is not None, f"{request.DESCRIPTOR.name} names no {resource.kind}"
    value = getattr(request, path)
    return [value] if isinstance(value, str | bytes) else list(value)

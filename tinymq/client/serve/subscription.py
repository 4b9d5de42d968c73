"""A subscription of an application: a handler, its topics and its group. Values, checked when they are made; no I/O."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, get_args

from tinymq.base.errors import InvalidConfig, InvalidRequest
from tinymq.client.common.argument_checks import check_channel, check_consumer, check_count
from tinymq.client.common.config import ConsumerConfig, WorkerConfig, configure
from tinymq.client.common.start_positions import Place, read_place

Handler = TypeVar("Handler", bound=Callable[..., Any])
OnError = Literal["retry", "skip", "stop"]
Kind = Literal["stream", "queue"]

CONCURRENCY_MAX = 1_000
SUBSCRIPTIONS_MAX = 1_000
STREAM_SETTINGS = frozenset(field.name for field in fields(ConsumerConfig))
QUEUE_SETTINGS = frozenset(field.name for field in fields(WorkerConfig))


@dataclass(frozen=True, slots=True)
class Subscription:
    """A handler of one group's records."""

    handler: Callable[..., Any]
    topics: tuple[str, ...]
    group: str
    concurrency: int = 1
    on_error: OnError = "retry"
    start: Place = "earliest"
    instance_id: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)  # of either kind of group, while `kind` is None
    kind: Kind | None = None  # None: the kind of the existing group, or "stream" for a new one
    group_settings: Mapping[str, object] | None = None  # for the queue group that the handler creates

    def of_kind(self, kind: Kind) -> Subscription:
        """This subscription for a group of that kind.

        Raises InvalidConfig, InvalidRequest for arguments that do not go together.
        """
        if kind == "queue" and self.instance_id is not None:
            raise InvalidRequest(f"instance_id of a handler of the queue group {self.group!r}", hint="leave it out")
        if kind == "queue" and len(self.topics) > 1:
            raise InvalidRequest(
                f"a handler of the queue group {self.group!r} for {len(self.topics)} topics",
                hint="subscribe it to each topic under a group of its own",
            )
        if kind == "stream" and self.group_settings:
            raise InvalidConfig(f"group_settings of {self.group!r}, a stream group", hint='pass kind="queue"')
        foreign = sorted(self.settings.keys() - (QUEUE_SETTINGS if kind == "queue" else STREAM_SETTINGS))
        if foreign:
            raise InvalidConfig(f"{foreign[0]} is no setting of a handler of a {kind} group", hint="leave it out")
        return replace(self, kind=kind)

    @property
    def asynchronous(self) -> bool:
        """Whether the handler is awaited on the client's loop. Others run in threads of their own."""
        call = getattr(self.handler, "__call__", None)  # noqa: B004 - of an object whose class defines `async __call__`
        return inspect.iscoroutinefunction(self.handler) or inspect.iscoroutinefunction(call)

    @property
    def name(self) -> str:
        """The handler's name, for logs."""
        return str(getattr(self.handler, "__qualname__", None) or type(self.handler).__name__)


class Subscriptions:
    """The subscriptions of a client, in the order in which they were made."""

    def __init__(self) -> None:
        self._all: list[Subscription] = []

    def __iter__(self) -> Any:
        return iter(tuple(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def subscribe(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        concurrency: int,
        on_error: OnError,
        start: Place,
        instance_id: str | None,
        settings: Mapping[str, object],
        kind: Kind | None = None,
        group_settings: Mapping[str, object] | None = None,
    ) -> Callable[[Handler], Handler]:
        """Return the decorator that adds a handler. Raises InvalidRequest, InvalidName, InvalidConfig."""
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if not names:
            raise InvalidRequest("topics=[]: a handler needs a topic", hint="pass a topic's name, or several")
        if on_error not in get_args(OnError):
            raise InvalidRequest(f"on_error={on_error!r}", hint='pass "retry", "skip" or "stop"')
        if kind is not None and kind not in get_args(Kind):
            raise InvalidRequest(f"kind={kind!r}", hint='pass "stream" or "queue", or leave it to the group')
        configure(WorkerConfig, {name: value for name, value in settings.items() if name in QUEUE_SETTINGS})
        others = {name: value for name, value in settings.items() if name not in QUEUE_SETTINGS}
        if configure(ConsumerConfig, others).processing == "at_most_once":
            raise InvalidRequest(
                'processing="at_most_once" is not for handlers',
                hint="use mq.consumer(..., processing='at_most_once'), or on_error='skip'",
            )
        check_channel(group)
        check_count("concurrency", concurrency, 1, CONCURRENCY_MAX)
        read_place(start)
        if instance_id is not None:
            check_consumer(instance_id)

        def add(handler: Handler) -> Handler:
            if not callable(handler):
                raise InvalidRequest(f"{handler!r:.100} is no handler", hint="decorate a function of one argument")
            if len(self._all) >= SUBSCRIPTIONS_MAX:
                raise InvalidRequest(f"more than {SUBSCRIPTIONS_MAX} handlers", hint="make another client for them")
            new = Subscription(
                handler=handler,
                topics=names,
                group=group,
                concurrency=concurrency,
                on_error=on_error,
                start=start,
                instance_id=instance_id,
                settings=dict(settings),
                kind=kind,
                group_settings=group_settings,
            )
            self._all.append(new if kind is None else new.of_kind(kind))
            return handler

        return add

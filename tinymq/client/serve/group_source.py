"""The records of a group of either kind. An existing group has its kind; a new one gets that of the subscription."""

from __future__ import annotations

import logging

from tinymq.base.errors import Closed, InvalidRequest, UnknownGroup, WrongKind
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.serve.source import Record, Source
from tinymq.client.serve.stream_source import StreamSource
from tinymq.client.serve.subscription import Kind, Subscription
from tinymq.client.serve.work_source import WorkSource
from tinymq.client.work.worker import Wake

LOG = logging.getLogger("tinymq.client")


class GroupSource:
    """Implements Source. `open` looks at the group, and every other call goes to the source of its kind."""

    def __init__(self, cluster: Cluster, subscription: Subscription, wake: Wake) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._wake = wake
        self._source: Source | None = None
        self._stopped = False

    @property
    def alive(self) -> bool:
        return self._source is not None and self._source.alive

    async def open(self) -> None:
        kind = await self._kind()
        subscription = self._subscription.of_kind(kind)
        source: Source = (
            StreamSource(self._cluster, subscription)
            if kind == "stream"
            else WorkSource(self._cluster, subscription, self._wake)
        )
        self._source = source
        await source.open()
        if self._stopped:
            source.stop()

    async def take(self) -> Record | None:
        return await self._opened.take()

    def done(self, record: Record) -> None:
        self._opened.done(record)

    def failed(self, record: Record, error: BaseException) -> str:
        return self._opened.failed(record, error)

    def stop(self) -> None:
        self._stopped = True
        if self._source is not None:
            self._source.stop()

    async def close(self) -> None:
        if self._source is not None:
            await self._source.close()

    @property
    def _opened(self) -> Source:
        if self._source is None:
            raise Closed("the group was not joined")
        return self._source

    async def _kind(self) -> Kind:
        """The kind of the existing group, or that of the group to create. Raises WrongKind if the subscription asks for
        another one."""
        from tinymq.client.admin.broker_calls import BrokerCalls  # here: most programs need no admin calls
        from tinymq.client.admin.groups import GroupCalls

        asked, name, handler = self._subscription.kind, self._subscription.group, self._subscription.name
        timeout_s = self._cluster.config.request_timeout_ms / 1000
        try:
            group = await GroupCalls(self._cluster, BrokerCalls(self._cluster)).describe(name, timeout_s)
        except UnknownGroup:
            if asked is None:
                LOG.info("group %s is new: handler %s, which names no kind, makes a stream group", name, handler)
            return asked or "stream"
        if asked is not None and group.kind != asked:
            raise WrongKind(f"{name!r} is a {group.kind} group", hint=f'subscribe without kind="{asked}"')
        if group.kind == "queue":
            return "queue"
        if group.kind == "stream":
            return "stream"
        raise InvalidRequest(f"{name!r} is a group of the kind {group.kind!r}", hint="install a newer tinymq")

"""The gateway's links: to its own broker without a connection, to other brokers over several connections each.

A call may wait for a message for long, and a connection carries a bounded number of calls. So many waiting calls must
not keep others from being forwarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.message import Message

from tinymq.base.errors import Closed, QuotaExceeded
from tinymq.client.net.ports import FetchStream, Link, Metadata, ProduceStream, WorkStream
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.methods import Method

LINKS_MAX = 8  # to one broker
ADDRESSES_MAX = 64  # with links at one time; beyond this, addresses without a call lose their links


class CallerLink(Link, Protocol):
    """A link that carries a caller's metadata."""

    async def call(
        self, request: Message, timeout_s: float, *, method: Method | None = None, metadata: Metadata = ()
    ) -> Any: ...


class PeerConnector(Protocol):
    """Makes links to other brokers (tinymq.client.net.grpc_transport.GrpcConnector). Does not connect yet."""

    def link(self, address: str) -> CallerLink: ...


class OwnLink:
    """The link of a broker to itself. The client in the gateway asks it for metadata, and for nothing else."""

    def __init__(self, address: str, metadata: Callable[[pb.MetadataRequest], Awaitable[pb.MetadataReply]]) -> None:
        self.address = address
        self._metadata = metadata

    async def call(self, request: Message, timeout_s: float) -> pb.MetadataReply:
        assert isinstance(request, pb.MetadataRequest), "a gateway serves its own broker's partitions without a link"
        return await self._metadata(request)

    async def open_produce(self, timeout_s: float) -> ProduceStream:
        raise AssertionError("a gateway opens no streams")

    async def open_fetch(self, timeout_s: float) -> FetchStream:
        raise AssertionError("a gateway opens no streams")

    async def open_work(self, timeout_s: float) -> WorkStream:
        raise AssertionError("a gateway opens no streams")

    async def open_blocking(self, timeout_s: float) -> None:
        return None

    async def close(self) -> None:
        pass


@dataclass(slots=True)
class _Pooled:
    link: CallerLink
    calls: int = 0  # under way


class LinkPool:
    """Links to other brokers, by address. A call takes the first link that has room for it."""

    def __init__(self, connector: PeerConnector, calls_max: int) -> None:
        """`calls_max`: on one link at one time."""
        self._connector = connector
        self._calls_max = max(1, calls_max)
        self._pools: dict[str, list[_Pooled]] = {}
        self._closed = False

    async def call(
        self, address: str, method: Method, request: Message, timeout_s: float, metadata: Metadata = ()
    ) -> Any:
        """Call the broker at `address`, and return its reply. Raises the error that it answers.

        Raises BrokerUnreachable if the broker certainly never got the call, OutcomeUnknown if it may have;
        QuotaExceeded when too many calls wait for this broker, Closed after `close`.
        """
        pooled = self._pick(address)
        pooled.calls += 1
        try:
            return await pooled.link.call(request, timeout_s, method=method, metadata=metadata)
        finally:
            pooled.calls -= 1

    async def close(self) -> None:
        """End all calls, with OutcomeUnknown, and all links."""
        self._closed = True
        pools, self._pools = self._pools, {}
        await asyncio.gather(*(pooled.link.close() for pool in pools.values() for pooled in pool))

    def _pick(self, address: str) -> _Pooled:
        if self._closed:
            raise Closed("this broker stops", hint="ask another broker")
        pool = self._pools.get(address)
        if pool is None:
            self._forget_idle()
            pool = self._pools[address] = []
        for pooled in pool:
            if pooled.calls < self._calls_max:
                return pooled
        if len(pool) == LINKS_MAX:
            raise QuotaExceeded(f"{LINKS_MAX * self._calls_max} calls wait for the broker at {address} already")
        pool.append(_Pooled(self._connector.link(address)))
        return pool[-1]

    def _forget_idle(self) -> None:
        """Drop the links to addresses without calls: brokers that moved leave such addresses behind.

        A link that nothing refers to closes its connection by itself.
        """
        if len(self._pools) >= ADDRESSES_MAX:
            for address in [a for a, pool in self._pools.items() if not any(p.calls for p in pool)]:
                del self._pools[address]

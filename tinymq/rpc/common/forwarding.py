"""Calls that a broker passes on to another one, for a client that asked the wrong one. One hop, never two.

The broker forwards the client's own call of QueueService, with a mark in its metadata
(tinymq/gateway/forward_mark.py).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from tinymq.base.config import Limits
from tinymq.base.errors import BrokerUnreachable, Closed, OutcomeUnknown, QuotaExceeded
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.common.statuses import error_of

SERVICE = "tinymq.v1.QueueService"

Metadata = tuple[tuple[str, str], ...]
CHANNELS_MAX = 8  # to one broker
ADDRESSES_MAX = 64  # connected to at once; those without a call go first

REPLIES: dict[str, Any] = {
    "ProduceMessage": pb.ProduceMessageReply,
    "AsyncProduceMessage": pb.ProduceMessageReply,
    "ConsumeMessage": pb.ConsumeMessageReply,
    "FetchMessage": pb.FetchMessageReply,
    "GetQueueSize": pb.GetQueueSizeReply,
}
"""What is passed on, and what comes back."""


class Forwarding(Protocol):
    """A broker's way to the client ports of the others."""

    async def ask(self, address: str, method: str, request: Any, timeout_s: float, metadata: Metadata = ()) -> Any:
        """The answer of the broker at `address` to a call of QueueService.

        Raises the error that it answered; BrokerUnreachable when it certainly never got the call, OutcomeUnknown when
        it may have; QuotaExceeded when too many calls wait for it, Closed from `close` on.
        """
        ...

    async def close(self) -> None:
        """End what is under way. Asking again raises Closed."""
        ...


@dataclass(slots=True)
class _Pooled:
    channel: grpc.aio.Channel
    calls: int = 0


class GrpcForwarding:
    """Over plain gRPC. Calls may wait for long, and a connection carries a bounded number: there are several."""

    def __init__(self, limits: Limits) -> None:
        self._message_bytes_max = limits.grpc_message_bytes_max
        self._calls_max = max(1, limits.connection_streams_max // 2)  # of a connection
        self._pools: dict[str, list[_Pooled]] = {}
        self._closed = False

    async def ask(self, address: str, method: str, request: Any, timeout_s: float, metadata: Metadata = ()) -> Any:
        pooled = self._pick(address)
        pooled.calls += 1
        try:
            call = pooled.channel.unary_unary(
                f"/{SERVICE}/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=REPLIES[method].FromString,
            )
            return await call(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as failed:
            raise error_of(failed, address) from None
        except grpc.aio.UsageError as failed:
            raise BrokerUnreachable(f"{address}: {failed}") from None
        except asyncio.CancelledError:
            if self._closed and not _cancelled_from_outside():
                raise OutcomeUnknown(f"{address}: this broker stops") from None
            raise
        finally:
            pooled.calls -= 1

    async def close(self) -> None:
        self._closed = True
        pools, self._pools = self._pools, {}
        await asyncio.gather(*(pooled.channel.close() for pool in pools.values() for pooled in pool))

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
        if len(pool) == CHANNELS_MAX:
            raise QuotaExceeded(f"{CHANNELS_MAX * self._calls_max} calls wait for the broker at {address} already")
        pool.append(_Pooled(grpc.aio.insecure_channel(address, _options(self._message_bytes_max))))
        return pool[-1]

    def _forget_idle(self) -> None:
        """Brokers that moved leave their old addresses behind. A channel that nothing refers to closes by itself."""
        if len(self._pools) >= ADDRESSES_MAX:
            for address in [a for a, pool in self._pools.items() if not any(p.calls for p in pool)]:
                del self._pools[address]


def _options(message_bytes_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", message_bytes_max),
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.keepalive_time_ms", 10_000),  # a leader that is gone without a word is found out
        ("grpc.keepalive_timeout_ms", 5_000),
        # A broker that comes back is found within a second, not gRPC's two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.use_local_subchannel_pool", 1),  # each channel has a connection of its own
        ("grpc.enable_http_proxy", 0),
    ]


def _cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

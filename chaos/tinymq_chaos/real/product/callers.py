"""Callers without tinymq's client: plain gRPC, one call after another, each at any broker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message_factory import GetMessageClass

from tinymq.base.errors import BrokerUnreachable
from tinymq.client.net.grpc_transport import error_of_status
from tinymq.proto import tinymq_pb2 as pb

OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


class GrpcCaller:
    """See ../workloads/context.py, Caller. It belongs to the loop that first uses it."""

    def __init__(self, addresses: Sequence[str], rng: random.Random) -> None:
        self._addresses = list(addresses)
        self._rng = rng
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def ask(self, path: str, request: Any, timeout_s: float) -> Any:
        address = self._rng.choice(self._addresses)
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, OPTIONS)
        call = self._channels[address].unary_unary(
            f"/{path}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply_of(path).FromString,
        )
        try:
            return await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as failed:
            raise error_of_status(failed, address) from None
        except grpc.aio.UsageError as failed:
            raise BrokerUnreachable(f"{address}: {failed}") from None

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


def reply_of(path: str) -> Any:
    """Return the class of the reply to a unary call."""
    service, _, method = path.partition("/")
    found = pb.DESCRIPTOR.services_by_name[service.rsplit(".", 1)[-1]].methods_by_name[method]
    return GetMessageClass(found.output_type)

"""A plain gRPC client of QueueService: calls any broker, and retries where a status says that nothing was done."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import grpc
import pytest

from tinymq.base.errors import TinymqError
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.proto.errors import TRAILER, from_wire

WAIT_S = 20.0
AGAIN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,  # by a broker that was killed
    grpc.StatusCode.UNKNOWN,
}


class QueueClient:
    """Stubs of some brokers. Unlike the project's client, it does not look for leaders."""

    def __init__(self, addresses: Sequence[str], client_id: str = "", receives: str = "") -> None:
        """`receives` is the largest answer in bytes, if it differs from gRPC's default."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        if receives.isdigit():
            options.append(("grpc.max_receive_message_length", int(receives)))
        self._channels = [grpc.aio.insecure_channel(address, options) for address in addresses]
        self._stubs: list[Any] = [pb_grpc.QueueServiceStub(channel) for channel in self._channels]
        said = (("tinymq-client-id", client_id), ("tinymq-receive-bytes-max", receives))
        self._metadata = tuple((name, value) for name, value in said if value)
        self._rng = random.Random(1)

    async def __aenter__(self) -> QueueClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def call(self, name: str, request: Any, at: int | None = None, timeout_s: float = WAIT_S) -> Any:
        """Make one call to the broker with that index, or to any."""
        stub = self._stubs[self._rng.randrange(len(self._stubs)) if at is None else at]
        return await getattr(stub, name)(request, timeout=timeout_s, metadata=self._metadata)

    async def refused(self, name: str, request: Any, **how: Any) -> tuple[grpc.StatusCode, TinymqError]:
        """Return the status of a call that must fail, and the error in its trailer."""
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await self.call(name, request, **how)
        trailers: dict[str, Any] = dict(failed.value.trailing_metadata())
        assert TRAILER in trailers, f"gRPC itself ended the call: {failed.value!r}"
        error = from_wire(pb.Error.FromString(trailers[TRAILER]))
        assert failed.value.details() == str(error)
        return failed.value.code(), error

    async def produce(
        self, topic: str, value: bytes, queue: int | None = None, **fields: Any
    ) -> pb.ProduceMessageReply:
        request = pb.ProduceMessageRequest(topic=topic, queue=queue, value=value, **fields)
        reply: pb.ProduceMessageReply = await self.call("ProduceMessage", request)
        return reply

    async def consume(
        self, topic: str, channel: str, queue: int | None = None, **fields: Any
    ) -> pb.QueueMessage | None:
        request = pb.ConsumeMessageRequest(topic=topic, queue=queue, channel=channel, **fields)
        reply = await self.call("ConsumeMessage", request)
        return reply.message if reply.HasField("message") else None

    async def consume_surely(self, topic: str, channel: str, queue: int, request_id: bytes) -> pb.QueueMessage | None:
        """Ask the brokers in turn until one answers; all attempts name the same request."""
        request = pb.ConsumeMessageRequest(topic=topic, queue=queue, channel=channel, request_id=request_id)
        while True:
            try:
                reply = await self.call("ConsumeMessage", request, timeout_s=5.0)
            except grpc.aio.AioRpcError as failed:
                if failed.code() not in AGAIN:
                    raise
                await asyncio.sleep(0.01)
            else:
                return reply.message if reply.HasField("message") else None

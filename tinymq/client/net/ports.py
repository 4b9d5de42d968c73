"""What the client asks of the network: the seam between everything here and the one file that does gRPC.

Two implementations: tinymq/client/net/grpc_transport.py, and the in-memory cluster of the tests. All calls are made on
the client's loop.

Errors: BrokerUnreachable when it is certain that the request never left; OutcomeUnknown when it may have
arrived. Errors that a broker *answers* are not raised here: they are in the reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from google.protobuf.message import Message

from tinymq.base.errors import TinymqError
from tinymq.base.value import value
from tinymq.net.frame_socket import FrameSocket
from tinymq.proto import tinymq_pb2 as pb


@value
class Fetched:
    """A FetchReply whose frames are still in the bytes that arrived."""

    request_id: int
    high_watermark: int
    log_start: int
    leader_epoch: int
    leader: int
    next_offset: int
    frames: memoryview
    error: TinymqError | None
    throttled_ms: int = 0
    history: int = 0


class PackedBatch(NamedTuple):
    """One batch on its way, for whichever connection it takes. Its payload is `head` and `message`."""

    fields: bytes  # a ProduceBatch without its payload
    head: bytes
    message: pa.Buffer


class ProduceStream(Protocol):
    """One open stream of batches."""

    async def write(self, batches: Sequence[PackedBatch]) -> None:
        """Send them, in order. Returns when the transport took them. Raises OutcomeUnknown."""
        ...

    async def read(self) -> pb.ProduceReply:
        """The next answer. Raises OutcomeUnknown when the stream has broken."""
        ...

    def cancel(self) -> None:
        """End it now. What waits in read or write raises."""
        ...


class FetchStream(Protocol):
    """One open stream of fetches."""

    @property
    def received_bytes(self) -> int:
        """Since it was opened, of whole answers or not. As it was, where nobody counts."""
        ...

    async def write(self, request: pb.FetchRequest) -> None: ...
    async def read(self) -> Fetched: ...
    def cancel(self) -> None: ...


class Link(Protocol):
    """A connection to one broker, reconnecting by itself."""

    @property
    def address(self) -> str: ...

    async def call(self, request: Message, timeout_s: float) -> Any:
        """Call the unary RPC that takes `request` (tinymq.proto.methods.method_of), and return its reply."""
        ...

    async def open_produce(self, timeout_s: float) -> ProduceStream:
        """Open the stream, connected: what fails here was never sent. Raises BrokerUnreachable."""
        ...

    async def open_fetch(self, timeout_s: float) -> FetchStream: ...

    async def open_blocking(self, timeout_s: float) -> FrameSocket | None:
        """A stream of batches for one thread at a time, connected. None: there is no such way to this broker."""
        ...

    async def close(self) -> None: ...


class Connector(Protocol):
    """Makes links. Does not connect yet."""

    def link(self, address: str) -> Link: ...

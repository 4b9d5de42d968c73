"""The client's contract with the network: the seam between the client and its transports.

It has two implementations: tinymq/client/net/streams.py, and the in-memory cluster of the tests. All calls are made on
the client's loop.

BrokerUnreachable means that the request certainly never left; OutcomeUnknown means that it may have arrived. Errors
that a broker *answers* are not raised here: they are in the reply.
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

Metadata = tuple[tuple[str, str], ...]
"""Names and values that travel beside a request."""


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
    ending: bool = False  # no answer: the broker will end this stream


class PackedBatch(NamedTuple):
    """One batch to send, for either transport. Its payload is `head` and `message`."""

    fields: bytes  # a ProduceBatch without its payload
    head: bytes
    message: pa.Buffer


class ProduceStream(Protocol):
    """One open stream of batches."""

    async def write(self, batches: Sequence[PackedBatch]) -> None:
        """Send batches in order. Returns when the transport has taken them. Raises OutcomeUnknown."""
        ...

    async def read(self) -> pb.ProduceReply:
        """Wait for the next answer. Raises OutcomeUnknown when the stream has broken."""
        ...

    def cancel(self) -> None:
        """End the stream now. Calls that wait in `read` or `write` raise."""
        ...


class FetchStream(Protocol):
    """One open stream of fetches."""

    @property
    def received_bytes(self) -> int:
        """The bytes received since the stream was opened, of whole answers or not. Constant if they are not counted."""
        ...

    async def write(self, request: pb.FetchRequest) -> None: ...
    async def read(self) -> Fetched: ...
    def cancel(self) -> None: ...


class WorkStream(Protocol):
    """One open stream of a queue group's worker."""

    async def write(self, request: pb.WorkRequest) -> None:
        """Send a message. The caller waits for its other writes first. Raises OutcomeUnknown."""
        ...

    async def read(self) -> pb.WorkReply:
        """Wait for the next message. Raises OutcomeUnknown when the stream has broken."""
        ...

    async def finish(self) -> None:
        """Send nothing more: the broker takes back what the worker has not started."""
        ...

    def cancel(self) -> None: ...


class Link(Protocol):
    """A connection to one broker, which reconnects by itself."""

    @property
    def address(self) -> str: ...

    async def call(self, request: Message, timeout_s: float) -> Any:
        """Call the unary RPC that takes `request` (tinymq.proto.methods.method_of), and return its reply."""
        ...

    async def open_produce(self, timeout_s: float) -> ProduceStream:
        """Open a connected stream of batches. Raises BrokerUnreachable, because nothing was sent."""
        ...

    async def open_fetch(self, timeout_s: float) -> FetchStream:
        """Open a connected stream of fetches. Raises BrokerUnreachable."""
        ...

    async def open_work(self, timeout_s: float) -> WorkStream:
        """Open a connected stream of a worker. Raises BrokerUnreachable."""
        ...

    async def open_blocking(self, timeout_s: float) -> FrameSocket | None:
        """Open a connected stream of batches for one thread at a time. None: this broker has no stream port."""
        ...

    async def close(self) -> None: ...


class Connector(Protocol):
    """Makes links, which connect when they are used."""

    def link(self, address: str) -> Link: ...

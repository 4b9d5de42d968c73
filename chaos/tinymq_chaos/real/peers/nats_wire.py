"""JetStream's requests over one connection of nats-py: requests, answers, and the meaning of silence.

Two outcomes are definite failures: the client had no connection and sent nothing, or the server answered on the same
connection that no subscriber takes the message (503, no responders). Every other end of a send is an unknown outcome.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client

from tinymq.base.errors import BrokerUnreachable, OutcomeUnknown, TinymqError

CONNECT: dict[str, Any] = {
    "allow_reconnect": True,
    "max_reconnect_attempts": -1,
    "reconnect_time_wait": 0.1,
    "connect_timeout": 1,
    "ping_interval": 0.5,
    "max_outstanding_pings": 2,  # the client leaves a silent server after about 1.5 s
    "pending_size": 0,  # a message that cannot be sent now is refused, not kept for later
}
_API = "$JS.API"


@dataclass(frozen=True, slots=True)
class PublishAck:
    """The answer to a publish."""

    sequence: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class StreamRecord:
    sequence: int
    value: bytes


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of a stream, according to its leader. An empty stream has `last` = `first` - 1."""

    first: int
    last: int
    metadata: Mapping[str, str]


class JetStreamWire:
    """A connection that opens when it is first needed. Every call ends within its `within_s`."""

    def __init__(self, servers: list[str]) -> None:
        self._servers = servers
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def publish(self, subject: str, value: bytes, within_s: float, message_id: str | None) -> PublishAck:
        """Publish once. BrokerUnreachable: certainly without effect; OutcomeUnknown: unknown."""
        headers = None if message_id is None else {"Nats-Msg-Id": message_id}
        answer = await self.ask(subject, value, within_s, headers)
        if "error" in answer:
            raise OutcomeUnknown(f"the server answered {answer['error']}")
        return PublishAck(int(answer["seq"]), bool(answer.get("duplicate")))

    async def create(self, config: Mapping[str, Any], within_s: float) -> None:
        """Create a stream as `config` says; do nothing if it exists with that configuration."""
        await self._api(f"STREAM.CREATE.{config['name']}", config, within_s)

    async def state(self, stream: str, within_s: float) -> StreamState:
        info = await self._api(f"STREAM.INFO.{stream}", {}, within_s)
        first, last = int(info["state"]["first_seq"]), int(info["state"]["last_seq"])
        return StreamState(max(first, 1), last, info["config"].get("metadata") or {})

    async def remove(self, stream: str, sequence: int, within_s: float) -> None:
        """Remove one message from a stream."""
        await self._api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence}, within_s)

    async def from_leader(
        self, stream: str, subject: str, sequence: int, count: int, within_s: float
    ) -> list[StreamRecord]:
        """Ask the stream's leader for up to `count` messages from `sequence` on, or from the first one after it."""
        first = await self._get(stream, {"seq": sequence, "next_by_subj": subject}, within_s)
        if first is None:
            return []
        asked = [self._get(stream, {"seq": first.sequence + n}, within_s) for n in range(1, count)]
        found = [first]
        for record in await asyncio.gather(*asked, return_exceptions=True):
            if not isinstance(record, StreamRecord):
                break  # the end, a gap, or silence: the next read will tell
            found.append(record)
        return found

    async def _get(self, stream: str, what: Mapping[str, Any], within_s: float) -> StreamRecord | None:
        answer = await self.ask(f"{_API}.STREAM.MSG.GET.{stream}", json.dumps(what).encode(), within_s)
        message = answer.get("message")
        if message is None:
            if answer.get("error", {}).get("code") == 404:
                return None
            raise OutcomeUnknown(f"{stream}: {answer.get('error')}")
        return StreamRecord(int(message["seq"]), base64.b64decode(message.get("data", "")))

    async def from_any(self, stream: str, sequence: int, count: int, within_s: float) -> list[StreamRecord]:
        """Ask any replica (Direct Get) for up to `count` messages from `sequence` on, or from the first one after it.

        The client cannot choose the replica.
        """
        found: list[StreamRecord] = []
        what = json.dumps({"seq": sequence, "batch": count}).encode()
        async with contextlib.aclosing(self._answers(f"{_API}.DIRECT.GET.{stream}", what, within_s)) as answers:
            async for headers, value in answers:
                if headers.get("Status"):
                    break  # 204: that was all; 404: there is nothing; 503: no replica serves it
                found.append(StreamRecord(int(headers["Nats-Sequence"]), value))
        return found

    async def _answers(
        self, subject: str, what: bytes, within_s: float
    ) -> AsyncGenerator[tuple[Mapping[str, str], bytes], None]:
        """Yield answers until the caller stops or the deadline."""
        async with _ended_by(within_s):
            client = await self._connected()
            inbox = client.new_inbox()
            answers = await client.subscribe(inbox)
            try:
                await client.publish(subject, what, reply=inbox)
                while True:
                    message = await answers.next_msg(timeout=within_s)
                    yield message.headers or {}, message.data
            finally:
                with contextlib.suppress(nats.errors.Error):
                    await answers.unsubscribe()

    async def _api(self, call: str, what: Mapping[str, Any], within_s: float) -> dict[str, Any]:
        answer = await self.ask(f"{_API}.{call}", json.dumps(what).encode(), within_s)
        if "error" in answer:
            raise OutcomeUnknown(f"{call}: {answer['error']}")
        return answer

    async def ask(
        self, subject: str, what: bytes, within_s: float, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Make one request and return its answer. BrokerUnreachable: certainly not received; OutcomeUnknown: no
        answer."""
        async with _ended_by(within_s):
            client = await self._connected()
            connection = client.stats["reconnects"]
            try:
                answer = await client.request(subject, what, timeout=within_s, headers=headers)
            except nats.errors.NoRespondersError:
                if client.stats["reconnects"] != connection:
                    raise OutcomeUnknown("no subscriber takes it, and it may have been sent twice") from None
                raise BrokerUnreachable("no subscriber takes it") from None
            found: dict[str, Any] = json.loads(answer.data)
            return found

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is None:
                client = Client()
                try:
                    await client.connect(self._servers, error_cb=_pass_over, **CONNECT)
                except BaseException:
                    await _closed(client)
                    raise
                self._client = client
            if not self._client.is_connected:
                raise nats.errors.OutboundBufferLimitError
            return self._client

    async def close(self) -> None:
        if self._client is not None:
            await _closed(self._client)
            self._client = None


@contextlib.asynccontextmanager
async def _ended_by(within_s: float) -> AsyncIterator[None]:
    """End the block after `within_s`; turn errors of nats-py into one of two errors."""
    try:
        async with asyncio.timeout(within_s):
            yield
    except TinymqError:
        raise
    except (nats.errors.NoServersError, nats.errors.OutboundBufferLimitError) as error:
        raise BrokerUnreachable(f"no connection: {error!r}") from None
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise OutcomeUnknown(f"no answer: {error!r}") from None


async def _pass_over(error: Exception) -> None:
    """Ignore errors of connections: each call reports its own outcome."""


async def _closed(client: Client) -> None:
    with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
        await asyncio.wait_for(client.close(), 2)

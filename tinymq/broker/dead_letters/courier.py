"""Sends copies to the leaders of partitions, on this broker or another, and looks for copies there."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from tinymq.base.errors import CorruptData, NotReady
from tinymq.base.types import GroupId
from tinymq.broker.partition.message_ids import CopyId
from tinymq.proto import group_pb2 as wire
from tinymq.proto.errors import make_error

METHOD = "copy"
COPY_S = 6.0
NO_SEARCH = (1 << 63) - 1  # as `end`: only ids that are remembered count


class Peers(Protocol):
    """The part of the Raft host that reaches other brokers (tinymq.raft.Host)."""

    def leader_of(self, group_id: GroupId) -> tuple[int, int] | None: ...
    async def request(self, broker_id: int, method: str, body: bytes, timeout_s: float) -> bytes: ...


class Copied(NamedTuple):
    """The answer of a partition's leader."""

    offset: int | None  # of the copy, which is committed; None: it is not there
    high_watermark: int
    duplicate: bool


class Courier:
    """The sender of copies of one broker."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def send(self, to: GroupId, copy_id: CopyId, end: int, payload: bytes) -> Copied:
        """Have a batch of one record stored once under an id. Returns when it is committed.

        `end`: of the partition before the first attempt; where ids may have been forgotten since, the leader looks for
        the copy from there on in its log. NO_SEARCH: it does not look.

        Raises NotReady while the partition has no leader, the leader's refusal, and OutcomeUnknown: send it again.
        """
        copied = await self._ask(to, copy_id, end, payload)
        if copied.offset is None:
            raise CorruptData(f"the leader of {to} confirms a copy without its offset")
        return copied

    async def look(self, at: GroupId, copy_id: CopyId) -> Copied:
        """Look for a remembered copy, and for the end of the partition, as its leader knows them."""
        return await self._ask(at, copy_id, NO_SEARCH, b"")

    async def _ask(self, at: GroupId, copy_id: CopyId, end: int, payload: bytes) -> Copied:
        leader = self._peers.leader_of(at)
        if leader is None:
            raise NotReady(f"{at} has no leader")
        request = wire.CopyRequest(
            topic_id=at.topic_id, partition=at.partition, copy_id=copy_id.digest, end=end, payload=payload
        )
        body = await self._peers.request(leader[0], METHOD, request.SerializeToString(), COPY_S)
        try:
            reply = wire.CopyReply.FromString(body)
        except DecodeError:
            raise CorruptData(f"broker {leader[0]} answers what does not parse") from None
        if reply.error_code:
            raise make_error(reply.error_code, reply.error_message, None, {}, retriable=reply.retriable)
        offset = reply.offset if reply.HasField("offset") else None
        return Copied(offset, reply.high_watermark, reply.duplicate)

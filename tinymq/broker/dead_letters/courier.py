"""Sends copies to the leaders of partitions, on any broker, and asks those leaders for copies that they have."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from tinymq.base.errors import CorruptData, NotReady
from tinymq.base.types import GroupId
from tinymq.broker.duplicates.message_ids import CopyId
from tinymq.broker.groups.groups import Peers
from tinymq.proto import group_pb2 as wire
from tinymq.proto.errors import make_error

METHOD = "copy"
COPY_S = 6.0
NO_SEARCH = (1 << 63) - 1  # a value of `end`: do not search the log, look at remembered ids only


class Copied(NamedTuple):
    """The answer of a partition's leader."""

    offset: int | None  # of the committed copy; None: the partition has no such copy
    high_watermark: int
    duplicate: bool


class Courier:
    """Sends the copies of one broker."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def send(self, to: GroupId, copy_id: CopyId, end: int, payload: bytes) -> Copied:
        """Have a batch of one record stored exactly once under an id. Returns when it is committed.

        `end` is the end of the partition before the first attempt. If the leader may have forgotten the id since, it
        searches its log for the copy from `end` on; with NO_SEARCH it does not.

        Raises NotReady while the partition has no leader, the error with which the leader refuses, and OutcomeUnknown:
        send the copy again under the same id.
        """
        copied = await self._ask(to, copy_id, end, payload)
        if copied.offset is None:
            raise CorruptData(f"the leader of {to} confirms a copy without its offset")
        return copied

    async def look(self, at: GroupId, copy_id: CopyId) -> Copied:
        """Ask the partition's leader whether it remembers a copy, and where the partition ends."""
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

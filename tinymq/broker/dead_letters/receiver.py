"""Stores copies in the partitions that this broker leads, each id once."""

from __future__ import annotations

from tinymq.base.errors import InvalidRequest, OffsetOutOfRange, TinymqError
from tinymq.broker.dead_letters.courier import COPY_S, NO_SEARCH
from tinymq.broker.duplicates.message_ids import CopyId
from tinymq.broker.partition.partition import Acks, Partition, Produced
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.messages import put
from tinymq.broker.state.message_ids import ID_BYTES, AwaitedRecord, is_record_of
from tinymq.format.entry import Kind, iter_entries
from tinymq.proto import group_pb2 as wire
from tinymq.proto import partition_pb2 as pb

SEARCH_BYTES = 1 << 20  # bytes of the log in one read


class Receiver:
    """Answers the couriers of all brokers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def serve(self, body: bytes) -> bytes:
        """Answer a CopyRequest."""
        try:
            reply = await self._answer(wire.CopyRequest.FromString(body))
        except TinymqError as error:
            reply = wire.CopyReply(error_code=error.code, error_message=error.message, retriable=error.retriable)
        return reply.SerializeToString()

    async def _answer(self, request: wire.CopyRequest) -> wire.CopyReply:
        if len(request.copy_id) != ID_BYTES:
            raise InvalidRequest(f"a copy has an id of {ID_BYTES} bytes, not {len(request.copy_id)}")
        partition = self._broker.find(request.topic_id, request.partition)
        partition.check_leading()
        if not request.payload:
            known = partition.state.copy_ids.find(request.copy_id, 0)
            reply = wire.CopyReply(high_watermark=partition.high_watermark)
            if known is not None:
                reply.offset, reply.duplicate = known.place, True
            return reply
        found = await self.store(partition, CopyId(request.copy_id), request.end, request.payload)
        return wire.CopyReply(
            offset=found.base_offset, duplicate=found.duplicate, high_watermark=partition.high_watermark
        )

    async def store(self, partition: Partition, copy_id: CopyId, end: int, payload: bytes) -> Produced:
        """Append a copy, or find that it is there. Returns when it is committed. Raises as `put`."""
        searched = end
        # More ids may be forgotten while the log is read. After the last look there is no `await` before the append.
        while not self._knows(partition, copy_id) and searched < (upto := partition.state.copy_ids.complete_from):
            found = await find_copy(partition, copy_id.digest, searched, upto)
            if found is not None:
                return Produced(found, 0, partition.group.term, True)
            searched = upto
        return await put(self._broker, partition, payload, Acks.QUORUM, COPY_S, copy_id)

    def _knows(self, partition: Partition, copy_id: CopyId) -> bool:
        return partition.state.copy_ids.find(copy_id.digest, 0) is not None


async def find_copy(partition: Partition, digest: bytes, start: int, end: int) -> int | None:
    """Search the log of a partition from `start` up to `end` for the copy with an id; None: there is no such copy.

    The id stands in a command entry in front of the copy's batch, so a user's record cannot pass for a copy.
    """
    reader = partition.group.log.reader
    start, end = max(start, partition.log_start), min(end, partition.high_watermark)
    if start >= end or start >= NO_SEARCH:
        return None
    frames = await reader.read_from_offset(start, end, 1)
    first = next(iter_entries(frames), None)
    if first is None:
        return None
    awaited: AwaitedRecord | None = None  # what the entry before announced: it counts only for the batch right behind
    index = max(1, first.header.index - 1)  # the entry with the id comes before the batch
    while True:
        try:
            entries = await reader.read(index, SEARCH_BYTES)
        except OffsetOutOfRange:
            if index >= first.header.index:
                return None  # retention has removed this part of the log meanwhile
            index = first.header.index  # the log begins with the batch, so the command in front of it is gone
            continue
        for entry in entries:
            header = entry.header
            if header.base_offset >= end:
                return None
            if header.kind == Kind.DATA and awaited is not None and is_record_of(awaited, header):
                return header.base_offset
            awaited = _noted(entry.payload, digest, header.index) if header.kind == Kind.COMMAND else None
            index = header.index + 1
        if not entries:
            return None


def _noted(payload: bytes, digest: bytes, index: int) -> AwaitedRecord | None:
    """The record that a command entry announces under this id; None: it announces none."""
    if digest not in payload:
        return None
    for command in pb.Commands.FromString(payload).commands:
        note = command.note_copy
        if command.WhichOneof("command") == "note_copy" and note.message_id == digest:
            return AwaitedRecord(digest, index + 1, note.payload_crc, note.length)
    return None

"""A partition's applied state: what every replica knows of the log up to one index, and nothing else.

    offset size field (little-endian)
         0    4 crc32c          u32  of everything after it
         4    2 version         u16  2
         6    2 reserved        u16  0
         8    8 applied_index   u64  the last entry that counts
        16    8 high_watermark  u64  offset after the last record up to it
        24    8 record_bytes    u64  payload bytes of all records up to it
        32    8 producers       u64  bytes of what comes next
        40    … producers            tinymq/broker/state/producers.py
         …    … State                tinymq/proto/partition.proto: log start, channels, milestones, holds, histories

Equal logs give equal bytes. `apply` is total: whatever was committed is counted, never refused; a command that cannot
be carried out has an error for its outcome, and changes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from google.protobuf.message import DecodeError

from tinymq.base.errors import CorruptData, InvalidBatch, InvalidRequest, TinymqError
from tinymq.broker.state.channels import CHANNEL_COMMANDS, Channels, ConsumerVerdict, Cursor
from tinymq.broker.state.epoch_cache import EpochCache
from tinymq.broker.state.holds import Holds
from tinymq.broker.state.outcome import CommandOutcome, OffsetBounds
from tinymq.broker.state.producers import PRODUCERS_MAX, Producers
from tinymq.broker.state.retention import new_start
from tinymq.broker.state.retention_index import RetentionIndex
from tinymq.format.batch import BatchHeader, parse_batch_header
from tinymq.format.entry import Entry, Kind, crc32c
from tinymq.proto import partition_pb2 as pb
from tinymq.raft.rules.noop import parse_noop

STATE_VERSION = 2
_HEAD = struct.Struct("<IHHQQQQ")


class PartitionState:
    """Changed by `apply` and `load` alone."""

    __slots__ = (
        "_channels",
        "applied_index",
        "epoch_cache",
        "high_watermark",
        "holds",
        "log_start",
        "producers",
        "record_bytes",
        "retention_index",
    )  # fmt: skip

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self.applied_index = 0
        self.high_watermark = 0
        self.record_bytes = 0  # of all records that there ever were
        self.log_start = 0  # nobody is shown a record below it; invariant: <= high_watermark
        self.producers = Producers(producers_max)
        self.retention_index = RetentionIndex()
        self.holds = Holds()
        self.epoch_cache = EpochCache()
        self._channels = Channels()

    @property
    def channels(self) -> Mapping[str, Cursor]:
        """The cursors by channel, as they are now; a view."""
        return self._channels.cursors

    @property
    def kept_records(self) -> int:
        """How many there are from the log start on."""
        return self.high_watermark - self.log_start

    @property
    def kept_bytes(self) -> int:
        """Of records from the log start on, as stored: no less than there are, and by less than 1/128 more."""
        return self.record_bytes - self.retention_index.start_bytes

    def offset_bounds(self, now_us: int) -> OffsetBounds:
        """What the next command is judged by."""
        return OffsetBounds(self.log_start, self.high_watermark, now_us)

    def apply(self, entry: Entry) -> list[CommandOutcome] | None:
        """Count one committed entry, of any kind; entries come in order, each once. Outcomes of a COMMAND entry."""
        header = entry.header
        self.applied_index = header.index
        self.high_watermark = header.next_offset
        if header.kind != Kind.DATA:
            if header.kind == Kind.COMMAND:
                return self._apply_commands(entry)
            if header.kind == Kind.CONFIG:
                self.epoch_cache.note(entry)
            elif header.kind == Kind.NOOP:
                self._note_time(entry)
            return None
        below, append_us, marks = self.record_bytes, header.append_time_us, self.retention_index
        self.record_bytes = below + header.length
        if self.record_bytes > marks.bytes_due or append_us > marks.us_due:  # asked here, for it is once per batch
            marks.note(header.base_offset, below, header.length, append_us)
        elif append_us > marks.last_append_us:
            marks.last_append_us = append_us
        batch = _batch_header(entry)
        if batch is not None and batch.producer_id:
            self.producers.add(batch, header.base_offset, header.append_time_us)
        return None

    def _note_time(self, entry: Entry) -> None:
        """Note that the leader does not know the time, or that it has learned the time. Of the records appended in
        between, it is only known that they exist by now. Leases given in between last as long as was left of them."""
        note, now_us = parse_noop(entry.payload), entry.header.append_time_us
        if not note.known:
            self.retention_index.lose_time(entry.header.base_offset, self.record_bytes)
        elif self.retention_index.time_is_unknown:
            self.retention_index.find_time(now_us)
            self.holds.extend(now_us - note.jump_us, note.jump_us)

    # ---- commands

    def judge(self, command: pb.Command, now_us: int) -> ConsumerVerdict | None:
        """What a channel's command would come to now; None for all others. Changes nothing."""
        name = command.WhichOneof("command")
        if name not in CHANNEL_COMMANDS:
            return None
        return self._channels.judge(name, getattr(command, name), self.offset_bounds(now_us))

    def _apply_commands(self, entry: Entry) -> list[CommandOutcome]:
        try:
            commands = pb.Commands.FromString(entry.payload).commands
        except DecodeError:  # committed all the same: it means nothing, on every replica
            return []
        now_us = entry.header.append_time_us
        return [self._apply_command(command, now_us) for command in commands]

    def _apply_command(self, command: pb.Command, now_us: int) -> CommandOutcome:
        name = command.WhichOneof("command")
        at = self.offset_bounds(now_us)
        if name in CHANNEL_COMMANDS:
            return self._channels.apply(name, getattr(command, name), at)
        try:
            if name == "move_start":
                return self.move_start(command.move_start, at)
            if name == "hold":
                until_us = self.holds.hold(command.hold, at).until_us
                return CommandOutcome(log_start=at.log_start, high_watermark=at.end, until_us=until_us)
            if name == "release":
                self.holds.release(command.release.hold_id)
                return CommandOutcome(log_start=at.log_start, high_watermark=at.end)
            raise InvalidRequest("no such command", hint="it comes from a newer version")
        except TinymqError as error:
            return CommandOutcome(error, log_start=at.log_start, high_watermark=at.end)

    def move_start(self, said: pb.MoveStart, at: OffsetBounds) -> CommandOutcome:
        self.holds.drop_expired(at.now_us)
        start = new_start(said, at, self.holds.lowest(at.now_us))
        if start > self.log_start:
            self.log_start = start
            self.retention_index.start_at(start, at.end, self.record_bytes)
        return CommandOutcome(log_start=self.log_start, high_watermark=at.end)

    # ---- as bytes

    def dump(self) -> bytes:
        producers = self.producers.dump()
        state = pb.State(log_start=self.log_start)
        self._channels.dump(state)
        self.retention_index.dump(state)
        self.holds.dump(state)
        self.epoch_cache.dump(state)
        head = _HEAD.pack(
            0, STATE_VERSION, 0, self.applied_index, self.high_watermark, self.record_bytes, len(producers)
        )
        body = b"".join((head[4:], producers, state.SerializeToString(deterministic=True)))
        return crc32c(body).to_bytes(4, "little") + body

    def load(self, data: bytes) -> None:
        """Take over what `dump` made. Raises CorruptData, and then nothing has changed."""
        if len(data) < _HEAD.size:
            raise CorruptData("a partition's applied state is cut short")
        crc, version, reserved, applied_index, high_watermark, record_bytes, length = _HEAD.unpack_from(data)
        if crc32c(data[4:]) != crc:
            raise CorruptData("a partition's applied state does not match its checksum")
        if version != STATE_VERSION:
            raise CorruptData(f"a partition's applied state has version {version}, this build knows {STATE_VERSION}")
        if reserved or (applied_index | high_watermark | record_bytes) >> 63 or length > len(data) - _HEAD.size:
            raise CorruptData("a partition's applied state is out of range")
        end = _HEAD.size + length
        state = _parse(data[end:])
        if state.log_start > high_watermark:
            raise CorruptData("a partition's applied state begins behind its end")
        channels = Channels.load(state, high_watermark)
        milestones = RetentionIndex.load(state, high_watermark, record_bytes)
        holds = Holds.load(state, high_watermark)
        histories = EpochCache.load(state, high_watermark)
        self.producers.load(data[_HEAD.size : end])
        self.applied_index, self.high_watermark, self.record_bytes = applied_index, high_watermark, record_bytes
        self.log_start = state.log_start
        self._channels, self.retention_index, self.holds, self.epoch_cache = channels, milestones, holds, histories


def _parse(data: bytes) -> pb.State:
    """Only what `dump` writes, byte for byte: what another order or an unknown field says would be lost."""
    try:
        state = pb.State.FromString(data)
        state.DiscardUnknownFields()
    except DecodeError:
        raise CorruptData("a partition's applied state does not parse") from None
    if state.SerializeToString(deterministic=True) != data:
        raise CorruptData("a partition's applied state is not as it was written")
    return state


def _batch_header(entry: Entry) -> BatchHeader | None:
    try:
        return parse_batch_header(entry.payload)
    except InvalidBatch:  # committed all the same: its offsets are taken, and it names no producer
        return None

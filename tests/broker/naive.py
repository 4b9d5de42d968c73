"""A naive replay of a partition's log. It computes the state from all entries each time: a second implementation of the
rules of commands, without stored state, counters or indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tinymq.base.topic_config import TopicConfig
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.format.entry import Entry, Kind
from tinymq.proto import partition_pb2 as pb


class Batch(NamedTuple):
    base: int
    count: int
    size: int
    append_us: int

    @property
    def end(self) -> int:
        return self.base + self.count


@dataclass
class Channel:
    position: int
    epoch: int
    generation: int
    seek: bytes = b""
    took: list[tuple[bytes, int]] = field(default_factory=list)


class Told(NamedTuple):
    """The parts of an outcome that the test compares. An empty error means success."""

    error: str
    position: int = 0
    taken: bool = False
    offset: int = 0

    @classmethod
    def of(cls, outcome: CommandOutcome) -> Told:
        if outcome.error is not None:
            return cls(outcome.error.code)
        return cls("", outcome.position, outcome.taken, outcome.offset)


class Naive:
    """The state of the log up to some entry."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self.batches: list[Batch] = []
        self.start = 0
        self.now_us = 0
        self.channels: dict[str, Channel] = {}
        self.holds: dict[bytes, tuple[int, int]] = {}  # (offset, until)
        self.numbers = 0
        self.told: dict[int, list[Told]] = {}  # by index
        for entry in entries:
            self.add(entry)

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    @property
    def records(self) -> int:
        return self.end - self.start

    def bytes_from(self, start: int) -> int:
        return sum(b.size for b in self.batches if b.end > start)

    @property
    def bytes(self) -> int:
        return self.bytes_from(self.start)

    @property
    def read_by_all(self) -> int:
        """The lowest position of a channel."""
        return min((channel.position for channel in self.channels.values()), default=0)

    def held(self, now_us: int) -> int | None:
        return min((offset for offset, until_us in self.holds.values() if until_us > now_us), default=None)

    def add(self, entry: Entry) -> None:
        header = entry.header
        self.now_us = header.append_time_us
        if header.kind == Kind.DATA:
            self.batches.append(Batch(header.base_offset, header.record_count, header.length, header.append_time_us))
        if header.kind == Kind.COMMAND:
            commands = pb.Commands.FromString(entry.payload).commands
            self.told[entry.index] = [self.do(command) for command in commands]

    def do(self, command: pb.Command) -> Told:
        name = command.WhichOneof("command")
        assert name is not None
        said = getattr(command, name)
        if name == "move_start":
            return self.move(said)
        if name == "remove_acknowledged":
            held = self.held(self.now_us)
            self.start = max(self.start, min(said.upto, self.read_by_all, self.end if held is None else held))
            return Told("")
        if name == "hold":
            return self.hold(said)
        if name == "release":
            self.holds.pop(said.hold_id, None)
            return Told("")
        channel = self.channels.get(said.channel)
        if name == "open" and channel is None:
            self.numbers += 1
            channel = Channel(min(max(said.start, self.start), self.end), said.epoch, self.numbers)
            self.channels[said.channel] = channel
            return self.at(channel)
        if channel is None:
            return Told("UnknownChannel")
        if name == "open":
            return self.open(channel, said)
        if name == "commit":
            return self.commit(channel, said)
        if name == "seek":
            return self.seek(channel, said)
        if name == "consume":
            return self.consume(channel, said)
        told = self.at(channel)
        del self.channels[said.channel]
        return told

    def at(self, channel: Channel, taken: bool = False, offset: int = 0) -> Told:
        return Told("", max(channel.position, self.start), taken, offset)

    def open(self, channel: Channel, said: pb.OpenChannel) -> Told:
        if 0 < said.epoch < channel.epoch:
            return Told("Fenced")
        channel.epoch = max(channel.epoch, said.epoch)
        return self.at(channel)

    def commit(self, channel: Channel, said: pb.Commit) -> Told:
        if said.epoch < channel.epoch or said.generation != channel.generation:
            return Told("Fenced")
        if said.offset > self.end:
            return Told("OffsetOutOfRange")
        channel.epoch = said.epoch
        channel.position = max(channel.position, said.offset)
        return self.at(channel)

    def seek(self, channel: Channel, said: pb.Seek) -> Told:
        if said.request_id == channel.seek:
            return self.at(channel)
        if said.epoch < channel.epoch:
            return Told("Fenced")
        if not self.start <= said.offset <= self.end:
            return Told("OffsetOutOfRange")
        self.numbers += 1
        channel.epoch, channel.generation, channel.seek = said.epoch, self.numbers, said.request_id
        channel.position = said.offset
        return self.at(channel)

    def consume(self, channel: Channel, said: pb.Consume) -> Told:
        for request, offset in channel.took:
            if request == said.request_id:
                return self.at(channel, True, offset)
        offset = max(channel.position, self.start)
        if offset >= self.end:
            return self.at(channel)
        channel.took.append((said.request_id, offset))
        channel.position = offset + 1
        return self.at(channel, True, offset)

    def move(self, said: pb.MoveStart) -> Told:
        to, held = min(said.offset, self.end), self.held(self.now_us)
        if said.reason == pb.MoveStart.TRIM:
            if held is not None and to > held:
                return Told("Held")
        elif held is not None:
            to = min(to, held)
        self.start = max(self.start, to)
        return Told("")

    def hold(self, said: pb.Hold) -> Told:
        if not self.start <= said.offset <= self.end:
            return Told("OffsetOutOfRange")
        self.holds[said.hold_id] = (said.offset, self.now_us + 1000 * said.lease_ms)
        return Told("")

    # ---- decisions of a leader

    def due(self, config: TopicConfig, now_us: int) -> int:
        """Return the log start that retention allows, by whole batches."""
        start = self.start
        for batch in self.batches:
            if config.retention_ms is not None and batch.append_us < now_us - 1000 * config.retention_ms:
                start = max(start, batch.end)
            if config.retention_bytes is not None and self.bytes_from(batch.end) >= config.retention_bytes:
                start = max(start, batch.end)
        held = self.held(now_us)
        return max(self.start, start if held is None else min(start, held))

    def fits(self, config: TopicConfig, start: int, count: int, size: int) -> bool:
        """Do `count` more records of `size` bytes fit if the log starts at `start`?"""
        if config.max_records is not None and self.end + count - start > config.max_records:
            return False
        return config.max_bytes is None or self.bytes_from(start) + size <= config.max_bytes

    def needed(self, config: TopicConfig, count: int, size: int) -> int:
        """Return the log start that makes space for such a batch."""
        return next(s for s in range(self.start, self.end + 1) if self.fits(config, s, count, size))

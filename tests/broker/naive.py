"""A naive replay of a partition's log. It computes the state from all entries each time: a second implementation of the
rules of commands, without stored state, counters or indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tinymq.base.topic_config import TopicConfig
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.state.staged import Waiting
from tinymq.format.batch import parse_batch_header
from tinymq.format.entry import Entry, Kind
from tinymq.format.transactional import PublishedItems, TransactionName, unpack_discard, unpack_transactional
from tinymq.proto import partition_pb2 as pb


class Staged(NamedTuple):
    """A batch of a transaction, without offsets."""

    index: int
    count: int
    size: int


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


class Result(NamedTuple):
    """The parts of an outcome that the test compares. An empty error means success."""

    error: str
    position: int = 0
    taken: bool = False
    offset: int = 0

    @classmethod
    def of(cls, outcome: CommandOutcome) -> Result:
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
        self.answers: dict[int, list[Result]] = {}  # by index
        self.staged: dict[TransactionName, list[Staged]] = {}
        self.published: list[tuple[int, int]] = []  # (lowest index of their entries, offset behind the records)
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
    def waiting(self) -> Waiting:
        some = [each for staged in self.staged.values() for each in staged]
        return Waiting(len(some), sum(each.count for each in some), sum(each.size for each in some))

    @property
    def kept_from(self) -> int | None:
        """The lowest entry that has a batch without offsets, or one of a PUBLISH entry with a kept record."""
        indexes = [each.index for staged in self.staged.values() for each in staged]
        return min([*indexes, *(lowest for lowest, end in self.published if end > self.start)], default=None)

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
        if header.kind in (Kind.STAGED, Kind.DISCARD, Kind.PUBLISH):
            self.transact(entry)
        if header.kind == Kind.COMMAND:
            commands = pb.Commands.FromString(entry.payload).commands
            self.answers[entry.index] = [self.do(command) for command in commands]

    def transact(self, entry: Entry) -> None:
        """A batch of a transaction, or the end of one. What an end ends is known from the log before it."""
        header = entry.header
        if header.kind == Kind.STAGED:
            head, batch = unpack_transactional(entry.payload)
            name = TransactionName(head.producer_id, head.number, head.epoch)
            staged = Staged(entry.index, parse_batch_header(batch).record_count, len(batch))
            self.staged.setdefault(name, []).append(staged)
        elif header.kind == Kind.DISCARD:
            del self.staged[unpack_discard(entry.payload)]
        else:
            ended = self.staged.pop(PublishedItems(entry.payload).name)
            for staged in ended:
                self.batches.append(Batch(self.end, staged.count, staged.size, header.append_time_us))
            assert self.end == header.next_offset
            self.published.append((ended[0].index, self.end))

    def do(self, command: pb.Command) -> Result:
        name = command.WhichOneof("command")
        assert name is not None
        request = getattr(command, name)
        if name == "move_start":
            return self.move(request)
        if name == "remove_acknowledged":
            held = self.held(self.now_us)
            self.start = max(self.start, min(request.upto, self.read_by_all, self.end if held is None else held))
            return Result("")
        if name == "hold":
            return self.hold(request)
        if name == "release":
            self.holds.pop(request.hold_id, None)
            return Result("")
        channel = self.channels.get(request.channel)
        if name == "open" and channel is None:
            self.numbers += 1
            channel = Channel(min(max(request.start, self.start), self.end), request.epoch, self.numbers)
            self.channels[request.channel] = channel
            return self.at(channel)
        if channel is None:
            return Result("UnknownChannel")
        if name == "open":
            return self.open(channel, request)
        if name == "commit":
            return self.commit(channel, request)
        if name == "seek":
            return self.seek(channel, request)
        if name == "consume":
            return self.consume(channel, request)
        result = self.at(channel)
        del self.channels[request.channel]
        return result

    def at(self, channel: Channel, taken: bool = False, offset: int = 0) -> Result:
        return Result("", max(channel.position, self.start), taken, offset)

    def open(self, channel: Channel, request: pb.OpenChannel) -> Result:
        if 0 < request.epoch < channel.epoch:
            return Result("Fenced")
        channel.epoch = max(channel.epoch, request.epoch)
        return self.at(channel)

    def commit(self, channel: Channel, request: pb.Commit) -> Result:
        if request.epoch < channel.epoch or request.generation != channel.generation:
            return Result("Fenced")
        if request.offset > self.end:
            return Result("OffsetOutOfRange")
        channel.epoch = request.epoch
        channel.position = max(channel.position, request.offset)
        return self.at(channel)

    def seek(self, channel: Channel, request: pb.Seek) -> Result:
        if request.request_id == channel.seek:
            return self.at(channel)
        if request.epoch < channel.epoch:
            return Result("Fenced")
        if not self.start <= request.offset <= self.end:
            return Result("OffsetOutOfRange")
        self.numbers += 1
        channel.epoch, channel.generation, channel.seek = request.epoch, self.numbers, request.request_id
        channel.position = request.offset
        return self.at(channel)

    def consume(self, channel: Channel, said: pb.Consume) -> Result:
        for request, offset in channel.took:
            if request == said.request_id:
                return self.at(channel, True, offset)
        offset = max(channel.position, self.start)
        if offset >= self.end:
            return self.at(channel)
        channel.took.append((said.request_id, offset))
        channel.position = offset + 1
        return self.at(channel, True, offset)

    def move(self, request: pb.MoveStart) -> Result:
        to, held = min(request.offset, self.end), self.held(self.now_us)
        if request.reason == pb.MoveStart.TRIM:
            if held is not None and to > held:
                return Result("Held")
        elif held is not None:
            to = min(to, held)
        self.start = max(self.start, to)
        return Result("")

    def hold(self, request: pb.Hold) -> Result:
        if not self.start <= request.offset <= self.end:
            return Result("OffsetOutOfRange")
        self.holds[request.hold_id] = (request.offset, self.now_us + 1000 * request.lease_ms)
        return Result("")

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
        """Do `count` more records of `size` bytes fit if the log starts at `start`? What is staged has its room."""
        count, size = count + self.waiting.records, size + self.waiting.bytes
        if config.max_records is not None and self.end + count - start > config.max_records:
            return False
        return config.max_bytes is None or self.bytes_from(start) + size <= config.max_bytes

    def needed(self, config: TopicConfig, count: int, size: int) -> int | None:
        """Return the log start that makes space for such a batch; None: staged batches leave too little."""
        return next((s for s in range(self.start, self.end + 1) if self.fits(config, s, count, size)), None)

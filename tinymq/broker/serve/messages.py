"""A partition as a queue of single messages, on the broker that leads it: put one, take one, look at one.

Taking is a command in the partition's own log, remembered by its request: a repeat gets the same message. What waits
holds no timer of its own, and is woken by commits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from tinymq.base.errors import CorruptData, OffsetOutOfRange, TinymqError, UnknownChannel
from tinymq.base.types import GroupId
from tinymq.base.value import value
from tinymq.broker.partition.admission import admit, is_heavy
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Acks, Partition, Produced
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.fetch import Fetch, FetchQuery
from tinymq.broker.serve.offsets import STORED
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.format.batch import decode_batch, encode, pack_batch, read_declared
from tinymq.format.entry import Kind, crc32c, iter_entries
from tinymq.log.segment.reads import StoredFrames
from tinymq.proto import partition_pb2 as pb

T = TypeVar("T")
Key = tuple[GroupId, str]  # a channel of a partition
Headers = Sequence[tuple[str, bytes | None]]


@value
class StoredMessage:
    """One message as it is stored."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_us: int


@value
class PeekResult:
    """What lies at an offset, or the first behind it; and where the partition begins and ends."""

    record: StoredMessage | None
    log_start: int
    high_watermark: int


# ---- putting ------------------------------------------------------------------------------------------------


def pack_record(key: bytes | None, value: bytes | None, headers: Headers, timestamp_us: int) -> bytes:
    """The batch of one record. Raises InvalidBatch."""
    message = encode([key], [value], [list(headers)] if headers else None, [timestamp_us])
    return pack_batch(message, record_count=1)


async def put(broker: Broker, partition: Partition, payload: bytes, acks: Acks, timeout_s: float) -> Produced:
    """Append a batch. Raises as `admit` and `Partition.produce` do, and OutcomeUnknown."""
    crc = crc32c(payload)
    checked = admit(payload, crc, broker.limits)
    answer: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()
    partition.produce(checked, payload, crc, acks, timeout_s, partial(_tell, answer))
    return await answer


async def command(partition: Partition, commands: Sequence[pb.Command], timeout_s: float) -> list[CommandOutcome]:
    """What became of each. Raises NotLeader, when nothing was done, and OutcomeUnknown."""
    answer: asyncio.Future[list[CommandOutcome]] = asyncio.get_running_loop().create_future()
    partition.command(commands, timeout_s, partial(_tell, answer))
    return await answer


async def prove_leading(partition: Partition, timeout_s: float) -> None:
    """Return once this replica has applied all that was acknowledged anywhere before. Raises NotLeader,
    DeadlineExceeded."""
    if not partition.leading:
        raise partition.closed or partition.not_leader()
    await partition.group.read_index(timeout_s)


def _tell(answer: asyncio.Future[Any], outcome: object) -> None:
    if answer.done():  # whoever asked has gone
        return
    if isinstance(outcome, TinymqError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


# ---- taking -------------------------------------------------------------------------------------------------


class WaitingTakers:
    """Who waits on this broker for channels' messages: as many are woken as there are messages, not all of them."""

    def __init__(self) -> None:
        self._taking: Counter[Key] = Counter()  # woken, and not yet answered by the log
        self._sent: Counter[Key] = Counter()  # given to the log, and not yet answered by it
        self._order: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    async def take(
        self,
        broker: Broker,
        partition: Partition,
        channel: str,
        request_id: bytes,
        wait_s: float,
        timeout_s: float,
        shape: Callable[[StoredMessage], T],
    ) -> T | None:
        """The channel's next record, or the one that this request took before, in the shape that the caller wants it
        in; None: there was none in `wait_s` seconds.

        Makes the channel, at the earliest record. Raises NotLeader, OutcomeUnknown, QuotaExceeded (channels), and
        OffsetOutOfRange for a record that was trimmed once it was taken. What `shape` raises for the record that comes
        next is raised before that is taken; a record that was committed in this very moment is looked at afterwards.
        """
        clock = broker.env.clock
        wait_until_s = clock.monotonic() + wait_s
        take = partial(self._consume, broker, partition, channel, request_id, timeout_s, shape)
        outcome, seen = await take()
        while not outcome.taken:
            left_s = wait_until_s - clock.monotonic()
            if left_s <= 0:
                return None
            with self.turn(partition, channel) as turn:
                await changed(broker.deadlines, [partition], left_s, lambda: turn.claim() or not partition.leading)
                outcome, seen = await take()
        if seen is not None and seen[0] == outcome.offset:
            return seen[1]
        return shape(await read_record(broker, partition, outcome.offset))

    async def _consume(
        self,
        broker: Broker,
        partition: Partition,
        channel: str,
        request_id: bytes,
        timeout_s: float,
        shape: Callable[[StoredMessage], T],
    ) -> tuple[CommandOutcome, tuple[int, T] | None]:
        """What came of a taking, and the record that it was to take, by its offset. One after the other look, and
        give the log what they ask for; the answers are waited for side by side."""
        key = (partition.group.id, channel)
        order = self._order.get(key) or self._order.setdefault(key, asyncio.Lock())
        asked = pb.Command(consume=pb.Consume(channel=channel, request_id=request_id))
        opening = pb.Command(open=pb.OpenChannel(channel=channel))
        for commands in ([asked], [opening, asked]):
            seen: tuple[int, T] | None = None
            async with order:
                offset = self._next(partition, asked)
                if offset is not None:
                    with suppress(OffsetOutOfRange):  # trimmed meanwhile: another one is next
                        seen = offset, shape(await read_record(broker, partition, offset))
                answer = self._send(partition, key, commands, timeout_s)
            outcomes = await answer
            if not isinstance(outcomes[-1].error, UnknownChannel):
                break
        failed = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        if failed is not None:
            raise failed
        return outcomes[-1], seen

    def _next(self, partition: Partition, asked: pb.Command) -> int | None:
        """Where the record lies that comes next, behind those that the log was asked for; None: not known here."""
        verdict = partition.state.judge(asked, 0)
        assert verdict is not None, "a channel's command"
        outcome = verdict.outcome
        if isinstance(outcome.error, UnknownChannel):
            position = partition.log_start
        elif verdict.changes:
            position = outcome.offset
        else:
            return None
        offset = position + self._sent[partition.group.id, asked.consume.channel]
        return offset if partition.leading and offset < partition.high_watermark else None

    def _send(
        self, partition: Partition, key: Key, commands: Sequence[pb.Command], timeout_s: float
    ) -> asyncio.Future[list[CommandOutcome]]:
        """Ask the log; the answer is what became of each. Raises, and its answer does, as `command`."""
        answer: asyncio.Future[list[CommandOutcome]] = asyncio.get_running_loop().create_future()

        def done(outcomes: list[CommandOutcome] | TinymqError) -> None:
            self._done(key)
            _tell(answer, outcomes)

        self._sent[key] += 1
        try:
            partition.command(commands, timeout_s, done)
        except TinymqError:
            self._done(key)
            raise
        return answer

    def _done(self, key: Key) -> None:
        self._sent[key] -= 1
        if not self._sent[key]:
            del self._sent[key]

    def turn(self, partition: Partition, channel: str) -> Turn:
        """For one taker that waits."""
        return Turn(self._taking, partition, channel)


class Turn:
    """One waiting taker's claim on a message: given up when it is answered, whatever the answer."""

    def __init__(self, taking: Counter[Key], partition: Partition, channel: str) -> None:
        self._taking = taking
        self._partition = partition
        self._channel = channel
        self._key = (partition.group.id, channel)
        self.held = False

    def __enter__(self) -> Turn:
        return self

    def claim(self) -> bool:
        """Is there a message, by what is known here, that nobody else has been woken for? It is this taker's then."""
        if not self.held and size_of(self._partition, self._channel) > self._taking[self._key]:
            self._taking[self._key] += 1
            self.held = True
        return self.held

    def __exit__(self, *_: object) -> None:
        if self.held:
            self._taking[self._key] -= 1
            if size_of(self._partition, self._channel) > self._taking[self._key]:
                self._partition.look()  # a message came while this claim still stood for one that is gone
        if not self._taking[self._key]:
            del self._taking[self._key]


def size_of(partition: Partition, channel: str) -> int:
    """Records that `channel` has still to read; of a channel that is not there, or of "": all that are kept."""
    cursor = partition.state.channels.get(channel) if channel else None
    position = partition.log_start if cursor is None else max(cursor.position, partition.log_start)
    return max(0, partition.high_watermark - position)


async def changed(
    deadlines: Deadlines, partitions: Sequence[Partition], wait_s: float, holds: Callable[[], bool]
) -> None:
    """Return once `holds()`, which is looked at whenever one of `partitions` changes, or when the time is up."""
    wait = _Wait(holds)
    for each in partitions:
        each.watch(wait.look)
    ticket = deadlines.add(wait, wait_s)
    try:
        wait.look()
        await wait.over
    finally:
        deadlines.drop(ticket)
        for each in partitions:
            each.unwatch(wait.look)


class _Wait:
    def __init__(self, holds: Callable[[], bool]) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._holds = holds
        self.look = self._look  # one object: what is watched is to be unwatched

    def _look(self) -> None:
        if self._holds():
            self.expire()

    def expire(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


# ---- looking ------------------------------------------------------------------------------------------------


async def look(broker: Broker, partition: Partition, offset: int, wait_s: float) -> PeekResult:
    """The record at `offset`, or the first that is kept behind it; waits for one up to `wait_s` seconds.

    Raises NotLeader, NotReady, CorruptData.
    """
    if wait_s > 0:
        await changed(
            broker.deadlines, [partition], wait_s, lambda: partition.high_watermark > offset or not partition.leading
        )
    if not partition.leading:
        raise partition.closed or partition.not_leader()
    start, end = partition.log_start, partition.high_watermark
    record = await read_record(broker, partition, max(offset, start)) if max(offset, start) < end else None
    return PeekResult(record, start, end)


async def read_record(broker: Broker, partition: Partition, offset: int) -> StoredMessage:
    """A committed record. Raises OffsetOutOfRange when it is below the log start, NotReady, CorruptData."""
    fetch = Fetch(partition, FetchQuery(offset, 1, 0, 0.0), broker.deadlines, lambda ready: None)
    answer = fetch.read_now() or await fetch.read()
    if answer.error is not None:
        raise answer.error
    assert not isinstance(answer.frames, StoredFrames), "not asked for"
    for entry in iter_entries(answer.frames):
        header = entry.header
        if header.kind == Kind.DATA and header.base_offset <= offset < header.next_offset:
            unpack = partial(_unpack, entry.payload, header.base_offset, offset)
            heavy = is_heavy(read_declared(entry.payload, STORED), len(entry.payload))
            return await broker.unpack_queue.run(unpack) if heavy else unpack()
    raise CorruptData(f"{partition}: offset {offset} is not in what the log has for it")


def _unpack(payload: bytes, base_offset: int, offset: int) -> StoredMessage:
    batch = decode_batch(payload, STORED)
    key, value, headers, time = (column[offset - base_offset] for column in batch.columns)
    pairs = tuple((pair["key"], pair["value"]) for pair in headers.as_py() or ())
    return StoredMessage(offset, key.as_py(), value.as_py(), pairs, time.value)

"""A partition as a queue of single messages, on the broker that leads it: put, take and peek.

Taking a message is a command in the partition's log, which remembers the request, so that a repeat gets the same
message. A waiting call has no timer of its own, and commits wake it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from tinymq.base.errors import CorruptData, OffsetOutOfRange, TinymqError, UnknownChannel
from tinymq.base.types import GroupId
from tinymq.base.value import value
from tinymq.broker.delayed.bounds import Due
from tinymq.broker.duplicates.message_ids import CopyId
from tinymq.broker.partition.admission import admit, is_heavy
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Acks, Partition, Produced
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.fetch import Fetch, FetchQuery
from tinymq.broker.serve.lag import lag_of
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
    """The record at an offset, or the first one behind it, and the bounds of the partition."""

    record: StoredMessage | None
    log_start: int
    high_watermark: int


# ---- putting ------------------------------------------------------------------------------------------------


def pack_record(key: bytes | None, value: bytes | None, headers: Headers, timestamp_us: int) -> bytes:
    """Pack a batch of one record. Raises InvalidBatch."""
    message = encode([key], [value], [list(headers)] if headers else None, [timestamp_us])
    return pack_batch(message, record_count=1)


async def put(
    broker: Broker,
    partition: Partition,
    payload: bytes,
    acks: Acks,
    timeout_s: float,
    message_id: bytes | CopyId = b"",
    due: Due | None = None,
) -> Produced:
    """Append a batch, which is delayed with `due`, and wait until `acks` holds.

    Raises as `admit` and `Partition.produce` do, and OutcomeUnknown.
    """
    crc = crc32c(payload)
    checked = admit(payload, crc, broker.limits)
    answer: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()
    done = partial(_resolve, answer)
    partition.produce(checked, payload, crc, acks, timeout_s, done, message_id=message_id, due=due)
    return await answer


async def command(partition: Partition, commands: Sequence[pb.Command], timeout_s: float) -> list[CommandOutcome]:
    """Carry out commands, and return the outcome of each. Raises NotLeader if nothing was done, and OutcomeUnknown."""
    answer: asyncio.Future[list[CommandOutcome]] = asyncio.get_running_loop().create_future()
    partition.command(commands, timeout_s, partial(_resolve, answer))
    return await answer


async def cancel_delayed(partition: Partition, schedule_id: int, timeout_s: float) -> bool:
    """Drop a delayed batch, and return once that is committed. False: the batch has ended before, or never existed.

    The caller has proven that the replica leads (`prove_leading`). Raises NotLeader if nothing was done, and
    OutcomeUnknown.
    """
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    partition.cancel_delayed(schedule_id, timeout_s, partial(_resolve, answer))
    return await answer


async def prove_leading(partition: Partition, timeout_s: float) -> None:
    """Return once this replica has applied every write that was acknowledged before the call.

    Raises NotLeader, DeadlineExceeded.
    """
    if not partition.leading:
        raise partition.closed or partition.not_leader()
    await partition.group.read_index(timeout_s)


def _resolve(answer: asyncio.Future[Any], outcome: object) -> None:
    if answer.done():  # the caller was cancelled
        return
    if isinstance(outcome, TinymqError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


# ---- taking -------------------------------------------------------------------------------------------------


class WaitingTakers:
    """The calls on this broker that wait to take a message of a channel.

    A commit wakes only as many of the calls as there are new messages.
    """

    def __init__(self) -> None:
        self._taking: Counter[Key] = Counter()  # takers that are woken and have no answer yet
        self._proposed: Counter[Key] = Counter()  # Consume commands that the log has not answered yet
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()  # gone with their last taker

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
        """Take the channel's next record and convert it with `shape`. None: no record came within `wait_s` seconds.

        A repeat of `request_id` gets the record that the request took before. A channel that does not exist is opened
        at the earliest record. Raises NotLeader, OutcomeUnknown, QuotaExceeded (channels), and OffsetOutOfRange for a
        record that was trimmed after it was taken.

        An error of `shape` for the next record is raised before that record is taken. A record that is committed
        between this check and the command is converted afterwards.
        """
        clock = broker.env.clock
        wait_until_s = clock.monotonic() + wait_s

        def take() -> Coroutine[Any, Any, tuple[CommandOutcome, tuple[int, T] | None]]:
            return self._consume(broker, partition, channel, request_id, timeout_s, shape)

        outcome, seen = await take()
        while not outcome.taken:
            # Several takers may wait. Each claims one message before it proposes, so that one new message does not
            # make all of them write to the log.
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
        """Propose one Consume. Returns its outcome, and the record that was next before, with its offset.

        Takers of one channel read and propose one after the other, so that each knows which record its command will
        get. They wait for the outcomes side by side.
        """
        key = (partition.group.id, channel)
        lock = self._locks.get(key) or self._locks.setdefault(key, asyncio.Lock())
        consume = pb.Command(consume=pb.Consume(channel=channel, request_id=request_id))
        opening = pb.Command(open=pb.OpenChannel(channel=channel))
        # The channel nearly always exists, so it is opened only after the log has refused.
        for commands in ([consume], [opening, consume]):
            seen: tuple[int, T] | None = None
            async with lock:
                offset = self._next(partition, consume)
                if offset is not None:
                    with suppress(OffsetOutOfRange):  # it was trimmed meanwhile, and another record is next
                        seen = offset, shape(await read_record(broker, partition, offset))
                answer = self._propose(partition, key, commands, timeout_s)
            outcomes = await answer
            if not isinstance(outcomes[-1].error, UnknownChannel):
                break
        failed = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        if failed is not None:
            raise failed
        return outcomes[-1], seen

    def _next(self, partition: Partition, consume: pb.Command) -> int | None:
        """The offset of the record that `consume` will take, behind those of proposed commands; None: not known."""
        verdict = partition.judge(consume)
        assert verdict is not None, "a channel's command"
        outcome = verdict.outcome
        if isinstance(outcome.error, UnknownChannel):
            position = partition.log_start
        elif verdict.changes:
            position = outcome.offset
        else:
            return None
        offset = position + self._proposed[partition.group.id, consume.consume.channel]
        return offset if partition.leading and offset < partition.high_watermark else None

    def _propose(
        self, partition: Partition, key: Key, commands: Sequence[pb.Command], timeout_s: float
    ) -> asyncio.Future[list[CommandOutcome]]:
        """Propose commands. The future has the outcome of each; it raises as `command` does, and so does this call."""
        answer: asyncio.Future[list[CommandOutcome]] = asyncio.get_running_loop().create_future()

        def done(outcomes: list[CommandOutcome] | TinymqError) -> None:
            self._done(key)
            _resolve(answer, outcomes)

        self._proposed[key] += 1
        try:
            partition.command(commands, timeout_s, done)
        except TinymqError:
            self._done(key)
            raise
        return answer

    def _done(self, key: Key) -> None:
        self._proposed[key] -= 1
        if not self._proposed[key]:
            del self._proposed[key]

    def turn(self, partition: Partition, channel: str) -> Turn:
        """The turn of one waiting taker."""
        return Turn(self._taking, partition, channel)


class Turn:
    """One waiting taker's claim on a message. The claim ends with the `with` block."""

    def __init__(self, taking: Counter[Key], partition: Partition, channel: str) -> None:
        self._taking = taking
        self._partition = partition
        self._channel = channel
        self._key = (partition.group.id, channel)
        self.held = False

    def __enter__(self) -> Turn:
        return self

    def claim(self) -> bool:
        """Claim a message that no other taker has claimed. Returns whether this taker has a claim."""
        if not self.held and size_of(self._partition, self._channel) > self._taking[self._key]:
            self._taking[self._key] += 1
            self.held = True
        return self.held

    def __exit__(self, *_: object) -> None:
        if self.held:
            self._taking[self._key] -= 1
            if size_of(self._partition, self._channel) > self._taking[self._key]:
                # The channel has a message that no taker has claimed: wake the next taker for it.
                self._partition.look()
        if not self._taking[self._key]:
            del self._taking[self._key]


def size_of(partition: Partition, channel: str) -> int:
    """The number of records that `channel` has not read; if it is "" or unknown, the number of all kept records."""
    return lag_of(partition.state, channel, partition.log_start)


async def changed(
    deadlines: Deadlines, partitions: Sequence[Partition], wait_s: float, holds: Callable[[], bool]
) -> None:
    """Return once `holds()` is true, or when the time is up. It is evaluated whenever one of `partitions` changes."""
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
        self.look = self._look  # one object, because `unwatch` needs the callback that `watch` got

    def _look(self) -> None:
        if self._holds():
            self.expire()

    def expire(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


# ---- looking ------------------------------------------------------------------------------------------------


async def look(broker: Broker, partition: Partition, offset: int, wait_s: float) -> PeekResult:
    """The record at `offset`, or the first kept one behind it. Waits for one for up to `wait_s` seconds.

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
    """Read a committed record. Raises OffsetOutOfRange if it is below the log start, NotReady, CorruptData."""
    fetch = Fetch(partition, FetchQuery(offset, 1, 0, 0.0), broker.deadlines, lambda ready: None)
    answer = fetch.read_now() or await fetch.read()
    if answer.error is not None:
        raise answer.error
    assert not isinstance(answer.frames, StoredFrames), "only with sends_files"
    for entry in iter_entries(answer.frames):
        header = entry.header
        if header.kind == Kind.DATA and header.base_offset <= offset < header.next_offset:
            unpack = partial(unpack_record, entry.batch, header.base_offset, offset)
            heavy = is_heavy(read_declared(entry.batch, STORED), len(entry.payload))
            return await broker.unpack_queue.run(unpack) if heavy else unpack()
    raise CorruptData(f"{partition}: no batch of the log holds offset {offset}")


def unpack_record(data: bytes, base_offset: int, offset: int) -> StoredMessage:
    """One record of a batch. Raises InvalidBatch."""
    batch = decode_batch(data, STORED)
    key, value, headers, time = (column[offset - base_offset] for column in batch.columns)
    pairs = tuple((pair["key"], pair["value"]) for pair in headers.as_py() or ())
    return StoredMessage(offset, key.as_py(), value.as_py(), pairs, time.value)

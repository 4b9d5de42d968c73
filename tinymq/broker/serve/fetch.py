"""Serving reads: one fetch waits until there is enough, then takes whole stored frames below the high watermark.

A waiting fetch holds no bytes and no timer of its own; it is woken by commits. Bytes are read when the answer
can be sent and not before, so that a slow reader costs a queue of small values, never of batches. Semantics:
Kafka's fetch with leader epochs (KIP-320) and follower fetch (KIP-392), over committed records only.
"""

from __future__ import annotations

from collections.abc import Callable

from tinymq.base.errors import NotReady, OffsetNotAvailable, OffsetOutOfRange, TinymqError
from tinymq.base.value import value
from tinymq.broker.partition.deadlines import Deadlines, Ticket
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.fetch_waits import FetchShare
from tinymq.log.segment.reads import Frames


@value
class FetchQuery:
    """What a reader asks of one partition."""

    offset: int
    bytes_max: int
    bytes_min: int
    wait_s: float
    leader_epoch: int = 0  # the newest that the reader knows; 0: none
    leader_only: bool = False
    recovery_term: int | None = None  # of the answer that `offset` comes from; None: whatever lies there now
    end: int = 0  # frames that begin at or behind it are not wanted; 0: all are


@value
class FetchResult:
    """What a replica shows. Offsets and epochs are those known to this replica."""

    high_watermark: int
    log_start: int
    leader_epoch: int
    leader: int  # 0: unknown
    frames: Frames
    next_offset: int  # where to go on when frames holds no record
    recovery_term: int = 0  # of the frames
    error: TinymqError | None = None


def refusal(partition: Partition, ask: FetchQuery) -> TinymqError | None:
    """Why `ask` has no answer on this replica, as it is now; None: it has, or may get one by waiting."""
    if partition.closed is not None:
        return partition.closed
    group = partition.group
    if group.failure is not None:
        return NotReady(f"{partition}: this replica stopped: {group.failure.message}", hint="read from another replica")
    high_watermark = partition.high_watermark
    log_start = partition.log_start
    if ask.leader_only and not partition.leading:
        return partition.not_leader()
    if ask.leader_epoch > group.term:
        return NotReady(
            f"{partition}: this replica knows epoch {group.term}, the reader {ask.leader_epoch}",
            hint="it is behind: read from another replica",
            leader_epoch=group.term,
        )
    if ask.recovery_term is not None and ask.recovery_term != partition.state.epoch_cache.newest_term:
        another = divergence_error(partition, ask.offset, ask.recovery_term)
        if another is not None:
            return another
    if ask.offset < log_start:
        return OffsetOutOfRange(
            f"{partition}: offset {ask.offset} is below the log start {log_start}",
            log_start=log_start,
            high_watermark=high_watermark,
        )
    if ask.offset > high_watermark and partition.leading:
        return OffsetOutOfRange(
            f"{partition}: offset {ask.offset} is beyond the end {high_watermark}",
            hint="start from 'latest', or from high_watermark in the error's detail",
            log_start=log_start,
            high_watermark=high_watermark,
        )
    return None


def divergence_error(partition: Partition, offset: int, known: int) -> TinymqError | None:
    """A reader's offset comes from a history that this replica is behind, or that was lost from some offset on."""
    histories = partition.state.epoch_cache
    if known > histories.newest_term:
        return NotReady(
            f"{partition}: this replica is behind what the reader has read", hint="read from another replica"
        )
    start = histories.divergence_offset(known)
    if start is None or offset <= start:
        return None
    return OffsetOutOfRange(
        f"{partition}: what it had from offset {start} on is lost, and other records take its place",
        hint="what was read from there on is gone; open a new reader, at history_start in the error's detail",
        log_start=partition.log_start,
        high_watermark=partition.high_watermark,
        history_start=start,
    )


class Fetch:
    """One fetch, from the asking to the reading. `ready` is called once, at once or on a later commit."""

    __slots__ = (
        "_ask",
        "_bytes_wanted",
        "_deadlines",
        "_partition",
        "_ready",
        "_recovery_term",
        "_share",
        "_ticket",
        "done",
    )

    def __init__(
        self,
        partition: Partition,
        ask: FetchQuery,
        deadlines: Deadlines,
        ready: Callable[[Fetch], None],
        share: FetchShare | None = None,
    ) -> None:
        """`share`: the stream's share of the waiting fetches; None: this fetch never waits."""
        self._partition = partition
        self._ask = ask
        self._deadlines = deadlines
        self._ready = ready
        self._share = share
        self._ticket: Ticket | None = None
        self._bytes_wanted = 0
        self._recovery_term = 0  # as it was before the bytes were read
        self.done = False

    @property
    def bytes_max(self) -> int:
        return self._ask.bytes_max

    def begin(self) -> None:
        """Call `ready` now, or watch the partition until it has enough records or the time is up.

        Raises QuotaExceeded when too many fetches wait; then `ready` is not called.
        """
        if self._ask.wait_s <= 0 or self._is_enough():
            self._end()
            return
        if self._share is not None:
            self._share.enter(self)
        self._ticket = self._deadlines.add(self, self._ask.wait_s)
        self._partition.watch(self._look)

    def cancel(self) -> None:
        """Nobody wants it any more: `ready` is not called."""
        self._stop_waiting()
        self.done = True

    def expire(self) -> None:
        """The wait is over: answer with what there is."""
        self._end()

    def read_now(self) -> FetchResult | None:
        """The answer, if no disk is needed for it; else None: `await read()`."""
        error, end = self._look_again()
        if error is not None or self._ask.offset >= end:
            return self._answer(b"", error)
        upto = self._upto(end)
        frames = self._partition.group.log.reader.tail_from_offset(self._ask.offset, upto, self._ask.bytes_max)
        return None if frames is None else self._answer(frames, None)

    async def read(self, *, sends_files: bool = False) -> FetchResult:
        """The answer, from disk if need be; as StoredFrames, perhaps, for who can send those. Errors are in it."""
        error, end = self._look_again()
        if error is not None or self._ask.offset >= end:
            return self._answer(b"", error)
        upto = self._upto(end)
        try:
            reader = self._partition.group.log.reader
            read = reader.find_from_offset if sends_files else reader.read_from_offset
            frames = await read(self._ask.offset, upto, self._ask.bytes_max)
        except TinymqError as failed:
            return self._answer(b"", self._gone() or failed)
        gone = self._gone()
        return self._answer(frames if gone is None else b"", gone)

    def _upto(self, high_watermark: int) -> int:
        """What begins there or behind it is not read."""
        return min(high_watermark, self._ask.end) if self._ask.end > self._ask.offset else high_watermark

    def _gone(self) -> TinymqError | None:
        """The log start may have passed by while the disk was read: what was asked for is there no more."""
        return None if self._ask.offset >= self._partition.log_start else self._look_again()[0]

    def _look(self) -> None:
        if not self.done and self._is_enough():
            self._end()

    def _is_enough(self) -> bool:
        """Is there something to say already? Bytes are counted, not read, while the fetch waits."""
        partition, ask = self._partition, self._ask
        if refusal(partition, ask) is not None:
            return True
        if ask.offset >= partition.high_watermark:
            return False
        if ask.bytes_min <= 1:
            return True
        if not self._bytes_wanted:
            upto = self._upto(partition.high_watermark)
            there = partition.group.log.reader.tail_from_offset(ask.offset, upto, ask.bytes_max)
            if there is None or len(there) >= min(ask.bytes_min, ask.bytes_max) or upto < partition.high_watermark:
                return True
            self._bytes_wanted = partition.state.record_bytes + ask.bytes_min - len(there)
        return partition.state.record_bytes >= self._bytes_wanted

    def _look_again(self) -> tuple[TinymqError | None, int]:
        """(error, high watermark) as they are at the time of reading."""
        partition = self._partition
        self._recovery_term = partition.state.epoch_cache.newest_term
        error = refusal(partition, self._ask)
        end = partition.high_watermark
        if error is None and self._ask.offset > end:
            error = OffsetNotAvailable(
                f"{partition}: offset {self._ask.offset} is beyond what this replica may show, {end}",
                hint="it may be behind: ask again, or another replica",
                high_watermark=end,
            )
        return error, end

    def _answer(self, frames: Frames, error: TinymqError | None) -> FetchResult:
        partition, offset = self._partition, self._ask.offset
        if partition.closed is not None:
            return FetchResult(0, 0, 0, 0, b"", offset, error=partition.closed)
        group = partition.group
        return FetchResult(
            partition.high_watermark,
            partition.log_start,
            group.term,
            group.leader or 0,
            frames,
            offset,
            self._recovery_term,
            error,
        )

    def _stop_waiting(self) -> None:
        if self._ticket is not None:
            self._deadlines.drop(self._ticket)
            self._partition.unwatch(self._look)
            self._ticket = None
            if self._share is not None:
                self._share.leave(self)

    def _end(self) -> None:
        self._stop_waiting()
        if not self.done:
            self.done = True
            self._ready(self)

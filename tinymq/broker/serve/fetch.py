"""Serves reads: a fetch waits until there are enough bytes, then takes whole stored frames below the high watermark.

A waiting fetch holds no bytes and no timer of its own, and commits wake it. Bytes are read only when the answer can be
sent, so a slow reader costs a queue of small values and never a queue of batches. Semantics: Kafka's fetch with leader
epochs (KIP-320) and follower fetch (KIP-392), over committed records only.
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
    """A reader's request for records of one partition."""

    offset: int
    bytes_max: int
    bytes_min: int  # wait for this many bytes, for at most `wait_s`
    wait_s: float
    leader_epoch: int = 0  # the newest that the reader knows; 0: none
    leader_only: bool = False
    recovery_term: int | None = None  # from the answer that gave `offset`; None: accept any record at `offset`
    end: int = 0  # leave out frames that begin at or behind this offset; 0: no such limit


@value
class FetchResult:
    """A replica's answer. Offsets and epochs are those that this replica knows."""

    high_watermark: int
    log_start: int
    leader_epoch: int
    leader: int  # 0: unknown
    frames: Frames
    next_offset: int  # the offset to query for next if `frames` holds no record
    recovery_term: int = 0  # newest loss-of-quorum recovery (epoch_cache.py) when the frames were read
    error: TinymqError | None = None


def refusal(partition: Partition, query: FetchQuery) -> TinymqError | None:
    """The reason why this replica refuses `query` at this moment; None: it has an answer, or may get one by waiting.

    The order of the checks is part of the protocol: each error tells the reader whether to try another replica, to
    look for the leader, or to choose another offset.
    """
    if partition.closed is not None:
        return partition.closed
    group = partition.group
    if group.failure is not None:
        return NotReady(f"{partition}: this replica stopped: {group.failure.message}", hint="read from another replica")
    high_watermark = partition.high_watermark
    log_start = partition.log_start
    if query.leader_only and not partition.leading:
        return partition.not_leader()
    # Only offsets of a replica that is not behind the reader mean anything, so these two come before the offset.
    if query.leader_epoch > group.term:
        return NotReady(
            f"{partition}: this replica knows epoch {group.term}, the reader {query.leader_epoch}",
            hint="it is behind: read from another replica",
            leader_epoch=group.term,
        )
    if query.recovery_term is not None and query.recovery_term != partition.state.epoch_cache.newest_term:
        another = divergence_error(partition, query.offset, query.recovery_term)
        if another is not None:
            return another
    if query.offset < log_start:
        return OffsetOutOfRange(
            f"{partition}: offset {query.offset} is below the log start {log_start}",
            log_start=log_start,
            high_watermark=high_watermark,
        )
    # A follower may lag behind the replica that the reader asked before: there the offset is only not available yet.
    if query.offset > high_watermark and partition.leading:
        return OffsetOutOfRange(
            f"{partition}: offset {query.offset} is beyond the end {high_watermark}",
            hint="start from 'latest', or from high_watermark in the error's detail",
            log_start=log_start,
            high_watermark=high_watermark,
        )
    return None


def divergence_error(partition: Partition, offset: int, recovery_term: int) -> TinymqError | None:
    """The error for an offset of a reader that knows another recovery term; None: the offset means the same here.

    Either this replica is behind the reader, or the reader's records from some offset on were lost in a recovery.
    """
    epoch_cache = partition.state.epoch_cache
    if recovery_term > epoch_cache.newest_term:
        return NotReady(
            f"{partition}: this replica is behind what the reader has read", hint="read from another replica"
        )
    start = epoch_cache.divergence_offset(recovery_term)
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
    """One fetch, from its request until its bytes are read.

    `begin` calls `ready` once, immediately or later. The caller then reads with `read_now` or `read`, when it can send
    the answer.
    """

    __slots__ = (
        "_bytes_wanted",
        "_deadlines",
        "_partition",
        "_query",
        "_ready",
        "_recovery_term",
        "_share",
        "_ticket",
        "done",
    )

    def __init__(
        self,
        partition: Partition,
        query: FetchQuery,
        deadlines: Deadlines,
        ready: Callable[[Fetch], None],
        share: FetchShare | None = None,
    ) -> None:
        """`share` is the stream's share of the waiting fetches; None: the fetch counts towards no share."""
        self._partition = partition
        self._query = query
        self._deadlines = deadlines
        self._ready = ready
        self._share = share
        self._ticket: Ticket | None = None
        self._bytes_wanted = 0  # the partition's `record_bytes` at which there is enough; 0: not computed yet
        self._recovery_term = 0  # as of the last check before the bytes were read
        self.done = False  # `ready` was called, or the fetch is cancelled

    @property
    def bytes_max(self) -> int:
        return self._query.bytes_max

    def begin(self) -> None:
        """Call `ready` now, or watch the partition until it has enough records or the time is up.

        Raises QuotaExceeded, without a call of `ready`, if too many fetches wait.
        """
        if self._query.wait_s <= 0 or self._is_enough():
            self._end()
            return
        if self._share is not None:
            self._share.enter(self)
        self._ticket = self._deadlines.add(self, self._query.wait_s)
        self._partition.watch(self._check)

    def cancel(self) -> None:
        """End the fetch without a call of `ready`."""
        self._stop_waiting()
        self.done = True

    def expire(self) -> None:
        """End the wait: the answer has the records that there are."""
        self._end()

    def read_now(self) -> FetchResult | None:
        """The answer if it needs no disk; None: call `await read()` instead."""
        error, end = self._check_again()
        if error is not None or self._query.offset >= end:
            return self._answer(b"", error)
        upto = self._upto(end)
        frames = self._partition.group.log.reader.tail_from_offset(self._query.offset, upto, self._query.bytes_max)
        return None if frames is None else self._answer(frames, None)

    async def read(self, *, sends_files: bool = False) -> FetchResult:
        """The answer, from disk if necessary. An error is part of the answer.

        With `sends_files`, the frames may be StoredFrames, a range of a file for the kernel to send.
        """
        error, end = self._check_again()
        if error is not None or self._query.offset >= end:
            return self._answer(b"", error)
        upto = self._upto(end)
        try:
            reader = self._partition.group.log.reader
            read = reader.find_from_offset if sends_files else reader.read_from_offset
            frames = await read(self._query.offset, upto, self._query.bytes_max)
        except TinymqError as failed:
            return self._answer(b"", self._gone() or failed)
        error = self._gone()
        return self._answer(frames if error is None else b"", error)

    def _upto(self, high_watermark: int) -> int:
        """The offset at which reading stops."""
        return min(high_watermark, self._query.end) if self._query.end > self._query.offset else high_watermark

    def _gone(self) -> TinymqError | None:
        """The error if the log start has passed the offset while the disk was read."""
        return None if self._query.offset >= self._partition.log_start else self._check_again()[0]

    def _check(self) -> None:
        if not self.done and self._is_enough():
            self._end()

    def _is_enough(self) -> bool:
        """Whether the fetch can be answered: with an error, or with enough bytes. Bytes are counted and not read."""
        partition, query = self._partition, self._query
        if refusal(partition, query) is not None:
            return True
        if query.offset >= partition.high_watermark:
            return False
        if query.bytes_min <= 1:
            return True
        if not self._bytes_wanted:
            upto = self._upto(partition.high_watermark)
            tail = partition.group.log.reader.tail_from_offset(query.offset, upto, query.bytes_max)
            # The offset is not in the log's tail in memory. So the reader is far behind, and there are enough bytes.
            if tail is None or len(tail) >= min(query.bytes_min, query.bytes_max) or upto < partition.high_watermark:
                return True
            # From here on, each commit costs one comparison of the partition's byte count.
            self._bytes_wanted = partition.state.record_bytes + query.bytes_min - len(tail)
        return partition.state.record_bytes >= self._bytes_wanted

    def _check_again(self) -> tuple[TinymqError | None, int]:
        """(error, high watermark) at the time of reading, which may be long after the fetch was ready."""
        partition = self._partition
        self._recovery_term = partition.state.epoch_cache.newest_term
        error = refusal(partition, self._query)
        end = partition.high_watermark
        if error is None and self._query.offset > end:
            error = OffsetNotAvailable(
                f"{partition}: offset {self._query.offset} is beyond what this replica may show, {end}",
                hint="it may be behind: ask again, or another replica",
                high_watermark=end,
            )
        return error, end

    def _answer(self, frames: Frames, error: TinymqError | None) -> FetchResult:
        partition, offset = self._partition, self._query.offset
        if partition.closed is not None:
            return FetchResult(
                high_watermark=0,
                log_start=0,
                leader_epoch=0,
                leader=0,
                frames=b"",
                next_offset=offset,
                error=partition.closed,
            )
        group = partition.group
        return FetchResult(
            high_watermark=partition.high_watermark,
            log_start=partition.log_start,
            leader_epoch=group.term,
            leader=group.leader or 0,
            frames=frames,
            next_offset=offset,
            recovery_term=self._recovery_term,
            error=error,
        )

    def _stop_waiting(self) -> None:
        if self._ticket is not None:
            self._deadlines.drop(self._ticket)
            self._partition.unwatch(self._check)
            self._ticket = None
            if self._share is not None:
                self._share.leave(self)

    def _end(self) -> None:
        self._stop_waiting()
        if not self.done:
            self.done = True
            self._ready(self)

"""One replica of a partition: decides what is appended, answers when it is committed, wakes who waits to read.

Invariant: between the decision on a batch and its append there is no await, and both look at the same state:
what is applied, plus what this leader has appended since (hazard 19). `apply` touches state and waiters only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import structlog

from tinymq.batch import BatchHeader, CheckedBatch
from tinymq.broker.deadlines import Deadlines, Ticket
from tinymq.broker.producers import PRODUCERS_MAX, Producer, Remembered, extend, judge
from tinymq.broker.state import PartitionState
from tinymq.entry import Entry, Kind
from tinymq.errors import DiskFull, NotLeader, OutcomeUnknown, TinymqError
from tinymq.types import GroupId, Position

logger = structlog.get_logger("tinymq.broker")


class RecordLog(Protocol):
    """What a partition asks of its log (tinymq.log.Log)."""

    @property
    def log_start_offset(self) -> int: ...
    def tail_from_offset(self, offset: int, end_offset: int, bytes_max: int) -> bytes | None: ...
    async def read_from_offset(self, offset: int, end_offset: int, bytes_max: int) -> bytes: ...
    async def entry_for_time(self, timestamp_us: int, end_offset: int) -> Entry | None: ...
    async def entry_of_max_timestamp(self, end_offset: int) -> Entry | None: ...


class RaftGroup(Protocol):
    """What a partition asks of its Raft group (tinymq.raft.Group)."""

    @property
    def id(self) -> GroupId: ...
    @property
    def term(self) -> int: ...
    @property
    def leader(self) -> int | None: ...
    @property
    def log(self) -> RecordLog: ...
    @property
    def failure(self) -> TinymqError | None: ...
    def propose(
        self,
        kind: Kind,
        payload: bytes,
        *,
        record_count: int = 0,
        max_timestamp_us: int | None = None,
        payload_crc: int | None = None,
    ) -> Position: ...


class Acks(Enum):
    """When a batch is answered."""

    QUORUM = 0  # on a majority of disks, synced
    LEADER = 1  # in the leader's memory
    NONE = 2


@dataclass(frozen=True, slots=True)
class Produced:
    """Where a batch is."""

    base_offset: int
    append_time_us: int
    leader_epoch: int
    duplicate: bool


Done = Callable[[Produced | TinymqError], None]
"""Told once what became of a batch, on the loop. Must not raise."""


class _Waiter:
    """A batch that is appended and not yet answered."""

    __slots__ = ("done", "partition", "produced", "ticket")

    def __init__(self, partition: Partition, produced: Produced, done: Done) -> None:
        self.partition = partition
        self.produced = produced
        self.done: Done | None = done
        self.ticket: Ticket | None = None

    def answer(self, outcome: Produced | TinymqError) -> None:
        """Once. What `done` raises harms nobody else: `apply` goes on, and so does its replica (hazard 9)."""
        done, self.done = self.done, None
        if done is not None:
            try:
                done(outcome)
            except Exception:
                logger.exception("answer_failed", partition=str(self.partition))

    def expire(self) -> None:
        self.answer(OutcomeUnknown(f"{self.partition}: not committed in time; it may yet be"))


@dataclass(slots=True)
class _Overlay:
    """A producer as it will be once what this leader appended is committed."""

    producer: Producer
    uncommitted: list[tuple[int, Remembered]]  # (index, batch), oldest first; the producer's newest epoch only
    last_index: int


class Partition:
    """A StateMachine for the Raft host, and what produce and fetch ask. One per replica and broker."""

    def __init__(
        self,
        name: str,
        deadlines: Deadlines,
        soon: Callable[[Callable[[], None]], object],
        address_of: Callable[[int], str | None],
        producers_max: int = PRODUCERS_MAX,
    ) -> None:
        """`soon` calls back on the loop after what is running now; `address_of` says where clients dial a broker."""
        self.name = name
        self.state = PartitionState(producers_max)
        self.leading = False  # may accept: has applied a NOOP of its own term
        self.closed: TinymqError | None = None
        self._group: RaftGroup | None = None
        self._deadlines = deadlines
        self._soon = soon
        self._address_of = address_of
        self._overlay: dict[int, _Overlay] = {}
        self._waiters: dict[int, list[_Waiter]] = {}
        self._watchers: dict[Callable[[], None], None] = {}  # in order: a replay wakes them alike
        self._waking = False

    def __str__(self) -> str:
        return self.name

    def attach(self, group: RaftGroup) -> None:
        """The group that this machine belongs to, once it is open."""
        self._group = group

    @property
    def group(self) -> RaftGroup:
        assert self._group is not None, "used before it was attached"
        return self._group

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    def not_leader(self, message: str = "") -> NotLeader:
        """The error that sends a client to the leader, as far as this replica knows it."""
        leader = self.group.leader
        return NotLeader(
            message or f"{self}: broker {leader} leads" if leader else f"{self}: no leader known",
            leader=leader,
            leader_address=self._address_of(leader) if leader else None,
            leader_epoch=self.group.term,
        )

    def _refusal(self) -> TinymqError:
        """Why this replica does not accept: a full disk is said as such, for somebody has to make room."""
        failure = self.group.failure
        if isinstance(failure, DiskFull) and not self.group.leader:
            return DiskFull(f"{self}: this replica stopped: {failure.message}")
        return self.not_leader()

    # ---- produce: decide and append ---------------------------------------------------------------

    def produce(
        self, batch: CheckedBatch, payload: bytes, payload_crc: int, acks: Acks, timeout_s: float, done: Done
    ) -> None:
        """Append a batch that passed every check, or find that it is there; `done` is told when `acks` holds.

        Raises, and then nothing was done and `done` is not called: NotLeader, Fenced, OutOfOrderSequence,
        UnknownProducer, QuotaExceeded, DiskFull. `done` gets OutcomeUnknown when leadership is lost or the time is up.
        """
        if self.closed is not None:
            raise self.closed
        if not self.leading:
            raise self._refusal()
        header = batch.header
        known = self._projected(header.producer_id) if header.producer_id else None
        if header.producer_id:
            found = judge(known, header)
            if found is not None:
                self._answer_duplicate(header.producer_id, found, acks, timeout_s, done)
                return
        try:
            position = self.group.propose(
                Kind.DATA,
                payload,
                record_count=header.record_count,
                max_timestamp_us=batch.max_timestamp_us,
                payload_crc=payload_crc,
            )
        except NotLeader:
            epoch = self.group.term
            raise NotLeader(f"{self}: the leadership is being handed over", leader_epoch=epoch) from None
        if header.producer_id:
            self._remember(header, known, position)
        if acks is Acks.NONE:
            return
        produced = Produced(position.base_offset, position.append_time_us, position.term, False)
        if acks is Acks.LEADER:
            done(produced)
        else:
            self._wait(position.index, produced, timeout_s, done)

    def _projected(self, producer_id: int) -> Producer | None:
        overlay = self._overlay.get(producer_id)
        return overlay.producer if overlay is not None else self.state.producers.get(producer_id)

    def _remember(self, header: BatchHeader, known: Producer | None, position: Position) -> None:
        producer = extend(known, header, position.base_offset, position.append_time_us)
        overlay = self._overlay.get(header.producer_id)
        appended = (position.index, producer.batches[-1])
        if overlay is None or overlay.producer.epoch != producer.epoch:
            self._overlay[header.producer_id] = _Overlay(producer, [appended], position.index)
        else:
            overlay.producer, overlay.last_index = producer, position.index
            overlay.uncommitted.append(appended)

    def _answer_duplicate(self, producer_id: int, found: Remembered, acks: Acks, timeout_s: float, done: Done) -> None:
        if acks is Acks.NONE:
            return
        produced = Produced(found.base_offset, found.append_time_us, self.group.term, True)
        overlay = self._overlay.get(producer_id)
        for index, batch in overlay.uncommitted if overlay is not None else ():
            if batch is found and acks is Acks.QUORUM:  # never before the first one is committed
                self._wait(index, produced, timeout_s, done)
                return
        done(produced)

    def _wait(self, index: int, produced: Produced, timeout_s: float, done: Done) -> None:
        waiter = _Waiter(self, produced, done)
        waiter.ticket = self._deadlines.add(waiter, timeout_s)
        self._waiters.setdefault(index, []).append(waiter)

    # ---- StateMachine: called by the Raft host --------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Every committed entry in order, all kinds. Pure over the state; never raises."""
        self.state.apply(entry)
        if self._overlay and entry.header.kind == Kind.DATA:
            self._settle(entry)
        waiters = self._waiters.pop(entry.header.index, None)
        if waiters is not None:
            for waiter in waiters:
                self._end(waiter, entry)
        if self._watchers:
            self._wake()

    def _settle(self, entry: Entry) -> None:
        """An entry of this leader's is applied: drop what the overlay no longer adds."""
        producer_id = int.from_bytes(entry.payload[8:16], "little")  # drawn in tinymq/batch.py
        overlay = self._overlay.get(producer_id)
        if overlay is None:
            return
        if overlay.last_index <= entry.index:
            del self._overlay[producer_id]
        elif overlay.uncommitted[0][0] == entry.index:
            overlay.uncommitted.pop(0)

    def _end(self, waiter: _Waiter, entry: Entry) -> None:
        if waiter.ticket is not None:
            self._deadlines.drop(waiter.ticket)
        if entry.term == waiter.produced.leader_epoch:
            waiter.answer(waiter.produced)
        else:
            waiter.answer(OutcomeUnknown(f"{self}: another leader's entry took the place"))

    def lead(self, term: int) -> None:
        """This replica may accept: everything of earlier terms is applied."""
        assert not self._overlay, "an overlay outlived its term"
        self.leading = True
        self._wake()

    def follow(self) -> None:
        """This replica leads no more: what is not committed may be taken back by the next leader, or kept."""
        self.leading = False
        self._overlay.clear()
        waiters, self._waiters = self._waiters, {}
        for at_index in waiters.values():
            for waiter in at_index:
                if waiter.ticket is not None:
                    self._deadlines.drop(waiter.ticket)
                waiter.answer(OutcomeUnknown(f"{self}: the leader changed before the batch was committed"))
        self._wake()

    def dump(self) -> bytes:
        return self.state.dump()

    def load(self, state: bytes) -> None:
        """Raises CorruptData, and then nothing has changed."""
        self.state.load(state)
        self._wake()

    # ---- who waits for more ----------------------------------------------------------------------------

    def watch(self, woken: Callable[[], None]) -> None:
        """Call `woken` after every commit, change of leadership or end of this replica, until `unwatch`."""
        self._watchers[woken] = None

    def unwatch(self, woken: Callable[[], None]) -> None:
        self._watchers.pop(woken, None)

    def look(self) -> None:
        """The group changed its role or failed: whoever waits may have an answer now."""
        self._wake()

    def close(self, error: TinymqError) -> None:
        """The replica goes away (its topic is deleted, its broker stops): everyone who waits is told."""
        self.closed = error
        self.follow()

    def _wake(self) -> None:
        """Once per turn of the loop, however many entries it applied."""
        if self._watchers and not self._waking:
            self._waking = True
            self._soon(self._wake_now)

    def _wake_now(self) -> None:
        self._waking = False
        for woken in list(self._watchers):
            woken()

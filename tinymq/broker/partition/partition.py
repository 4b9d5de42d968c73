"""One replica of a partition: decides what is appended, answers when it is committed, wakes who waits to read.

Invariant: between the decision on a batch and its append there is no await, and both look at the same state:
what is applied, plus what this leader has appended since (hazard 19). `apply` touches state and waiters only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from tinymq.base.errors import DiskFull, NotLeader, TinymqError
from tinymq.base.topic_config import OnFull, TopicConfig
from tinymq.base.types import Position
from tinymq.broker.partition.capacity import Uncommitted, check_commands, room
from tinymq.broker.partition.commands import CommandQueue
from tinymq.broker.partition.commands import Done as CommandsDone
from tinymq.broker.partition.commit_watchers import CommitWatchers
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.group_port import RaftGroup, RecordLog
from tinymq.broker.partition.noop_elision import NoopElision
from tinymq.broker.partition.pending_acks import Acks, Done, PendingAcks, Produced
from tinymq.broker.partition.soft_leases import SoftLeases
from tinymq.broker.partition.uncommitted_producers import UncommittedProducers
from tinymq.broker.state.holds import Hold
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.state.producers import PRODUCERS_MAX, Producer, RememberedBatch, judge
from tinymq.broker.state.retention import clamped, due_start
from tinymq.broker.state.state import PartitionState
from tinymq.format.batch import CheckedBatch
from tinymq.format.entry import Entry, Kind, NewEntry
from tinymq.proto import partition_pb2 as pb
from tinymq.raft.rules.noop import parse_noop

__all__ = ["Acks", "CommandOutcome", "CommandsDone", "Done", "Partition", "Produced", "RaftGroup", "RecordLog"]


class Partition:
    """A StateMachine for the Raft host, and what produce, fetch and channels ask. One per replica and broker."""

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
        self.config = TopicConfig()
        self.soft_leases = SoftLeases()
        self._group: RaftGroup | None = None
        self._address_of = address_of
        self._overlay = UncommittedProducers()
        self._uncommitted = Uncommitted()
        self._moving = 0  # index of the last entry of this leader's that moves the log start
        self._moving_to = 0  # the offset to which that entry moves the start
        self._waiters = PendingAcks(name, deadlines)
        self._queue = CommandQueue(name, deadlines, soon, self._propose_commands)
        self._commanding = NoopElision(
            self._queue, deadlines, lambda command: self.state.judge(command, 0),
            lambda timeout_s: self.group.read_index(timeout_s), self.check_leading,
            lambda said: check_commands(self.config, self.group.log.size_bytes, said),
        )  # fmt: skip
        self._watchers = CommitWatchers(soon)

    def __str__(self) -> str:
        return self.name

    def attach(self, group: RaftGroup) -> None:
        """The group that this machine belongs to, once it is open."""
        self._group = group

    def configure(self, config: TopicConfig) -> None:
        """The topic's settings, from now on: the next batch and the next `retain` go by them."""
        self.config = config

    @property
    def group(self) -> RaftGroup:
        assert self._group is not None, "used before it was attached"
        return self._group

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    @property
    def log_start(self) -> int:
        """The first offset that is shown; more may be stored. The log knows what is removed, the state may lag."""
        return max(self.state.log_start, self.group.log.log_start_offset)

    def not_leader(self) -> NotLeader:
        """The error that sends a client to the leader, as far as this replica knows it."""
        leader = self.group.leader
        address = self._address_of(leader) if leader else None
        said = f"{self}: broker {leader} leads" if leader else f"{self}: no leader known"
        return NotLeader(said, leader=leader, leader_address=address, leader_epoch=self.group.term)

    def check_leading(self) -> None:
        """Raise the error that clients get unless this replica leads."""
        if self.closed is not None or not self.leading:
            raise self.closed or _refusal(self)

    # ---- produce: decide and append ---------------------------------------------------------------

    def produce(
        self, batch: CheckedBatch, payload: bytes, payload_crc: int, acks: Acks, timeout_s: float, done: Done
    ) -> None:
        """Append a batch that passed every check, or find that it is there; `done` is told when `acks` holds.

        Raises, and then nothing was appended and `done` is not called: NotLeader, Fenced, OutOfOrderSequence,
        UnknownProducer, BatchTooLarge, QuotaExceeded (too much on its way, or the partition is full), DiskFull.
        `done` gets OutcomeUnknown when leadership is lost or the time is up.
        """
        self.check_leading()
        header = batch.header
        known = self.latest_producer(header.producer_id) if header.producer_id else None
        if header.producer_id:
            found = judge(known, header)
            if found is not None:
                self.answer_duplicate(header.producer_id, found, acks, timeout_s, done)
                return
        try:
            self._make_room(header.record_count, len(payload))
            position = self.group.propose(
                NewEntry(Kind.DATA, payload, header.record_count, batch.max_timestamp_us, payload_crc)
            )
        except NotLeader:
            raise _handing_over(self) from None
        end_bytes = self._uncommitted.end_bytes(self.state.record_bytes) + len(payload)
        self._uncommitted.appended(position.index, position.base_offset + header.record_count, end_bytes)
        if header.producer_id:
            self._overlay.appended(header, known, position)
        if acks is Acks.NONE:
            return
        produced = Produced(position.base_offset, position.append_time_us, position.term, False)
        if acks is Acks.LEADER:
            done(produced)
        else:
            self._waiters.add(position.index, produced, timeout_s, done)

    def latest_producer(self, producer_id: int) -> Producer | None:
        """Return the producer's state, with the batches that are appended and not committed yet."""
        return self._overlay.projected(self.state.producers, producer_id)

    def answer_duplicate(
        self, producer_id: int, found: RememberedBatch, acks: Acks, timeout_s: float, done: Done
    ) -> None:
        """Answer a batch that is in the log already: with QUORUM, when the first copy is committed."""
        if acks is Acks.NONE:
            return
        produced = Produced(found.base_offset, found.append_time_us, self.group.term, True)
        index = self._overlay.index_of(producer_id, found)
        if index and acks is Acks.QUORUM:  # never before the first one is committed
            self._waiters.add(index, produced, timeout_s, done)
        else:
            done(produced)

    def _make_room(self, records: int, size: int) -> None:
        """Before a batch of `size` bytes: a bounded partition drops what is oldest, or refuses."""
        config, state = self.config, self.state
        if config.max_records is None and config.max_bytes is None:
            return
        now_us = self.group.append_time_now_us() if len(state.holds) else 0
        start = room(config, state, self._uncommitted, records, size, now_us)
        if start is not None:
            position = self._move_start(start.offset, pb.MoveStart.CAPACITY)
            self._uncommitted.moved(position.index, start)

    # ---- commands: group commit -------------------------------------------------------------------------

    def command(self, said: Sequence[pb.Command], timeout_s: float, done: CommandsDone) -> None:
        """Carry out commands in this order; `done` is told once what each came to. They travel in one entry, with those
        of other calls, and are answered when it is committed. What would change nothing is not written: it is answered
        at once, or when a majority has said that nobody else leads.

        Raises, and then nothing was done and `done` is not called: NotLeader, InvalidRequest, QuotaExceeded, DiskFull.
        `done` gets NotLeader or DeadlineExceeded while nothing is appended, and OutcomeUnknown from then on.
        """
        self.check_leading()
        self._commanding.take(said, timeout_s, done)

    def _propose_commands(self, said: list[pb.Command]) -> Position:
        try:
            position = self.group.propose(NewEntry(Kind.COMMAND, pb.Commands(commands=said).SerializeToString()))
        except NotLeader:
            raise _handing_over(self) from None
        for command in said:
            if command.HasField("hold"):
                self._uncommitted.held(position.index, command.hold.offset)
            elif command.HasField("move_start"):
                self._moving, self._moving_to = position.index, command.move_start.offset
        return position

    def _move_start(self, offset: int, reason: pb.MoveStart.Reason.ValueType) -> Position:
        return self._propose_commands([pb.Command(move_start=pb.MoveStart(offset=offset, reason=reason))])

    def grant_soft_lease(self, said: pb.Hold) -> Hold:
        """Make or renew a light hold, which only this leader remembers. Raises NotLeader, and as Holds.hold."""
        self.check_leading()
        at = self.state.offset_bounds(self.group.append_time_now_us())
        if self._moving > self.state.applied_index:  # records that a proposed move of the start removes cannot be held
            at = at._replace(log_start=max(at.log_start, min(self._moving_to, at.end)))
        return self.soft_leases.grant(said, self.state.holds, at)

    def retain(self) -> None:
        """Called now and then on every replica: the leader moves the log start over what is due to go, and each removes
        the segments that hold nothing else."""
        group = self._group
        if group is None or self.closed is not None or group.failure is not None:
            return
        with suppress(TinymqError):  # what cannot be done now is due the next time, too
            if self.leading and self.state.log_start < self.state.high_watermark:
                self._retain(group.append_time_now_us(), group.expiry_now_us())
        with suppress(TinymqError):
            group.log.remove_before_offset(self.state.log_start)

    def _retain(self, now_us: int, expiry_us: int | None) -> None:
        start = clamped(due_start(self.config, self.state, now_us, expiry_us), self.soft_leases.lowest(now_us))
        if start > self.state.log_start and self._moving <= self.state.applied_index:
            self._move_start(start, pb.MoveStart.RETENTION)
        if self.config.on_full is OnFull.DROP_OLDEST:
            self._make_room(0, 0)  # the bound may be another one than when the last batch came

    # ---- StateMachine: called by the Raft host --------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Every committed entry in order, all kinds. Pure over the state; never raises."""
        outcomes = self.state.apply(entry)
        if self.leading:
            self._settle(entry)
            if outcomes is not None:
                self._queue.applied(entry, outcomes)
        self._waiters.applied(entry)
        self._watchers.wake()

    def _settle(self, entry: Entry) -> None:
        """An entry of this leader's is applied: drop what the overlay no longer adds."""
        self._uncommitted.settle(entry.index)
        if entry.header.kind == Kind.NOOP and (jump_us := parse_noop(entry.payload).jump_us):
            self.soft_leases.extend(entry.header.append_time_us - jump_us, jump_us)
        if len(self._overlay) and entry.header.kind == Kind.DATA:
            self._overlay.settle(entry)

    def lead(self, term: int) -> None:
        """This replica may accept: everything of earlier terms is applied, so nothing is uncommitted but what it
        appends from now on."""
        assert not len(self._overlay), "an overlay outlived its term"
        self.leading = True
        self._watchers.wake()

    def follow(self) -> None:
        """This replica leads no more: what is not committed may be taken back by the next leader, or kept."""
        self.leading = False
        self._overlay.clear()
        self._uncommitted.clear()
        self._moving = 0
        self.soft_leases.clear()
        self._waiters.lost()
        if not self._queue.idle:
            self._queue.lost(self.closed or self.not_leader())
        self._watchers.wake()

    def dump(self) -> bytes:
        return self.state.dump()

    def load(self, state: bytes) -> None:
        """Raises CorruptData, and then nothing has changed."""
        self.state.load(state)
        self._watchers.wake()

    # ---- who waits for more ----------------------------------------------------------------------------

    def watch(self, woken: Callable[[], None]) -> None:
        """Call `woken` after every commit, change of leadership or end of this replica, until `unwatch`."""
        self._watchers.add(woken)

    def unwatch(self, woken: Callable[[], None]) -> None:
        self._watchers.drop(woken)

    def look(self) -> None:
        """The group changed its role or failed: whoever waits may have an answer now."""
        self._watchers.wake()

    def close(self, error: TinymqError) -> None:
        """The replica goes away (its topic is deleted, its broker stops): everyone who waits is told."""
        self.closed = error
        self.follow()


def _refusal(partition: Partition) -> TinymqError:
    """Of a replica that does not lead: a full disk is said as such, for somebody has to make room."""
    failure = partition.group.failure
    if isinstance(failure, DiskFull) and not partition.group.leader:
        return DiskFull(f"{partition}: this replica stopped: {failure.message}")
    return partition.not_leader()


def _handing_over(partition: Partition) -> NotLeader:
    return NotLeader(f"{partition}: the leadership is being handed over", leader_epoch=partition.group.term)

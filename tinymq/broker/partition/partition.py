"""One replica of a partition: decides what is appended, answers when it is committed, wakes waiting readers.

Invariant: there is no await between the decision on a batch and its append, and both look at the same state: the
applied state plus what this leader has appended since (hazard 19). `apply` changes only the state and pending answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from tinymq.base.errors import NotLeader, TinymqError
from tinymq.base.topic_config import OnFull, Retention, TopicConfig
from tinymq.base.types import Position
from tinymq.broker.partition.capacity import Uncommitted, check_commands, is_nearly_full, room
from tinymq.broker.partition.commands import CommandQueue, command_version
from tinymq.broker.partition.commands import Done as CommandsDone
from tinymq.broker.partition.commit_watchers import CommitWatchers
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.group_gate import GroupGate
from tinymq.broker.partition.group_port import RaftGroup, RecordLog
from tinymq.broker.partition.message_ids import (
    CopyId,
    FirstRecord,
    RecordId,
    UncommittedIds,
    record_id,
    skip_duplicate,
)
from tinymq.broker.partition.noop_elision import NoopElision
from tinymq.broker.partition.pending_acks import Acks, Done, PendingAcks, Produced
from tinymq.broker.partition.refusals import refusal, transferring
from tinymq.broker.partition.retention import acknowledged_move, due_forgetting, due_move
from tinymq.broker.partition.soft_leases import SoftLeases
from tinymq.broker.partition.uncommitted_producers import UncommittedProducers
from tinymq.broker.state.cursors import CursorVerdict
from tinymq.broker.state.holds import Hold
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.state.producers import PRODUCERS_MAX, Producer, RememberedBatch, judge
from tinymq.broker.state.state import PartitionState
from tinymq.format.batch import BatchHeader, CheckedBatch
from tinymq.format.entry import Entry, Kind, NewEntry
from tinymq.proto import partition_pb2 as pb
from tinymq.raft.rules.noop import parse_noop

__all__ = ["Acks", "CommandOutcome", "CommandsDone", "Done", "Partition", "Produced", "RaftGroup", "RecordLog"]


class Partition:
    """The state machine of one replica, and the decisions of its leader on produce and commands.

    A broker has one object per replica that it holds. Applied state is in `state`, and every replica has the same. All
    other fields are this replica's own: most of them describe what it appended as the leader and has not applied yet,
    and `follow` clears those.
    """

    def __init__(
        self,
        name: str,
        deadlines: Deadlines,
        soon: Callable[[Callable[[], None]], object],
        address_of: Callable[[int], str | None],
        producers_max: int = PRODUCERS_MAX,
    ) -> None:
        """`soon` runs a callback on the loop, after the current one. `address_of`: where clients reach a broker."""
        self.name = name
        self.state = PartitionState(producers_max)
        self.leading = False  # accepts writes: it has applied a NOOP of its own term
        self.closed: TinymqError | None = None  # the error for all calls, once the replica is closed
        self.config = TopicConfig()
        self.group_gate = GroupGate(name, self.state)
        self.soft_leases = SoftLeases()  # known to this leader only, and gone with its leadership
        self._group: RaftGroup | None = None
        self._address_of = address_of
        # What this leader has appended and not applied yet. Invariant: both are empty on a follower.
        self._uncommitted_producers = UncommittedProducers()
        self._uncommitted_ids = UncommittedIds()
        self._uncommitted = Uncommitted()
        self._pending_acks = PendingAcks(name, deadlines)
        self._command_queue = CommandQueue(name, deadlines, soon, self._propose_commands)
        self._noop_elision = NoopElision(
            self._command_queue,
            deadlines,
            judge=self.judge,
            read_index=lambda timeout_s: self.group.read_index(timeout_s),
            check_leading=self.check_leading,
            check_room=lambda commands: check_commands(self.config, self.group.log.size_bytes, commands),
        )
        self._commit_watchers = CommitWatchers(soon)

    def __str__(self) -> str:
        return self.name

    def attach(self, group: RaftGroup) -> None:
        """Set the Raft group of this replica, once the group is open."""
        self._group = group

    def configure(self, config: TopicConfig) -> None:
        """Use these settings of the topic from the next batch and the next `retain` on."""
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
        """The first offset that readers see.

        Segments below it may still be stored. On a replica that loaded a snapshot, or that has not applied the newest
        move of the start, the log can start behind the state's log start.
        """
        return max(self.state.log_start, self.group.log.log_start_offset)

    def not_leader(self) -> NotLeader:
        """The error that sends a client to the leader, as far as this replica knows it."""
        leader = self.group.leader
        address = self._address_of(leader) if leader else None
        message = f"{self}: broker {leader} leads" if leader else f"{self}: no leader known"
        return NotLeader(message, leader=leader, leader_address=address, leader_epoch=self.group.term)

    def check_leading(self) -> None:
        """Raises NotLeader, DiskFull, or the error that the replica was closed with, unless this replica leads."""
        if self.closed is not None or not self.leading:
            raise self.closed or refusal(self.name, self.group, self.not_leader())

    # ---- produce: decide and append ---------------------------------------------------------------

    def produce(
        self,
        batch: CheckedBatch,
        payload: bytes,
        payload_crc: int,
        acks: Acks,
        timeout_s: float,
        done: Done,
        message_id: bytes | CopyId = b"",
    ) -> None:
        """Append a batch that passed `admission`, or find that it is a duplicate. Calls `done` once `acks` holds.

        With `message_id`, the batch has one record, and is a duplicate if the partition remembers a record of this id.

        Raises, before anything is appended and without a call of `done`: NotLeader, Fenced, OutOfOrderSequence,
        UnknownProducer, BatchTooLarge, QuotaExceeded (too many uncommitted bytes, or it is full), DiskFull, NotReady.
        `done` gets OutcomeUnknown when the leadership is lost or the time is up before the commit.
        """
        self.check_leading()
        self.group_gate.check()
        header = batch.header
        producer = self.latest_producer(header.producer_id) if header.producer_id else None
        if header.producer_id:
            duplicate = judge(producer, header)
            if duplicate is not None:
                self.answer_duplicate(header.producer_id, duplicate, acks, timeout_s, done)
                return
        identity: RecordId | None = None
        if message_id:
            identity, first = self._find_message(message_id, header.record_count)
            if first is not None:
                self._skip_duplicate(header, producer, first, acks, timeout_s, done)
                return
        try:
            # The command that makes room goes first. It takes effect even if the batch is then refused, which
            # `drop_oldest` permits.
            self._make_room(header.record_count, len(payload))
            if identity is not None:
                # The id counts only with the record behind it (tinymq/broker/state/message_ids.py).
                self._propose_commands([identity.note(payload_crc, len(payload))])
            position = self.group.propose(
                NewEntry(Kind.DATA, payload, header.record_count, batch.max_timestamp_us, payload_crc)
            )
        except NotLeader:
            raise transferring(self.name, self.group.term) from None
        end_bytes = self._uncommitted.end_bytes(self.state.record_bytes) + len(payload)
        self._uncommitted.appended(position.index, position.base_offset + header.record_count, end_bytes)
        if header.producer_id:
            # The producer's next batch is judged against this one, whether or not it is committed by then.
            self._uncommitted_producers.appended(header, producer, position)
        if identity is not None:
            self._uncommitted_ids.appended(identity.stored, position)
        if acks is Acks.NONE:
            return
        produced = Produced(position.base_offset, position.append_time_us, position.term, False)
        if acks is Acks.LEADER:
            done(produced)
        else:
            self._pending_acks.add(position.index, produced, timeout_s, done)

    def latest_producer(self, producer_id: int) -> Producer | None:
        """The producer as of its newest batch, committed or not."""
        return self._uncommitted_producers.projected(self.state.producers, producer_id)

    def answer_duplicate(
        self, producer_id: int, duplicate: RememberedBatch, acks: Acks, timeout_s: float, done: Done
    ) -> None:
        """Answer a batch that this partition has already, with the place of the first copy."""
        index = self._uncommitted_producers.index_of(producer_id, duplicate)
        produced = Produced(duplicate.base_offset, duplicate.append_time_us, self.group.term, True)
        self._answer_stored(index, produced, acks, timeout_s, done)

    def _answer_stored(self, index: int, produced: Produced, acks: Acks, timeout_s: float, done: Done) -> None:
        """Answer a duplicate. `index`: of the entry on which the answer depends; 0: it is applied."""
        if index and acks is Acks.QUORUM:
            # The first copy may still be lost, so the duplicate waits for the same commit.
            self._pending_acks.add(index, produced, timeout_s, done)
        elif acks is not Acks.NONE:
            done(produced)

    def _find_message(self, message_id: bytes | CopyId, records: int) -> tuple[RecordId, FirstRecord | None]:
        """The id as it is stored, and the first record of it. Raises InvalidRequest, as `record_id`."""
        found = record_id(message_id, records, self.config.dedupe_window_ms)
        since_us = found.since_us(self.group.append_time_now_us())
        return found, self._uncommitted_ids.find(found.remembered(self.state), found.stored, since_us)

    def _skip_duplicate(
        self,
        header: BatchHeader,
        producer: Producer | None,
        first: FirstRecord,
        acks: Acks,
        timeout_s: float,
        done: Done,
    ) -> None:
        """Answer a record whose message id is there already, with the place of the first record of that id."""
        index = first.entry_index
        if header.producer_id:
            # The batch used a sequence number. Without this entry the producer's next batch would be out of order.
            position = self._propose_commands([skip_duplicate(header, first.offset)])
            self._uncommitted_producers.skipped(header, producer, position, first.offset)
            index = position.index
        produced = Produced(first.offset, first.append_time_us, self.group.term, True)
        self._answer_stored(index, produced, acks, timeout_s, done)

    def _make_room(self, records: int, size: int) -> None:
        """Move the log start so that a batch of this size fits. Raises QuotaExceeded where the topic refuses that."""
        config, state = self.config, self.state
        if config.max_records is None and config.max_bytes is None:
            return
        if config.retention is Retention.ACKNOWLEDGED and is_nearly_full(config, state):
            # Room that is made by reading counts when the move is applied, because a channel that seeks back in front
            # of the move keeps its records. So the move is proposed before the partition is full.
            with suppress(TinymqError):
                now_us = self.group.append_time_now_us()
                self._propose_if(acknowledged_move(state, self._uncommitted, self.soft_leases, now_us))
        now_us = self.group.append_time_now_us() if len(state.holds) else 0  # only leases of holds need the time
        start = room(config, state, self._uncommitted, records, size, now_us)
        if start is not None:
            position = self._move_start(start.offset, pb.MoveStart.CAPACITY)
            self._uncommitted.moved(position.index, start)

    # ---- commands: group commit -------------------------------------------------------------------------

    def command(self, commands: Sequence[pb.Command], timeout_s: float, done: CommandsDone) -> None:
        """Carry out commands in this order. Calls `done` once, with the outcome of each.

        The commands travel in one entry, with those of other calls, and are answered when the entry is committed.
        Commands that would change nothing are not written: they are answered at once, or after a majority has
        confirmed that this replica still leads (noop_elision.py).

        Raises, before anything is done and without a call of `done`: NotLeader, InvalidRequest, QuotaExceeded,
        DiskFull, UnsupportedVersion. `done` gets NotLeader or DeadlineExceeded while nothing is appended, and
        OutcomeUnknown afterwards.
        """
        self.check_leading()
        command_version(commands, self.group.feature_level)  # here, so that no other call of the entry fails with it
        self._noop_elision.take(commands, timeout_s, done)

    def judge(self, command: pb.Command) -> CursorVerdict | None:
        return self.state.judge(command, 0, command_version([command], self.group.feature_level))

    def _propose_commands(self, commands: list[pb.Command]) -> Position:
        # An older build stops at an entry of a version that it does not know, instead of skipping the command.
        version = command_version(commands, self.group.feature_level)
        payload = pb.Commands(commands=commands).SerializeToString()
        try:
            position = self.group.propose(NewEntry(Kind.COMMAND, payload, version=version))
        except NotLeader:
            raise transferring(self.name, self.group.term) from None
        self._uncommitted.proposed(position.index, commands)
        return position

    def _move_start(self, offset: int, reason: pb.MoveStart.Reason.ValueType) -> Position:
        return self._propose_commands([pb.Command(move_start=pb.MoveStart(offset=offset, reason=reason))])

    def grant_soft_lease(self, request: pb.Hold) -> Hold:
        """Make or renew a light hold, which only this leader remembers. Raises NotLeader, and as Holds.hold."""
        self.check_leading()
        bounds = self.state.offset_bounds(self.group.append_time_now_us())
        proposed_start = self._uncommitted.proposed_start(self.state.applied_index)
        if proposed_start is not None:  # the records below it are about to be removed
            bounds = bounds._replace(log_start=max(bounds.log_start, min(proposed_start, bounds.end)))
        return self.soft_leases.grant(request, self.state.holds, bounds)

    def retain(self) -> None:
        """Remove what the topic no longer keeps. The retention timer calls this on every replica.

        The leader moves the log start over the records that are due. Every replica deletes the segments that lie
        entirely below the log start.
        """
        group = self._group
        if group is None or self.closed is not None or group.failure is not None:
            return
        # Errors are ignored, because the next call tries again.
        with suppress(TinymqError):
            if self.leading:
                self._retain(group.append_time_now_us(), group.expiry_now_us())
        with suppress(TinymqError):
            group.log.remove_before_offset(self.state.log_start)

    def _retain(self, now_us: int, expiry_us: int | None) -> None:
        state = self.state
        if state.log_start < state.high_watermark:
            self._propose_if(due_move(self.config, state, self._uncommitted, self.soft_leases, now_us, expiry_us))
            if self.config.on_full is OnFull.DROP_OLDEST:
                self._make_room(0, 0)  # the bounds may have been lowered since the last batch
        if not len(self._uncommitted_ids):
            for forget in due_forgetting(self.config, state, now_us):
                self._propose_if(forget)

    def _propose_if(self, command: pb.Command | None) -> None:
        if command is not None:
            self._propose_commands([command])

    # ---- StateMachine: called by the Raft host --------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Apply a committed entry of any kind; entries come in order. Never raises."""
        outcomes = self.state.apply(entry)
        if self.leading:
            self._settle(entry)
            if outcomes is not None:
                self._command_queue.applied(entry, outcomes)
        self._pending_acks.applied(entry)
        self._commit_watchers.wake()

    def _settle(self, entry: Entry) -> None:
        """Drop what described this entry while it was uncommitted: the applied state has it now."""
        self._uncommitted.settle(entry.index)
        if entry.header.kind == Kind.NOOP and (jump_us := parse_noop(entry.payload).jump_us):
            # The append clock jumped. A lease lasts as long as it would have without the jump.
            self.soft_leases.extend(entry.header.append_time_us - jump_us, jump_us)
        if len(self._uncommitted_producers):
            if entry.header.kind == Kind.DATA:
                self._uncommitted_producers.settle(entry)
            elif entry.header.kind == Kind.COMMAND:
                self._uncommitted_producers.settle_skipped(entry.index)
        self._uncommitted_ids.settle(entry.index)

    def lead(self, term: int) -> None:
        """Accept writes. Every entry of earlier terms is applied, so only this leader's own entries are uncommitted
        from now on."""
        assert not len(self._uncommitted_producers), "uncommitted producers outlived their term"
        self.leading = True
        self.group_gate.look()
        self._commit_watchers.wake()

    def follow(self) -> None:
        """Stop leading. The next leader may keep or discard the uncommitted entries, so their outcome is unknown."""
        self.leading = False
        self._uncommitted_producers.clear()
        self._uncommitted_ids.clear()
        self._uncommitted.clear()
        self.soft_leases.clear()
        self._pending_acks.lost(self.closed)
        if not self._command_queue.idle:
            self._command_queue.lost(self.closed or self.not_leader())
        self._commit_watchers.wake()

    def dump(self) -> bytes:
        return self.state.dump()

    def load(self, state: bytes) -> None:
        """Replace the state by a snapshot that `dump` made. Raises CorruptData, and then nothing has changed."""
        self.state.load(state)
        self._commit_watchers.wake()

    # ---- waiting for commits ---------------------------------------------------------------------------

    def watch(self, woken: Callable[[], None]) -> None:
        """Call `woken` after every commit, change of leadership or end of this replica, until `unwatch`."""
        self._commit_watchers.add(woken)

    def unwatch(self, woken: Callable[[], None]) -> None:
        self._commit_watchers.drop(woken)

    def look(self) -> None:
        """Wake all watchers, because the group changed its role or failed."""
        self._commit_watchers.wake()

    def close(self, error: TinymqError) -> None:
        """Refuse all calls with `error` from now on, and answer all that wait. The topic is deleted, or the broker
        stops."""
        self.closed = error
        self.follow()

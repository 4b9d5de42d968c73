"""One replica of a partition: decides what is appended, answers when it is committed, wakes waiting readers.

Invariant: there is no await between the decision on a batch and its append, and both look at the same state: the
applied state plus what this leader has appended since (hazard 19). `apply` changes only the state and pending answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from tinymq.base.config import Limits
from tinymq.base.errors import NotLeader, TinymqError
from tinymq.base.topic_config import OnFull, TopicConfig
from tinymq.base.types import Position
from tinymq.broker.delayed.bounds import Due
from tinymq.broker.duplicates.duplicates import Duplicates, Original
from tinymq.broker.duplicates.message_ids import CopyId, RecordId, skip_duplicate
from tinymq.broker.partition.capacity import Uncommitted, check_commands
from tinymq.broker.partition.commands import CommandQueue, command_version
from tinymq.broker.partition.commands import Done as CommandsDone
from tinymq.broker.partition.commit_watchers import CommitWatchers
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.group_gate import GroupGate
from tinymq.broker.partition.group_port import RaftGroup, RecordLog
from tinymq.broker.partition.kept_entries import KeptEntries
from tinymq.broker.partition.noop_elision import NoopElision
from tinymq.broker.partition.pending_acks import Acks, Done, PendingAcks, Produced
from tinymq.broker.partition.refusals import refusal, transferring
from tinymq.broker.partition.retention import due_forgetting, due_move
from tinymq.broker.partition.room import Room
from tinymq.broker.partition.soft_leases import SoftLeases
from tinymq.broker.partition.staged.delays import Canceled
from tinymq.broker.partition.staged.log_port import LogPort
from tinymq.broker.partition.staged.staged_batches import StagedBatches
from tinymq.broker.partition.staged.transactions import no_coordinator
from tinymq.broker.state.cursors import CursorVerdict
from tinymq.broker.state.delayed import delayed_place
from tinymq.broker.state.holds import Hold
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.state.producers import PRODUCERS_MAX, ProducerState
from tinymq.broker.state.staged import Totals
from tinymq.broker.state.state import PartitionState
from tinymq.broker.transactions.led_transactions import AskCoordinator
from tinymq.format.batch import BatchHeader, CheckedBatch
from tinymq.format.delayed import PUBLISHED_HEAD_SIZE
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
        limits: Limits | None = None,
        totals: Totals | None = None,
        staged_totals: Totals | None = None,
        ask_coordinator: AskCoordinator = no_coordinator,
    ) -> None:
        """`soon` runs a callback on the loop, after the current one. `address_of`: where clients reach a broker.
        `totals`, `staged_totals`: the delayed batches, and those of transactions, that wait in the whole broker."""
        self.name = name
        self.state = PartitionState(producers_max)
        self.leading = False  # accepts writes: it has applied a NOOP of its own term
        self.closed: TinymqError | None = None  # the error for all calls, once the replica is closed
        self.config = TopicConfig()
        self.group_gate = GroupGate(name, self.state)
        self.soft_leases = SoftLeases()  # known to this leader only, and gone with its leadership
        self._group: RaftGroup | None = None
        self._address_of = address_of
        # Entries that this leader has appended and not applied yet; empty on a follower.
        self.duplicates = Duplicates(self.state)
        self._uncommitted = Uncommitted()
        self._pending_acks = PendingAcks(name, deadlines)
        port = LogPort(
            self.state,
            self._pending_acks,
            group=lambda: self.group,
            config=lambda: self.config,
            check_leading=self.check_leading,
            check_groups=self.group_gate.check,
            propose=self._propose,
            propose_commands=self._propose_commands,
            make_room=lambda records, size: self._room.make(records, size),
            limits=limits or Limits(),
            delayed_totals=totals or Totals(),
            staged_totals=staged_totals or Totals(),
        )
        self._staged = StagedBatches(name, port, deadlines, ask_coordinator)
        self.delays, self.transactions = self._staged.delays, self._staged.transactions
        self.copier = self._staged.copier
        self._room = Room(port, self._uncommitted, self.soft_leases, self._staged, self._propose_commands)
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
        self._kept_entries = KeptEntries()

    def __str__(self) -> str:
        return self.name

    def attach(self, group: RaftGroup) -> None:
        """Set the Raft group of this replica, once the group is open. It may lead already."""
        self._group = group
        if self.leading:
            self._staged.lead()

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
        due: Due | None = None,
    ) -> None:
        """Append a batch that passed `admission`, or find that it is a duplicate. Calls `done` once `acks` holds.

        With `message_id`, the batch has one record, and is a duplicate if the partition remembers a record of this id.
        With `due`, it is a delayed batch: it is stored, and gets its offsets when it is due.

        Raises, before anything is appended and without a call of `done`: NotLeader, Fenced, OutOfOrderSequence,
        UnknownProducer, BatchTooLarge, QuotaExceeded (too many uncommitted bytes, or it is full), DiskFull, NotReady;
        for a delayed batch also InvalidRequest, UnsupportedVersion. `done` gets OutcomeUnknown when the leadership is
        lost or the time is up before the commit.
        """
        self.check_leading()
        self.group_gate.check()
        if due is not None:
            self.delays.check(due, self.config, acks, len(payload))
        header, duplicates = batch.header, self.duplicates
        producer = duplicates.latest_producer(header.producer_id) if header.producer_id else None
        first = duplicates.find_batch(producer, header) if header.producer_id else None
        identity: RecordId | None = None
        if message_id and first is None:
            window_ms, now_us = self.config.dedupe_window_ms, self.group.append_time_now_us()
            identity, first = duplicates.find_message(message_id, header.record_count, window_ms, now_us)
            if first is not None:
                first = self._skip(header, producer, first)
        if first is not None:
            produced = self.delays.place_of(first.place, first.append_time_us, due, duplicate=True)
            self._answer(first.entry_index, produced, acks, timeout_s, done)
            return
        # The command that makes room goes first. It takes effect even if the batch is then refused, which `drop_oldest`
        # permits.
        if due is None:
            new = NewEntry(Kind.DATA, payload, header.record_count, batch.max_timestamp_us, payload_crc)
            self._room.make(header.record_count, len(payload))
        else:
            new = self.delays.staged_entry(batch, payload, due)
            self._room.make(header.record_count, len(payload) + PUBLISHED_HEAD_SIZE)
        if identity is not None:
            # The id counts only with the record behind it (tinymq/broker/state/message_ids.py).
            self._propose_commands([identity.note(new.crc, len(new.payload))])
        position = self._propose(new)
        place = position.base_offset
        if due is not None:
            self.delays.appended(position, batch, len(payload))
            place = delayed_place(position.index)
        duplicates.appended(header, producer, identity, position, place)
        produced = self.delays.place_of(place, position.append_time_us, due, duplicate=False)
        self._answer(position.index, produced, acks, timeout_s, done)

    def _answer(self, index: int, produced: Produced, acks: Acks, timeout_s: float, done: Done) -> None:
        """Answer a batch once `acks` holds for the entry at `index`; 0: it is applied.

        A duplicate waits for the same commit as the first copy, which may still be lost.
        """
        if index and acks is Acks.QUORUM:
            self._pending_acks.add(index, produced, timeout_s, done)
        elif acks is not Acks.NONE:
            done(produced)

    def _skip(self, header: BatchHeader, producer: ProducerState | None, first: Original) -> Original:
        """Note that a record is a duplicate by its message id. Returns what its answer depends on."""
        if not header.producer_id:
            return first
        # The batch used a sequence number. Without this entry the producer's next batch would be out of order.
        position = self._propose_commands([skip_duplicate(header, first.place)])
        self.duplicates.skipped(header, producer, position, first)
        return first._replace(entry_index=position.index)

    def _propose(self, new: NewEntry, size: int | None = None) -> Position:
        """Append an entry, and note the room that its records take: `size` bytes, or those of its payload."""
        try:
            position = self.group.propose(new)
        except NotLeader:
            raise transferring(self.name, self.group.term) from None
        if new.record_count:
            end_bytes = self._uncommitted.end_bytes(self.state.record_bytes)
            end_bytes += len(new.payload) if size is None else size
            self._uncommitted.appended(position.index, position.base_offset + new.record_count, end_bytes)
        return position

    def cancel_delayed(self, schedule_id: int, timeout_s: float, done: Canceled) -> None:
        """Drop a delayed batch: see `Delays.cancel`. Raises NotLeader, UnsupportedVersion."""
        self.check_leading()
        self.delays.cancel(schedule_id, timeout_s, done)

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
            log, state = group.log, self.state
            kept = self._kept_entries.keep_from(state.applied_index, state.lowest_kept_index, log.synced_index)
            log.remove_before_offset(state.log_start, kept)
        if self.leading:
            self._staged.release(group.log)

    def _retain(self, now_us: int, expiry_us: int | None) -> None:
        state = self.state
        if state.log_start < state.high_watermark:
            self._propose_if(due_move(self.config, state, self._uncommitted, self.soft_leases, now_us, expiry_us))
            if self.config.on_full is OnFull.DROP_OLDEST:
                self._room.make(0, 0)  # the bounds may have been lowered since the last batch
        if not self.duplicates.has_ids:
            for forget in due_forgetting(self.config, state, now_us):
                self._propose_if(forget)

    def _propose_if(self, command: pb.Command | None) -> None:
        if command is not None:
            self._propose_commands([command])

    # ---- StateMachine: called by the Raft host --------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Apply a committed entry of any kind; entries come in order. Never raises."""
        outcomes = self.state.apply(entry)
        self._staged.applied(entry, leading=self.leading)
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
        self.duplicates.settle(entry)

    def lead(self, term: int) -> None:
        """Accept writes. Every entry of earlier terms is applied, so only this leader's own entries are uncommitted
        from now on."""
        assert self.duplicates.is_empty, "uncommitted batches outlived their term"
        self.leading = True
        if self._group is not None:
            self._staged.lead()
        self.group_gate.look()
        self._commit_watchers.wake()

    def follow(self) -> None:
        """Stop leading. The next leader may keep or discard the uncommitted entries, so their outcome is unknown."""
        self.leading = False
        self.duplicates.clear()
        self._staged.follow(lambda: self.closed or self.not_leader())
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
        self._staged.count()
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
        self._staged.forget()

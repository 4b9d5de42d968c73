"""A partition's applied state: what every replica computes from the log up to one index, and nothing else.

Equal logs give equal bytes. `apply` fails for no entry that this build knows: every committed entry counts. A command
that cannot be carried out has an error as its outcome, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from google.protobuf.message import DecodeError

from tinymq.base.errors import CorruptData, InvalidBatch, InvalidRequest, TinymqError
from tinymq.broker.state.cursor import Cursor
from tinymq.broker.state.cursors import CURSOR_COMMANDS, Cursors, CursorVerdict, cursor_name, cursors_max
from tinymq.broker.state.delayed import DelayedBatch, DelayedBatches, delayed_place
from tinymq.broker.state.epoch_cache import EpochCache
from tinymq.broker.state.holds import Holds
from tinymq.broker.state.message_ids import MessageIds, dump_ids, load_ids
from tinymq.broker.state.outcome import CommandOutcome, OffsetBounds
from tinymq.broker.state.producers import PRODUCERS_MAX, Producers, skipped_header
from tinymq.broker.state.queue_groups import QUEUE_COMMANDS, QueueGroups
from tinymq.broker.state.retention import acknowledged_start, new_start
from tinymq.broker.state.retention_index import RetentionIndex
from tinymq.broker.state.staged import StagedBatch, StagedEntry, StagedTransactions, TransactionId
from tinymq.broker.state.state_bytes import Head, pack_state, unpack_state
from tinymq.broker.state.transactional.published import PublishedEntries
from tinymq.broker.state.transactional.staged_acks import StagedAcks
from tinymq.broker.state.transactional.staged_offsets import StagedOffsets
from tinymq.broker.state.transactional.staged_progress import PROGRESS_COMMANDS, StagedProgress
from tinymq.format.batch import BatchHeader, parse_batch_header
from tinymq.format.delayed import PUBLISHED_VERSION, StagedHead, unpack_discarded, unpack_published, unpack_staged
from tinymq.format.entry import ENTRY_VERSION, Entry, EntryHeader, Kind, crc32c_of, takes_producer_numbers
from tinymq.format.transactional import (
    COPIED_VERSION,
    PublishedItems,
    is_transactional,
    unpack_copied,
    unpack_discard,
    unpack_transactional,
)
from tinymq.proto import partition_pb2 as pb
from tinymq.raft.rules.noop import parse_noop


class PartitionState:
    """The applied state. Only `apply` and `load` change it."""

    __slots__ = (
        "_cursors",
        "_progress",
        "applied_index",
        "copy_ids",
        "delayed",
        "epoch_cache",
        "high_watermark",
        "holds",
        "log_start",
        "message_ids",
        "producers",
        "published",
        "queue_groups",
        "record_bytes",
        "retention_index",
        "staged",
    )  # fmt: skip

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self.applied_index = 0  # the newest entry that counts here
        self.high_watermark = 0  # offset after the newest committed record
        self.record_bytes = 0  # of all records since the partition began, removed ones included
        self.log_start = 0  # no reader sees a record below it; invariant: <= high_watermark, never falls
        self.producers = Producers(producers_max)
        self.retention_index = RetentionIndex()
        self.holds = Holds()
        self.epoch_cache = EpochCache()
        self._cursors = Cursors()
        self.message_ids = MessageIds()
        self.copy_ids = MessageIds()  # of records that brokers copied (tinymq/broker/dead_letters)
        self.queue_groups = QueueGroups()
        self.delayed = DelayedBatches()
        self.staged = StagedTransactions()
        self.published = PublishedEntries()
        self._progress = StagedProgress(self._cursors, self.queue_groups)

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """A view of the present cursors of all kinds, by the name of their channel or group."""
        return self._cursors.by_name

    @property
    def staged_offsets(self) -> StagedOffsets:
        """The offsets of stream groups that transactions have staged."""
        return self._progress.offsets

    @property
    def staged_acks(self) -> StagedAcks:
        """The acks of queue groups that transactions have staged."""
        return self._progress.acks

    @property
    def lowest_cursor(self) -> int | None:
        """The lowest position of a cursor, below the log start or not; None: there is no cursor."""
        lowest = min((cursor.position for cursor in self._cursors.by_name.values()), default=None)
        buried = self.queue_groups.lowest_burial  # a seek may have put the cursor behind it
        return lowest if buried is None or lowest is None else min(lowest, buried)

    @property
    def lowest_kept_index(self) -> int | None:
        """The lowest Raft index of an entry that has a batch without offsets, or one that a PUBLISH entry gave offsets
        that are not below the log start; None: there is none. The log must keep its entries from here on."""
        lowest = (self.delayed.lowest_index, self.staged.lowest_index, self.published.lowest_index)
        return min((index for index in lowest if index is not None), default=None)

    @property
    def kept_records(self) -> int:
        """The number of records from the log start on."""
        return self.high_watermark - self.log_start

    @property
    def kept_bytes(self) -> int:
        """Stored bytes of the records from the log start on: never less than there are, and less than 1/128 more."""
        return self.record_bytes - self.retention_index.start_bytes

    def offset_bounds(self, now_us: int, version: int = ENTRY_VERSION) -> OffsetBounds:
        """The bounds of the log by which the next command is judged, in an entry of that version."""
        return OffsetBounds(self.log_start, self.high_watermark, now_us, cursors_max(version))

    def apply(self, entry: Entry) -> list[CommandOutcome] | None:
        """Apply one committed entry of any kind, and return the outcomes of a COMMAND entry.

        Entries come in order, each once.
        """
        header = entry.header
        self.applied_index = header.index
        self.high_watermark = header.next_offset
        self.message_ids.applied(header)
        self.copy_ids.applied(header)
        if header.kind != Kind.DATA:
            if header.kind == Kind.COMMAND:
                return self._apply_commands(entry)
            if header.kind == Kind.CONFIG:
                self.epoch_cache.note(entry)
            elif header.kind == Kind.NOOP:
                self._note_time(entry)
            elif header.kind == Kind.PUBLISH or is_transactional(header.version):
                self._apply_transactional(entry)
            elif header.kind in (Kind.STAGED, Kind.DISCARD):
                self._apply_delayed(entry)
            return None
        self._add_records(header.base_offset, header.length, header.append_time_us)
        if header.version == PUBLISHED_VERSION:
            self._apply_delayed(entry)
            return None
        batch = _numbered_batch(entry)
        if batch is not None and batch.producer_id:
            self.producers.add(batch, header.base_offset, header.append_time_us)
        return None

    def _add_records(self, offset: int, size: int, append_us: int) -> None:
        """Count the records of one batch."""
        below, index = self.record_bytes, self.retention_index
        self.record_bytes = below + size
        # This runs for every batch, so the index is called only for the rare batch that may need a mark.
        if self.record_bytes > index.bytes_due or append_us > index.us_due:
            index.note(offset, below, size, append_us)
        elif append_us > index.last_append_us:
            index.last_append_us = append_us

    def _apply_transactional(self, entry: Entry) -> None:
        """Apply what an entry says about batches of transactions. As `_apply_delayed`, it never fails."""
        header, payload = entry.header, memoryview(entry.payload)
        with suppress(CorruptData):
            if header.kind == Kind.PUBLISH:
                self._publish(header, PublishedItems(payload))
            elif header.kind == Kind.DISCARD:
                discarded = unpack_discard(payload)
                transaction = TransactionId(discarded.producer_id, discarded.epoch, discarded.number)
                self.staged.end(transaction)
                self._progress.discard(transaction, self.offset_bounds(header.append_time_us))
            elif header.version == COPIED_VERSION:
                copied, data = unpack_copied(payload)
                transaction = TransactionId(copied.producer_id, copied.epoch, copied.number)
                batch_id = StagedBatch(transaction, copied.writer, copied.batch_number)
                self.staged.carry(batch_id, copied.replaced_index, header.index, crc32c_of(data))
            else:
                head, data = unpack_transactional(payload)
                batch = _batch_header(data)
                if batch is not None:
                    transaction = TransactionId(head.producer_id, head.epoch, head.number)
                    records, size, crc = batch.record_count, len(data), crc32c_of(data)
                    self.staged.stage(
                        StagedBatch(transaction, head.writer, head.batch_number),
                        StagedEntry(header.index, records, size, head.max_timestamp_us, crc),
                        head.coordinator,
                    )

    def _publish(self, header: EntryHeader, items: PublishedItems) -> None:
        """Count the records of each batch by itself: retention may remove some of them and keep the others."""
        items.check(header.index, header.version, header.record_count)
        name = items.name
        transaction = TransactionId(name.producer_id, name.epoch, name.number)
        self.staged.end(transaction)
        self._progress.publish(transaction, self.offset_bounds(header.append_time_us))
        for item in items:
            self._add_records(header.base_offset + item.first, item.length, header.append_time_us)
        self.published.publish(items.lowest_index, header.index, header.next_offset)

    def check_stage(self, command: pb.StageOffset, now_us: int) -> None:
        """Check an offset that a transaction stages. Raises as StagedProgress.check_offset."""
        self._progress.check_offset(command, self.offset_bounds(now_us))

    def check_stage_acks(self, command: pb.StageAcks, now_us: int) -> None:
        """Check acks that a transaction stages. Raises as StagedProgress.check_acks."""
        self._progress.check_acks(command, self.epoch_cache.newest_term, self.offset_bounds(now_us))

    def transactions_of(self, group: str) -> list[TransactionId]:
        """The transactions here that will move the cursor of a stream group if they are committed."""
        cursor = self.cursors.get(group)
        return [] if cursor is None else self.staged_offsets.of_group(group, cursor.generation)

    def _apply_delayed(self, entry: Entry) -> None:
        """Apply what an entry says about delayed batches. An entry that no build could read changes nothing, on every
        replica."""
        header = entry.header
        with suppress(CorruptData):
            if header.kind == Kind.STAGED:
                if takes_producer_numbers(header):
                    self._stage(header, *unpack_staged(memoryview(entry.payload)))
                return
            published = header.kind == Kind.DATA
            ids = unpack_published(memoryview(entry.payload))[0] if published else unpack_discarded(entry.payload)
            for schedule_id in ids:
                self.delayed.end(schedule_id)

    def _stage(self, header: EntryHeader, head: StagedHead, payload: memoryview) -> None:
        """Its producer and its message id count from here on, and not when the batch is published: the producer's next
        batch may come long before that."""
        if head.schedule_id:
            self.delayed.carry(head.schedule_id, header.index)
            return
        batch, now_us = _batch_header(payload), header.append_time_us
        if batch is None:
            return
        self.delayed.stage(
            DelayedBatch(
                schedule_id=header.index,
                deliver_at_us=head.due_us(now_us),
                staged_at_us=now_us,
                entry_index=header.index,
                records=batch.record_count,
                bytes=len(payload),
            )
        )
        if batch.producer_id:
            self.producers.add(batch, delayed_place(header.index), now_us)

    def _note_time(self, entry: Entry) -> None:
        """Note that the leader does not know the time, or that it has learned the time.

        Records appended in between are only known to exist by now. Leases granted in between keep their remaining
        length, and so do the times for which records of queue groups wait.
        """
        note, now_us = parse_noop(entry.payload), entry.header.append_time_us
        if not note.known:
            self.retention_index.lose_time(entry.header.base_offset, self.record_bytes)
        elif self.retention_index.time_is_unknown:
            self.retention_index.find_time(now_us)
            self.holds.extend(now_us - note.jump_us, note.jump_us)
            self.queue_groups.put_off(now_us - note.jump_us, note.jump_us)

    # ---- commands

    def judge(self, command: pb.Command, now_us: int, version: int) -> CursorVerdict | None:
        """The verdict on a cursor's command at this moment; None for other commands. Changes nothing."""
        name = command.WhichOneof("command")
        if name not in CURSOR_COMMANDS:
            return None
        return self._cursors.judge(name, getattr(command, name), self.offset_bounds(now_us, version))

    def _apply_commands(self, entry: Entry) -> list[CommandOutcome]:
        try:
            commands = pb.Commands.FromString(entry.payload).commands
        except DecodeError:  # a committed entry that no build could read means nothing, on every replica
            return []
        return [self._apply_command(command, entry.header) for command in commands]

    def _apply_command(self, command: pb.Command, header: EntryHeader) -> CommandOutcome:
        name = command.WhichOneof("command")
        bounds = self.offset_bounds(header.append_time_us, header.version)
        if name in CURSOR_COMMANDS:
            return self._apply_cursor_command(name, getattr(command, name), bounds)
        if name in QUEUE_COMMANDS:
            return self._apply_queue_command(name, getattr(command, name), bounds)
        # The two kinds above are what readers and workers send all day. Each of the others is rare.
        try:
            if name == "move_start":
                return self.move_start(command.move_start, bounds)
            if name == "remove_acknowledged":
                return self.remove_acknowledged(command.remove_acknowledged, bounds)
            if name in ("note_message_id", "note_copy"):
                table = self.message_ids if name == "note_message_id" else self.copy_ids
                table.note(getattr(command, name), header.index, bounds)
                return CommandOutcome(log_start=bounds.log_start, high_watermark=bounds.end)
            if name == "skip_duplicate":
                skip = command.skip_duplicate
                self.producers.add(skipped_header(skip), skip.offset, bounds.now_us)
                return CommandOutcome(log_start=bounds.log_start, high_watermark=bounds.end)
            if name in PROGRESS_COMMANDS:
                self._progress.apply(name, getattr(command, name), self.epoch_cache.newest_term, bounds)
                return CommandOutcome(log_start=bounds.log_start, high_watermark=bounds.end)
            if name == "hold":
                until_us = self.holds.hold(command.hold, bounds).until_us
                return CommandOutcome(log_start=bounds.log_start, high_watermark=bounds.end, until_us=until_us)
            if name == "release":
                self.holds.release(command.release.hold_id)
                return CommandOutcome(log_start=bounds.log_start, high_watermark=bounds.end)
            raise InvalidRequest("no such command", hint="it comes from a newer version")
        except TinymqError as error:
            return CommandOutcome(error, log_start=bounds.log_start, high_watermark=bounds.end)

    def _apply_cursor_command(self, name: str, command: Any, bounds: OffsetBounds) -> CommandOutcome:
        called = cursor_name(command)
        before = self.cursors.get(called)
        outcome = self._cursors.apply(name, command, bounds)
        after = self.cursors.get(called)
        if after is not before:
            replaced = before is not None and after is not None and before.number != after.number
            self.queue_groups.follow(called, after, replaced)
        return outcome

    def _apply_queue_command(self, name: str, command: Any, bounds: OffsetBounds) -> CommandOutcome:
        called, history = command.queue.group, self.epoch_cache.newest_term
        cursor = self.cursors.get(called)
        outcome, position = self.queue_groups.apply(name, command, cursor, history, bounds)
        if position is not None:
            self._cursors.move(called, position, bounds.now_us)
        return outcome

    def move_start(self, move: pb.MoveStart, bounds: OffsetBounds) -> CommandOutcome:
        # Dropped here and not by a timer: every replica has to drop a hold at the same entry.
        self.holds.drop_expired(bounds.now_us)
        return self._start_at(new_start(move, bounds, self.holds.lowest(bounds.now_us)), bounds)

    def remove_acknowledged(self, request: pb.RemoveAcknowledged, bounds: OffsetBounds) -> CommandOutcome:
        self.holds.drop_expired(bounds.now_us)
        # The leader has checked the cursors before it proposed the move. In the meantime an entry may have made a
        # channel, or moved one back, and that channel must find its records. So every replica checks again here.
        acknowledged = acknowledged_start(self, bounds.now_us)
        return self._start_at(max(self.log_start, min(request.upto, acknowledged)), bounds)

    def _start_at(self, start: int, bounds: OffsetBounds) -> CommandOutcome:
        if start > self.log_start:
            self.log_start = start
            self.published.start_at(start)
            self.retention_index.start_at(start, bounds.end, self.record_bytes)
        return CommandOutcome(log_start=self.log_start, high_watermark=bounds.end)

    # ---- as bytes

    def dump(self) -> bytes:
        producers = self.producers.dump()
        state = pb.State(log_start=self.log_start)
        self._cursors.dump(state)
        self.retention_index.dump(state)
        self.holds.dump(state)
        self.epoch_cache.dump(state)
        dump_ids(state, self.message_ids, self.copy_ids)
        self.queue_groups.dump(state)
        self._progress.dump(state)
        state.delayed, state.staged, state.published = self.delayed.dump(), self.staged.dump(), self.published.dump()
        return pack_state(Head(self.applied_index, self.high_watermark, self.record_bytes), producers, state)

    def load(self, data: bytes) -> None:
        """The inverse of `dump`. Raises CorruptData, and then nothing has changed."""
        (applied_index, high_watermark, record_bytes), producers, state = unpack_state(data)
        if state.log_start > high_watermark:
            raise CorruptData("a partition's applied state begins behind its end")
        # Every part is parsed before the first field changes.
        cursors = Cursors.load(state, high_watermark)
        retention_index = RetentionIndex.load(state, high_watermark, record_bytes)
        holds = Holds.load(state, high_watermark)
        epoch_cache = EpochCache.load(state, high_watermark)
        message_ids, copy_ids = load_ids(state, high_watermark)
        queue_groups = QueueGroups.load(state, cursors.by_name, high_watermark)
        delayed = DelayedBatches.load(state.delayed, applied_index)
        staged = StagedTransactions.load(state.staged, applied_index)
        progress = StagedProgress.load(state, cursors, queue_groups, high_watermark)
        published = PublishedEntries.load(state.published, applied_index, state.log_start, high_watermark)
        self.producers.load(producers)
        self.applied_index, self.high_watermark, self.record_bytes = applied_index, high_watermark, record_bytes
        self.log_start = state.log_start
        self._cursors, self.retention_index, self.holds = cursors, retention_index, holds
        self.epoch_cache, self.message_ids, self.copy_ids = epoch_cache, message_ids, copy_ids
        self.queue_groups, self.delayed = queue_groups, delayed
        self.staged, self.published, self._progress = staged, published, progress


def _numbered_batch(entry: Entry) -> BatchHeader | None:
    """The header of a DATA entry's batch. None: the batch takes no numbers of its producer, or is not readable."""
    if not takes_producer_numbers(entry.header):
        return None
    try:
        return _batch_header(entry.batch)
    except CorruptData:
        return None


def _batch_header(batch: bytes | memoryview) -> BatchHeader | None:
    try:
        return parse_batch_header(batch)
    except InvalidBatch:  # the entry takes its offsets even if its batch is not readable, and it names no producer
        return None

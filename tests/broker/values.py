"""Commands and entries of a partition for tests."""

from __future__ import annotations

from tests.fakes.batches import TIME_US, payload
from tests.fakes.raft_group import NOW_US
from tinymq.base.types import GroupId, TopicId
from tinymq.broker.state.staged import StagedEntry, TransactionId
from tinymq.broker.state.state import PartitionState
from tinymq.format.entry import Entry, Kind, NewEntry, crc32c, make_entry
from tinymq.format.transactional import (
    COPIED_VERSION,
    TRANSACTIONAL_VERSION,
    CopiedHead,
    TransactionalHead,
    TransactionName,
    items_of,
    pack_copied,
    pack_discard,
    pack_publish,
    pack_transactional,
    publish_version,
)
from tinymq.proto import partition_pb2 as pb
from tinymq.raft.rules.membership import Membership, Replica, pack_membership
from tinymq.raft.rules.noop import NoopNote, pack_noop

Reason = pb.MoveStart.Reason


def request(number: int) -> bytes:
    """The id of a request or a hold."""
    return number.to_bytes(16, "big")


def opens(channel: str = "c", epoch: int = 0, start: int = 0) -> pb.Command:
    return pb.Command(open=pb.OpenChannel(channel=channel, epoch=epoch, start=start))


def commits(offset: int, channel: str = "c", epoch: int = 0, generation: int = 1) -> pb.Command:
    return pb.Command(commit=pb.Commit(channel=channel, epoch=epoch, generation=generation, offset=offset))


def seeks(offset: int, number: int = 1, channel: str = "c", epoch: int = 0) -> pb.Command:
    return pb.Command(seek=pb.Seek(channel=channel, epoch=epoch, request_id=request(number), offset=offset))


def consumes(number: int = 1, channel: str = "c") -> pb.Command:
    return pb.Command(consume=pb.Consume(channel=channel, request_id=request(number)))


def makes(group_id: int, name: str = "g", start: int = 0, kind: pb.CursorKind.ValueType = pb.STREAM) -> pb.Command:
    return pb.Command(make=pb.MakeCursor(name=name, kind=kind, group_id=group_id, start=start))


def drops(group_id: int, name: str = "g") -> pb.Command:
    return pb.Command(drop=pb.DropCursor(name=name, group_id=group_id))


def deletes(channel: str = "c") -> pb.Command:
    return pb.Command(delete=pb.DeleteChannel(channel=channel))


def moves(offset: int, reason: Reason.ValueType = pb.MoveStart.TRIM) -> pb.Command:
    return pb.Command(move_start=pb.MoveStart(offset=offset, reason=reason))


def holds(offset: int, number: int = 1, lease_ms: int = 1000) -> pb.Command:
    return pb.Command(hold=pb.Hold(hold_id=request(number), offset=offset, lease_ms=lease_ms))


def acknowledged(upto: int = 1 << 40) -> pb.Command:
    return pb.Command(remove_acknowledged=pb.RemoveAcknowledged(upto=upto))


def releases(number: int = 1) -> pb.Command:
    return pb.Command(release=pb.Release(hold_id=request(number)))


def takes_over(term: int, generation: int, offset: int = 0) -> Entry:
    """The CONFIG of a forced leadership, or another CONFIG of that recovery epoch."""
    group = GroupId(TopicId(b"t" * 16), 0)
    return make_entry(
        NewEntry(Kind.CONFIG, pack_membership(Membership(group, 2, (Replica(1, b"i" * 16),), generation))),
        index=1,
        term=term,
        prev_crc=0,
        base_offset=offset,
        append_time_us=NOW_US,
    )


def name_of(transaction: TransactionId) -> TransactionName:
    return TransactionName(transaction.producer_id, transaction.number, transaction.epoch)


class Applied:
    """A state, and the entries that led to it: batches of plain records and of transactions, and commands."""

    def __init__(self) -> None:
        self.state = PartitionState()
        self.entries: list[Entry] = []
        self.now_us = NOW_US

    def batch(self, count: int = 1, size: int = 0, later_us: int = 1) -> Entry:
        """`size` bytes instead of a real batch."""
        return self._apply(Kind.DATA, bytes(size) or payload(count), count, later_us)[0]

    def run(self, *commands: pb.Command, later_us: int = 1, version: int = 1) -> list:  # type: ignore[type-arg]
        """The outcomes, in an entry of that version."""
        return self._apply(Kind.COMMAND, pb.Commands(commands=commands).SerializeToString(), 0, later_us, version)[1]

    def raw(self, data: bytes) -> list:  # type: ignore[type-arg]
        return self._apply(Kind.COMMAND, data, 0, 1)[1]

    def noop(self, known: bool = True, jump_us: int = 0, later_us: int = 1) -> None:
        """A leader starts its term with or without the cluster's time, or learns it."""
        self._apply(Kind.NOOP, pack_noop(NoopNote(known, jump_us)), 0, later_us)

    def stage(
        self, transaction: TransactionId, number: int = 0, count: int = 1, *, writer: int = 0, coordinator: int = 0,
        later_us: int = 1, time_us: int = TIME_US,
    ) -> StagedEntry:  # fmt: skip
        """A batch of a transaction."""
        head = TransactionalHead(*name_of(transaction), coordinator, writer, number, time_us + count - 1)
        batch = payload(count, time_us=time_us)
        data = pack_transactional(head, batch)
        index = self._apply(Kind.STAGED, data, 0, later_us, TRANSACTIONAL_VERSION)[0].index
        return StagedEntry(index, count, len(batch), head.max_timestamp_us, crc32c(batch))

    def copy(
        self, transaction: TransactionId, number: int, replaced_index: int, batch: bytes, writer: int = 0
    ) -> Entry:
        """A batch again, in the place of another entry."""
        head = CopiedHead(*name_of(transaction), 0, writer, number, replaced_index)
        return self._apply(Kind.STAGED, pack_copied(head, batch), 0, 1, COPIED_VERSION)[0]

    def publish(self, transaction: TransactionId, later_us: int = 1) -> Entry:
        staged = self.state.staged.get(transaction)
        assert staged is not None
        items = items_of(staged.entries)
        data = pack_publish(name_of(transaction), items)
        return self._apply(Kind.PUBLISH, data, staged.records, later_us, publish_version(items))[0]

    def discard(self, transaction: TransactionId) -> Entry:
        return self._apply(Kind.DISCARD, pack_discard(name_of(transaction)), 0, 1, TRANSACTIONAL_VERSION)[0]

    def add(self, kind: Kind, data: bytes, count: int = 0, version: int = 1) -> Entry:
        """Any other entry."""
        return self._apply(kind, data, count, 1, version)[0]

    def _apply(self, kind: Kind, data: bytes, count: int, later_us: int, version: int = 1) -> tuple[Entry, list]:  # type: ignore[type-arg]
        self.now_us += later_us
        last = self.entries[-1].header if self.entries else None
        entry = make_entry(
            NewEntry(kind, data, record_count=count, version=version),
            index=self.entries[-1].index + 1 if self.entries else 1,
            term=1,
            prev_crc=last.header_crc if last else 0,
            base_offset=last.next_offset if last else 0,
            append_time_us=self.now_us,
        )
        self.entries.append(entry)
        return entry, self.state.apply(entry) or []

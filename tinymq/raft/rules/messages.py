"""Raft messages as frozen values, and their protobuf form. Decisions see only the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache

from tinymq.base.errors import CorruptData, InvalidRequest
from tinymq.base.types import GroupId, TopicId
from tinymq.base.value import value
from tinymq.format.entry import Entry, crc32c, iter_entries
from tinymq.proto import peer_pb2 as pb

GROUPS_KEPT = 4096
SNAPSHOT_CHUNK_BYTES = 256 << 10  # of a snapshot, in one message, at most


@value
class RequestVote:
    """A candidate asks for a vote."""

    term: int
    last_index: int  # of the candidate's log
    last_term: int
    pre: bool  # a pre-vote: would you vote? It changes no term
    transfer: bool  # the leader itself asked for this election: voters that hear it vote all the same
    count: int  # the candidate's incarnation count in this group
    config_index: int = 0  # the newest CONFIG that the candidate knows to be committed
    config_term: int = 0  # the term of that entry


@value
class Vote:
    """An answer to RequestVote."""

    term: int  # the voter's own, or the term asked for when a pre-vote is granted
    granted: bool
    pre: bool  # it answers a pre-vote
    count: int  # the voter's incarnation count in this group


@value
class Append:
    """The entries after (prev_index, prev_term) in the leader's log.

    Without entries, it asks whether the logs match.
    """

    term: int
    prev_index: int
    prev_term: int
    commit: int
    entries: Sequence[Entry] = field(default=(), repr=False)


@value
class AppendAck:
    """A follower's acknowledgement of entries. On conflict it acknowledges nothing."""

    term: int  # an answer of another term says nothing about this one (hazard 3)
    durable: int  # the last index that is synced and matches the log of this term's leader
    received: int  # the last index that matches, synced or not; on conflict: the end of the follower's log
    conflict: bool
    next: int  # on conflict: where the leader should continue
    next_term: int  # on conflict: term of the entry before `next`
    commit: int  # the commit index that this follower knows
    count: int  # the follower's incarnation count in this group
    read_id: int = 0  # the greatest read id of this term's CommitNotices


@value
class CommitNotice:
    """The leader tells a follower the commit index. It is valid in `term` alone."""

    term: int
    commit: int  # min(commit index, match index of the receiver)
    ack_wanted: bool  # the group wants to rest: answer that you know it
    read_id: int = 0  # above 0: answer with it, to confirm the leadership


@value
class TimeoutNow:
    """The leader gives up its leadership: campaign at once."""

    term: int
    manual: bool = False  # an operator asked for the transfer


@value
class InstallSnapshot:
    """The leader announces the snapshot right before its first entry to a follower that is behind it."""

    term: int
    index: int  # the last entry that the snapshot includes; it is committed
    entry_term: int
    entry_crc: int
    next_offset: int
    append_time_us: int
    size: int  # bytes of the whole snapshot
    crc: int  # CRC-32C of the whole snapshot


@value
class SnapshotChunk:
    """Bytes of the snapshot that (index, crc) names, from `position` on; at most SNAPSHOT_CHUNK_BYTES."""

    term: int
    index: int
    crc: int
    position: int
    body: bytes = field(repr=False)


@value
class InstallSnapshotAck:
    """How much of a snapshot a follower holds without a gap.

    When it needs no more of it, it sends an AppendAck instead.
    """

    term: int
    index: int
    crc: int
    received: int  # bytes; the leader continues from here
    count: int


Message = (
    RequestVote
    | Vote
    | Append
    | AppendAck
    | CommitNotice
    | TimeoutNow
    | InstallSnapshot
    | SnapshotChunk
    | InstallSnapshotAck
)


@lru_cache(GROUPS_KEPT)
def group_to_wire(group: GroupId) -> pb.GroupId:
    """Return the group's id to copy into a message.

    Do not change it: the next message of the group gets the same one.
    """
    return pb.GroupId(topic_id=group.topic_id, partition=group.partition)


def group_from_wire(group: pb.GroupId) -> GroupId:
    if len(group.topic_id) != 16:
        raise InvalidRequest("a group's topic id has 16 bytes")
    return GroupId(TopicId(group.topic_id), group.partition)


def to_wire(group: GroupId, message: Message) -> tuple[pb.Peer, list[bytes]]:
    """Return the protobuf head, and the parts of the body (entries as they are stored in the log)."""
    g = group_to_wire(group)
    match message:
        case Append(term, prev_index, prev_term, commit, entries):
            head = pb.Append(
                group=g, term=term, prev_index=prev_index, prev_term=prev_term, commit=commit, entries=len(entries)
            )
            return pb.Peer(append=head), [part for entry in entries for part in (entry.head, entry.payload)]
        case AppendAck(term, durable, received, conflict, next_, next_term, commit, count, read_id):
            ack = pb.AppendAck(
                group=g, term=term, durable=durable, received=received, conflict=conflict, next=next_,
                next_term=next_term, commit=commit, count=count, read_id=read_id,
            )  # fmt: skip
            return pb.Peer(append_ack=ack), []
        case CommitNotice(term, commit, ack_wanted, read_id):
            notice = pb.CommitNotice(group=g, term=term, commit=commit, ack_wanted=ack_wanted, read_id=read_id)
            return pb.Peer(commit_notice=notice), []
        case RequestVote(term, last_index, last_term, pre, transfer, count, config_index, config_term):
            request = pb.RequestVote(
                group=g, term=term, last_index=last_index, last_term=last_term, pre=pre, transfer=transfer, count=count,
                config_index=config_index, config_term=config_term,
            )  # fmt: skip
            return pb.Peer(request_vote=request), []
        case Vote(term, granted, pre, count):
            return pb.Peer(vote=pb.Vote(group=g, term=term, granted=granted, pre=pre, count=count)), []
        case TimeoutNow(term, manual):
            return pb.Peer(timeout_now=pb.TimeoutNow(group=g, term=term, manual=manual)), []
        case InstallSnapshot() | SnapshotChunk() | InstallSnapshotAck():
            return _snapshot_to_wire(g, message)


def _snapshot_to_wire(
    g: pb.GroupId, message: InstallSnapshot | SnapshotChunk | InstallSnapshotAck
) -> tuple[pb.Peer, list[bytes]]:
    match message:
        case InstallSnapshot(term, index, entry_term, entry_crc, next_offset, append_time_us, size, crc):
            offer = pb.InstallSnapshot(
                group=g, term=term, index=index, entry_term=entry_term, entry_crc=entry_crc, next_offset=next_offset,
                append_time_us=append_time_us, size=size, crc=crc,
            )  # fmt: skip
            return pb.Peer(install_snapshot=offer), []
        case SnapshotChunk(term, index, crc, position, body):
            chunk = pb.SnapshotChunk(
                group=g, term=term, index=index, crc=crc, position=position, body_crc=crc32c(body)
            )  # fmt: skip
            return pb.Peer(snapshot_chunk=chunk), [body]
        case InstallSnapshotAck(term, index, crc, received, count):
            ack = pb.InstallSnapshotAck(group=g, term=term, index=index, crc=crc, received=received, count=count)
            return pb.Peer(install_snapshot_ack=ack), []


def from_wire(head: pb.Peer, body: bytes | memoryview) -> tuple[GroupId, Message] | None:
    """Return the group and the message, or None if `head` is no Raft message.

    Raises InvalidRequest or CorruptData if a peer sent nonsense. All checksums of entries and chunks are verified.
    """
    match head.WhichOneof("message"):
        case "append":
            a = head.append
            entries = list(iter_entries(body)) if len(body) else []
            # The count is in the head, so a body that was cut between two entries does not pass for a shorter message.
            if len(entries) != a.entries:
                raise InvalidRequest(f"append announced {a.entries} entries and carried {len(entries)}")
            return group_from_wire(a.group), Append(a.term, a.prev_index, a.prev_term, a.commit, entries)
        case "append_ack":
            k = head.append_ack
            return group_from_wire(k.group), AppendAck(
                term=k.term,
                durable=k.durable,
                received=k.received,
                conflict=k.conflict,
                next=k.next,
                next_term=k.next_term,
                commit=k.commit,
                count=k.count,
                read_id=k.read_id,
            )
        case "commit_notice":
            c = head.commit_notice
            return group_from_wire(c.group), CommitNotice(c.term, c.commit, c.ack_wanted, c.read_id)
        case "request_vote":
            r = head.request_vote
            return group_from_wire(r.group), RequestVote(
                term=r.term,
                last_index=r.last_index,
                last_term=r.last_term,
                pre=r.pre,
                transfer=r.transfer,
                count=r.count,
                config_index=r.config_index,
                config_term=r.config_term,
            )
        case "vote":
            v = head.vote
            return group_from_wire(v.group), Vote(v.term, v.granted, v.pre, v.count)
        case "timeout_now":
            t = head.timeout_now
            return group_from_wire(t.group), TimeoutNow(t.term, t.manual)
        case _:
            return _snapshot_from_wire(head, body)


def _snapshot_from_wire(head: pb.Peer, body: bytes | memoryview) -> tuple[GroupId, Message] | None:
    match head.WhichOneof("message"):
        case "install_snapshot":
            o = head.install_snapshot
            return group_from_wire(o.group), InstallSnapshot(
                term=o.term,
                index=o.index,
                entry_term=o.entry_term,
                entry_crc=o.entry_crc,
                next_offset=o.next_offset,
                append_time_us=o.append_time_us,
                size=o.size,
                crc=o.crc,
            )
        case "snapshot_chunk":
            p = head.snapshot_chunk
            if not 0 < len(body) <= SNAPSHOT_CHUNK_BYTES:
                raise InvalidRequest(f"a chunk of a snapshot has up to {SNAPSHOT_CHUNK_BYTES} bytes, not {len(body)}")
            chunk = bytes(body)
            if crc32c(chunk) != p.body_crc:
                raise CorruptData("a chunk of a snapshot does not match its checksum")
            return group_from_wire(p.group), SnapshotChunk(p.term, p.index, p.crc, p.position, chunk)
        case "install_snapshot_ack":
            k = head.install_snapshot_ack
            return group_from_wire(k.group), InstallSnapshotAck(k.term, k.index, k.crc, k.received, k.count)
        case _:
            return None

"""Raft messages as frozen values, and their protobuf form. Decisions see only these values."""

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
SNAPSHOT_CHUNK_BYTES = 256 << 10  # of an applied state, in one message


@value
class RequestVote:
    """A candidate asks. `pre`: would you vote? `transfer`: the leader itself asked for this election."""

    term: int
    last_index: int
    last_term: int
    pre: bool
    transfer: bool
    count: int  # the candidate's incarnation count in this group
    config_index: int = 0  # the newest CONFIG that the candidate knows to be committed, and that entry's term
    config_term: int = 0


@value
class Vote:
    """An answer to RequestVote. `term` is the voter's own, or the term asked for when a pre-vote is granted."""

    term: int
    granted: bool
    pre: bool
    count: int


@value
class Append:
    """Entries that follow (prev_index, prev_term) in the leader's log; empty: do we match there?"""

    term: int
    prev_index: int
    prev_term: int
    commit: int
    entries: Sequence[Entry] = field(default=(), repr=False)


@value
class AppendAck:
    """What a follower holds. `durable` is synced and matches this term's leader; `received` matches only. On conflict
    nothing is said to match, and `received` is where the follower's log ends."""

    term: int
    durable: int
    received: int
    conflict: bool
    next: int  # on conflict: where the leader should go on
    next_term: int  # on conflict: term of the entry before `next`
    commit: int  # the commit index that this follower knows
    count: int
    read_id: int = 0  # the greatest round of a CommitNotice of this term that it saw


@value
class CommitNotice:
    """min(commit, matchIndex of the receiver), valid in `term` alone."""

    term: int
    commit: int
    ack_wanted: bool
    read_id: int = 0  # above 0: to be answered with it


@value
class TimeoutNow:
    """The leader hands over: stand for election at once. `manual`: because an operator said so."""

    term: int
    manual: bool = False


@value
class InstallSnapshot:
    """The applied state right before the leader's first entry, for who is behind that. `index` is committed."""

    term: int
    index: int  # the last entry that the state includes
    entry_term: int
    entry_crc: int
    next_offset: int
    append_time_us: int
    size: int  # bytes of the whole state
    crc: int  # of the whole state


@value
class SnapshotChunk:
    """Bytes of the state that (index, crc) names, from `position`; at most SNAPSHOT_CHUNK_BYTES."""

    term: int
    index: int
    crc: int
    position: int
    body: bytes = field(repr=False)


@value
class InstallSnapshotAck:
    """How much of a state a follower holds without a gap. That it has all of it, or needs none, an AppendAck says."""

    term: int
    index: int
    crc: int
    received: int  # bytes; to go on from here
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
    """To be copied into a message, and not to be changed: the next message of the group gets the same one."""
    return pb.GroupId(topic_id=group.topic_id, partition=group.partition)


def group_from_wire(group: pb.GroupId) -> GroupId:
    if len(group.topic_id) != 16:
        raise InvalidRequest("a group's topic id has 16 bytes")
    return GroupId(TopicId(group.topic_id), group.partition)


def to_wire(group: GroupId, message: Message) -> tuple[pb.Peer, list[bytes]]:
    """The protobuf head, and the body's chunks (entries as they lie in the log)."""
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
            return _state_to_wire(g, message)


def _state_to_wire(
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
            piece = pb.SnapshotChunk(
                group=g, term=term, index=index, crc=crc, position=position, body_crc=crc32c(body)
            )  # fmt: skip
            return pb.Peer(snapshot_chunk=piece), [body]
        case InstallSnapshotAck(term, index, crc, received, count):
            ack = pb.InstallSnapshotAck(group=g, term=term, index=index, crc=crc, received=received, count=count)
            return pb.Peer(install_snapshot_ack=ack), []


def from_wire(head: pb.Peer, body: bytes | memoryview) -> tuple[GroupId, Message] | None:
    """The group and message of a Raft message; None when `head` is not one.

    Raises InvalidRequest or CorruptData when a peer sent nonsense: all checksums of entries and pieces are verified.
    """
    match head.WhichOneof("message"):
        case "append":
            a = head.append
            entries = list(iter_entries(body)) if len(body) else []
            if len(entries) != a.entries:
                raise InvalidRequest(f"append announced {a.entries} entries and carried {len(entries)}")
            return group_from_wire(a.group), Append(a.term, a.prev_index, a.prev_term, a.commit, entries)
        case "append_ack":
            k = head.append_ack
            return group_from_wire(k.group), AppendAck(
                k.term, k.durable, k.received, k.conflict, k.next, k.next_term, k.commit, k.count, k.read_id
            )
        case "commit_notice":
            c = head.commit_notice
            return group_from_wire(c.group), CommitNotice(c.term, c.commit, c.ack_wanted, c.read_id)
        case "request_vote":
            r = head.request_vote
            return group_from_wire(r.group), RequestVote(
                r.term, r.last_index, r.last_term, r.pre, r.transfer, r.count, r.config_index, r.config_term
            )
        case "vote":
            v = head.vote
            return group_from_wire(v.group), Vote(v.term, v.granted, v.pre, v.count)
        case "timeout_now":
            t = head.timeout_now
            return group_from_wire(t.group), TimeoutNow(t.term, t.manual)
        case _:
            return _state_from_wire(head, body)


def _state_from_wire(head: pb.Peer, body: bytes | memoryview) -> tuple[GroupId, Message] | None:
    match head.WhichOneof("message"):
        case "install_snapshot":
            o = head.install_snapshot
            return group_from_wire(o.group), InstallSnapshot(
                o.term, o.index, o.entry_term, o.entry_crc, o.next_offset, o.append_time_us, o.size, o.crc
            )
        case "snapshot_chunk":
            p = head.snapshot_chunk
            if not 0 < len(body) <= SNAPSHOT_CHUNK_BYTES:
                raise InvalidRequest(f"a piece of a state has up to {SNAPSHOT_CHUNK_BYTES} bytes, not {len(body)}")
            piece = bytes(body)
            if crc32c(piece) != p.body_crc:
                raise CorruptData("a piece of a state does not match its checksum")
            return group_from_wire(p.group), SnapshotChunk(p.term, p.index, p.crc, p.position, piece)
        case "install_snapshot_ack":
            k = head.install_snapshot_ack
            return group_from_wire(k.group), InstallSnapshotAck(k.term, k.index, k.crc, k.received, k.count)
        case _:
            return None

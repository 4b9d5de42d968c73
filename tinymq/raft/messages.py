"""Raft messages as frozen values, and their protobuf form. Decisions see only these values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tinymq.entry import Entry, iter_entries
from tinymq.errors import InvalidRequest
from tinymq.proto import peer_pb2 as pb
from tinymq.types import GroupId, TopicId


@dataclass(frozen=True, slots=True)
class RequestVote:
    """A candidate asks. `pre`: would you vote? `transfer`: the leader itself asked for this election."""

    term: int
    last_index: int
    last_term: int
    pre: bool
    transfer: bool
    count: int  # the candidate's incarnation count in this group


@dataclass(frozen=True, slots=True)
class Vote:
    """An answer to RequestVote. `term` is the voter's own, or the term asked for when a pre-vote is granted."""

    term: int
    granted: bool
    pre: bool
    count: int


@dataclass(frozen=True, slots=True)
class Append:
    """Entries that follow (prev_index, prev_term) in the leader's log; empty: do we match there?"""

    term: int
    prev_index: int
    prev_term: int
    commit: int
    entries: Sequence[Entry] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class AppendAck:
    """What a follower holds. `durable` is synced and matches this term's leader; `received` matches only."""

    term: int
    durable: int
    received: int
    conflict: bool
    next: int  # on conflict: where the leader should go on
    next_term: int  # on conflict: term of the entry before `next`
    commit: int  # the commit index that this follower knows
    count: int


@dataclass(frozen=True, slots=True)
class CommitNotice:
    """min(commit, matchIndex of the receiver), valid in `term` alone."""

    term: int
    commit: int
    ack_wanted: bool


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader hands over: stand for election at once."""

    term: int


Message = RequestVote | Vote | Append | AppendAck | CommitNotice | TimeoutNow


def group_to_wire(group: GroupId) -> pb.GroupId:
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
        case AppendAck(term, durable, received, conflict, next_, next_term, commit, count):
            ack = pb.AppendAck(
                group=g, term=term, durable=durable, received=received, conflict=conflict, next=next_,
                next_term=next_term, commit=commit, count=count,
            )  # fmt: skip
            return pb.Peer(append_ack=ack), []
        case CommitNotice(term, commit, ack_wanted):
            return pb.Peer(commit_notice=pb.CommitNotice(group=g, term=term, commit=commit, ack_wanted=ack_wanted)), []
        case RequestVote(term, last_index, last_term, pre, transfer, count):
            request = pb.RequestVote(
                group=g, term=term, last_index=last_index, last_term=last_term, pre=pre, transfer=transfer, count=count
            )
            return pb.Peer(request_vote=request), []
        case Vote(term, granted, pre, count):
            return pb.Peer(vote=pb.Vote(group=g, term=term, granted=granted, pre=pre, count=count)), []
        case TimeoutNow(term):
            return pb.Peer(timeout_now=pb.TimeoutNow(group=g, term=term)), []


def from_wire(head: pb.Peer, body: bytes | memoryview) -> tuple[GroupId, Message] | None:
    """The group and message of a Raft message; None when `head` is not one.

    Raises InvalidRequest or CorruptData when a peer sent nonsense: every entry's checksums are verified here.
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
                k.term, k.durable, k.received, k.conflict, k.next, k.next_term, k.commit, k.count
            )
        case "commit_notice":
            c = head.commit_notice
            return group_from_wire(c.group), CommitNotice(c.term, c.commit, c.ack_wanted)
        case "request_vote":
            r = head.request_vote
            return group_from_wire(r.group), RequestVote(r.term, r.last_index, r.last_term, r.pre, r.transfer, r.count)
        case "vote":
            v = head.vote
            return group_from_wire(v.group), Vote(v.term, v.granted, v.pre, v.count)
        case "timeout_now":
            return group_from_wire(head.timeout_now.group), TimeoutNow(head.timeout_now.term)
        case _:
            return None

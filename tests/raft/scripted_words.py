"""The words of a transcript: messages, entries, members, and the changes of a replica since the previous comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.raft.scripted_brokers import ScriptedBroker, Seen, Sent
from tinymq.format.entry import Entry, Kind
from tinymq.raft.rules.membership import Membership, Replica, parse_membership
from tinymq.raft.rules.messages import (
    Append,
    AppendAck,
    CommitNotice,
    InstallSnapshot,
    InstallSnapshotAck,
    Message,
    RequestVote,
    SnapshotChunk,
    TimeoutNow,
    Vote,
    from_wire,
)

Names = Mapping[bytes, str]
"""Names of data directories, by incarnation."""

KIND = {
    Append: "Append", AppendAck: "Ack", CommitNotice: "Notice", TimeoutNow: "TimeoutNow", Vote: "Vote",
    InstallSnapshot: "InstallSnapshot", SnapshotChunk: "SnapshotChunk", InstallSnapshotAck: "InstallSnapshotAck",
}  # fmt: skip


def name_replica(replica: Replica, names: Names) -> str:
    """`2`; `2'` for its second data directory; `2+1` once its count was raised."""
    name = names.get(replica.incarnation, f"nobody for {replica.broker_id}")
    return name + (f"+{replica.count}" if replica.count else "")


def name_members(membership: Membership, names: Names) -> str:
    return " ".join(name_replica(r, names) for r in membership.replicas)


def name_entry(entry: Entry, names: Names) -> str:
    place = f"{entry.index}/t{entry.term}"
    match entry.header.kind:
        case Kind.NOOP:
            return f"{place} NOOP"
        case Kind.CONFIG:
            return f"{place} CONFIG({name_members(parse_membership(entry.payload), names)})"
        case _:
            return f"{place} {bytes(entry.payload).decode(errors='replace').rstrip('.')}"


def name_entries(entries: Iterable[Entry], names: Names) -> str:
    return shorten(name_entry(entry, names) for entry in entries)


def shorten(found: Iterable[str]) -> str:
    """Leave out the middle of a long list."""
    words = list(found)
    if len(words) > 8:
        words = [*words[:2], f"… {len(words) - 4} more …", *words[-2:]]
    return ", ".join(words)


def kind_of(sent: Sent) -> str:
    """Return the word by which a command selects this message."""
    message = _raft(sent)
    if message is None:
        return "Request" if sent.head.HasField("request") else "Reply"
    if isinstance(message, RequestVote):
        return "PreVote" if message.pre else "RequestVote"
    return KIND[type(message)]


def describe(sent: Sent, names: Names) -> str:
    return f"{sent.source}->{sent.target} {kind_of(sent)} {_content(sent, names)}".rstrip()


def _raft(sent: Sent) -> Message | None:
    found = from_wire(sent.head, sent.body)
    return None if found is None else found[1]


def _content(sent: Sent, names: Names) -> str:
    match _raft(sent):
        case RequestVote() as request:
            asked_for = ", on the leader's request" if request.transfer else ""
            return f"for t{request.term}, log ends at {request.last_index}/t{request.last_term}{asked_for}"
        case Vote() as vote:
            answer = "yes" if vote.granted else "no"
            return f"{answer} to the pre-vote, t{vote.term}" if vote.pre else f"{answer}, t{vote.term}"
        case Append() as append:
            entries = name_entries(append.entries, names) or "nothing"
            return f"t{append.term} after {append.prev_index}/t{append.prev_term}: {entries}; commit {append.commit}"
        case AppendAck() as ack:
            return _ack(ack)
        case CommitNotice() as notice:
            wanted = ", answer wanted" if notice.ack_wanted else ""
            return f"t{notice.term} commit {notice.commit}{wanted}" + _read_id(notice.read_id)
        case TimeoutNow(term):
            return f"t{term}"
        case InstallSnapshot() as offer:
            return f"t{offer.term} of the state at {offer.index}/t{offer.entry_term}"
        case SnapshotChunk() as piece:
            return f"t{piece.term} of the state at {piece.index}, from byte {piece.position}"
        case InstallSnapshotAck() as state:
            return f"t{state.term} of the state at {state.index}: {state.received} bytes"
        case None:
            return sent.head.request.method if sent.head.HasField("request") else sent.head.reply.error_code


def _ack(ack: AppendAck) -> str:
    count = f", count {ack.count}" if ack.count else ""
    if ack.conflict:
        return f"t{ack.term} conflict: continue at {ack.next} after t{ack.next_term}, commit {ack.commit}{count}"
    received = f", received {ack.received}" if ack.received != ack.durable else ""
    return f"t{ack.term} durable {ack.durable}{received}, commit {ack.commit}{_read_id(ack.read_id)}{count}"


def _read_id(number: int) -> str:
    return f", read {number}" if number else ""


# ---- changes of a replica --------------------------------------------------------------------------------


def changes(broker: ScriptedBroker, names: Names, known: dict[tuple[int, int], str]) -> list[str]:
    """Return the changes of `broker` since the previous comparison, as lines without its number. Names new entries."""
    before, now = broker.seen, look(broker, names)
    broker.seen = now
    lines: list[str] = []
    if now.failure != before.failure:
        lines.append(f"is {now.role}: {now.failure}" if now.failure else "starts with an empty log")
    if now.term != before.term:
        lines.append(f"is in term {now.term}")
    if now.voted_for is not None and (now.term, now.voted_for) != (before.term, before.voted_for):
        lines.append(f"votes for {'itself' if now.voted_for == broker.id else now.voted_for}")
    lines += _roles(before, now)
    lines += _log(broker, before, now, names, known)
    if now.commit != before.commit:
        lines.append(f"commits up to {now.commit}")
    if now.applied != before.applied:
        lines.append(f"applies up to {now.applied}")
    if now.members != before.members:
        lines.append(f"has the members {now.members}")
    for call in broker.machine.calls[before.calls :]:
        lines.append("may accept writes" if call.startswith("lead") else "accepts no writes any more")
    for position in broker.machine.unknown[before.unknown :]:
        lines.append(f"ends the wait for {position.index}/t{position.term}: outcome unknown")
    return lines


def look(broker: ScriptedBroker, names: Names) -> Seen:
    group, log = broker.group, broker.group.log
    entries = {i: log.term_at(i) or 0 for i in range(log.first_index, log.last_index + 1)}
    return Seen(
        term=group.term,
        voted_for=group.replica.state.voted_for,
        role=group.role.value,
        leader=group.leader,
        entries=entries,
        durable=log.durable_index,
        commit=group.commit_index,
        applied=group.applied_index,
        members=name_members(group.membership, names),
        calls=len(broker.machine.calls),
        unknown=len(broker.machine.unknown),
        failure="" if group.failure is None else str(group.failure),
    )


def _roles(before: Seen, now: Seen) -> list[str]:
    if (now.role, now.leader) == (before.role, before.leader):
        return []
    match now.role:
        case "leader":
            return [f"LEADS term {now.term}"]
        case "candidate":
            return ["campaigns"]
        case "follower" | "learner":
            learner = " as a learner" if now.role == "learner" else ""
            return [f"follows {'nobody' if now.leader is None else now.leader}{learner}"]
        case _:
            return []


def _log(broker: ScriptedBroker, before: Seen, now: Seen, names: Names, known: dict[tuple[int, int], str]) -> list[str]:
    lines = []
    gone = sorted(i for i, term in before.entries.items() if now.entries.get(i) != term)
    new = sorted(i for i, term in now.entries.items() if before.entries.get(i) != term)
    first = broker.group.log.first_index
    if gone and first > gone[0]:
        lines.append(f"has a log that begins at {first}")
    elif gone:
        lines.append("truncates " + " to ".join(f"{i}/t{before.entries[i]}" for i in (gone[0], gone[-1])[: len(gone)]))
    if new:
        for entry in broker.group.log.reader.tail(new[0], 1 << 30) or ():
            known[entry.index, entry.term] = name_entry(entry, names)
        lines.append("appends " + shorten(known[i, now.entries[i]] for i in new))
    cut = [index for index in gone if index >= first]
    left = min(before.durable, cut[0] - 1) if cut else before.durable  # the synced part, without new entries
    if now.durable > left or (now.durable < left and not gone):
        lines.append(f"has synced up to {now.durable}")
    return lines

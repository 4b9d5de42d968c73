"""What transactions, sets and half messages store and send between brokers: entries of a partition, commands and
snapshots of `__coordinator`, and the calls between coordinators and leaders.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from tests.broker.coordinator import test_peer_transaction_calls as peers
from tests.broker.transactions import test_half_messages as halves
from tests.broker.transactions import test_sink_applications as sinks
from tests.broker.transactions import test_transactional_ids as ids
from tests.broker.values import name_of
from tests.fakes.batches import payload
from tests.fuzz.driver import Target
from tests.fuzz.formats import transacted
from tinymq.base.errors import CorruptData, InvalidRequest
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator.transaction_coordinator import StandingQuestion
from tinymq.broker.members.coordinator_replica import ENTRY_VERSION, CoordinatorReplica, pack_change
from tinymq.broker.members.group_members import Member, Members, MembersDelta, Owned
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.state.state import PartitionState
from tinymq.broker.transactions.commands import COMMAND_VERSION, parse_command
from tinymq.broker.transactions.half.half_commands import parse_half_command
from tinymq.broker.transactions.message_parts import pack_places, pack_ref
from tinymq.broker.transactions.rules import Standing
from tinymq.format.entry import ENTRY_VERSION as FIRST_VERSION
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry
from tinymq.format.transactional import (
    TRANSACTIONAL_VERSION,
    PublishedItems,
    TransactionalHead,
    items_of,
    pack_discard,
    pack_publish,
    pack_transactional,
    unpack_discard,
    unpack_transactional,
)
from tinymq.proto import transaction_pb2 as pb

NOW_US = 1_000

# ---- a partition of __coordinator ---------------------------------------------------------------------------------


def coordinator_commands() -> list[bytes]:
    """Every command, behind a byte with the version of its entry."""
    written_down = [golden for kinds in (ids.GOLDEN, sinks.GOLDEN, halves.GOLDEN) for _, golden in kinds.values()]
    place, member = PartitionId(b"t" * 16, 0), Member(b"s" * 16, "client", False)
    joined = MembersDelta(
        {"m": member, "left": None}, {place: Owned("m", 1, False), place._replace(partition=1): None}, 1
    )
    changes = [pack_change("billing", Members(7), joined, remove=remove) for remove in (False, True)]
    return [
        *[bytes([COMMAND_VERSION]) + bytes.fromhex(golden) for golden in written_down],
        *[bytes([ENTRY_VERSION]) + change for change in changes],
    ]


def replica(*commands: bytes) -> CoordinatorReplica:
    made = CoordinatorReplica("__coordinator/0", lambda broker: None)
    for number, command in enumerate(commands, 1):
        apply_to(made, number, command)
    return made


def apply_to(to: CoordinatorReplica, index: int, data: bytes) -> None:
    version = data[0] if data and data[0] == ENTRY_VERSION else COMMAND_VERSION
    new = NewEntry(Kind.COMMAND, data[1:], version=version)
    to.apply(make_entry(new, index=index, term=1, prev_crc=0, base_offset=0, append_time_us=NOW_US + index))


@cache
def coordinator_states() -> tuple[bytes, ...]:
    """With transactional ids, with sets, with half messages; with members and all others together."""
    alone = [bytes.fromhex(state) for state in (ids.GOLDEN_STATE, sinks.GOLDEN_STATE, halves.GOLDEN_STATE)]
    return *alone, replica(*coordinator_commands()[-2:-1]).dump() + b"".join(alone)


def loaded(state: bytes) -> CoordinatorReplica:
    made = replica()
    made.load(state)
    return made


def apply_coordinator(data: bytes) -> object:
    """`apply` is total, and a copy of the state behaves the same, which comes back from its bytes."""
    first, copy = loaded(coordinator_states()[-1]), loaded(coordinator_states()[-1])
    before = first.dump()
    for each in (first, copy):
        apply_to(each, 1, data)
    after = first.dump()
    assert copy.dump() == after
    assert loaded(after).dump() == after
    if data[:1] != bytes([ENTRY_VERSION]) and parse_command(data[1:]) is None and parse_half_command(data[1:]) is None:
        assert after == before, "bytes that are no command change nothing"
        raise InvalidRequest("no command")
    return after


def load_coordinator(data: bytes) -> object:
    """An accepted state comes back from its bytes, and takes every command; a refused one leaves everything."""
    made = loaded(coordinator_states()[0])
    before = made.dump()
    try:
        made.load(data)
    except CorruptData:
        assert made.dump() == before
        raise
    again = loaded(made.dump())
    for number, command in enumerate(coordinator_commands(), 1):
        assert again.dump() == made.dump()
        for each in (made, again):
            apply_to(each, number, command)
    return made.dump()


# ---- a partition --------------------------------------------------------------------------------------------------


def transactional_entries() -> list[bytes]:
    """Entries about batches of transactions: a byte for the kind, and the payload."""
    known = transacted().state.staged
    (open_one,) = list(known)
    staged = known.get(open_one)
    assert staged is not None
    batch, fresh = payload(2), TransactionId(9, 0, 1)
    heads = [
        TransactionalHead(*name_of(transaction), coordinator=1, writer=0, batch_number=number, max_timestamp_us=5)
        for transaction, number in ((fresh, 0), (open_one, len(staged.entries)))
    ]
    return [
        *[bytes([Kind.STAGED]) + pack_transactional(head, batch) for head in heads],
        *[bytes([Kind.DISCARD]) + pack_discard(name_of(transaction)) for transaction in (open_one, fresh)],
        bytes([Kind.PUBLISH]) + pack_publish(name_of(open_one), items_of(staged.entries)),
    ]


def entry_of(state: PartitionState, data: bytes) -> Entry:
    kind = Kind(data[0]) if data and data[0] in (Kind.DISCARD, Kind.PUBLISH) else Kind.STAGED
    records = 0
    if kind is Kind.PUBLISH:
        try:
            records = PublishedItems(data[1:]).record_count
        except CorruptData:
            records = 1
    new = NewEntry(
        kind, data[1:], min(records, 1 << 20), version=FIRST_VERSION if kind is Kind.PUBLISH else TRANSACTIONAL_VERSION
    )
    index = state.applied_index + 1
    return make_entry(
        new, index=index, term=1, prev_crc=0, base_offset=state.high_watermark, append_time_us=index + NOW_US
    )


def apply_transactional(data: bytes) -> object:
    """`apply` is total, an entry that does not parse changes nothing, and a copy of the state behaves the same."""
    state, copy = transacted().state, PartitionState()
    copy.load(state.dump())
    before = [(each, state.staged.get(each)) for each in state.staged]
    entry = entry_of(state, data)
    for each in (state, copy):
        each.apply(entry)
    assert copy.dump() == state.dump()
    PartitionState().load(state.dump())
    after = [(each, state.staged.get(each)) for each in state.staged]
    try:
        if entry.header.kind == Kind.PUBLISH:
            header = entry.header
            PublishedItems(entry.payload).check(header.index, header.version, header.record_count)
        elif entry.header.kind == Kind.DISCARD:
            unpack_discard(entry.payload)
        else:
            unpack_transactional(entry.payload)
    except CorruptData:
        assert entry.header.kind == Kind.PUBLISH or after == before
        raise
    return after


# ---- between brokers ------------------------------------------------------------------------------------------------


def requests() -> list[bytes]:
    """Every request of a coordinator or a leader."""
    ref, topics = pack_ref(peers.T), pack_places([peers.A, peers.B])
    asked = [pb.StandingQuestion(transaction=ref, topic_id=b"t" * 16, partition=1, end=True)]
    made = [
        pb.TransactionRequest(held=pb.HeldRequest(transaction=ref, topics=topics, writers=[0, 2])),
        pb.TransactionRequest(end=pb.EndRequest(transaction=ref, topics=topics, publish=True)),
        pb.TransactionRequest(standing=pb.StandingRequest(coordinator=5, questions=asked)),
        pb.TransactionRequest(staged=pb.StagedRequest(transaction=ref, topic_id=b"t" * 16, partition=0)),
    ]
    return [each.SerializeToString() for each in made]


class Led(peers.Led):
    """A partition that answers about every transaction."""

    async def held(self, transaction: TransactionId, sets: Any = None) -> int:
        return 3

    async def staged_batch(self, transaction: TransactionId) -> bytes:
        return b"batch"


def serve(data: bytes) -> object:
    calls = peers.Cluster().broker(1, {peers.A: Led(), peers.B: Led()}, peers.Coordinator(Standing.OPEN))  # type: ignore[dict-item]
    return asyncio.run(calls.serve(data))


def replies() -> list[bytes]:
    """Every reply."""
    answers = [pb.PartitionAnswer(held=3), pb.PartitionAnswer(error_code="NotLeader")]
    standings = [pb.StandingReply.OPEN, pb.StandingReply.PUBLISH]
    made = [
        pb.PartitionReply(answers=answers), pb.StandingReply(standings=standings), pb.StagedReply(batch=b"batch"),
        pb.StagedReply(error_code="NotLeader"),
    ]  # fmt: skip
    return [each.SerializeToString() for each in made]


def read_reply(data: bytes) -> object:
    """Another broker answers each of the calls with these bytes: they are an answer, or none."""
    cluster = peers.Cluster()
    calls = cluster.broker(1, {}, None)
    cluster.broker(2, {peers.A: Led(), peers.B: Led()})
    cluster.leaders[peers.COORDINATOR] = 2

    async def answer(body: bytes) -> bytes:
        return data

    cluster.answers[2] = answer

    async def ask() -> object:
        held = await calls.held(peers.T, [peers.A, peers.B])
        ended = await calls.end(peers.T, [peers.A, peers.B], publish=True)
        assert {*held, *ended} <= {peers.A, peers.B}
        staged = await calls.staged(peers.T, peers.A)
        questions = [StandingQuestion(peers.T, peers.A, True)] * 2
        standings = await calls.standings(peers.COORDINATOR, questions)
        assert len(standings) >= len(questions)
        return held, ended, staged, standings

    return asyncio.run(ask())


def targets() -> list[Target]:
    return [
        Target("coordinator.commands", coordinator_commands, apply_coordinator),
        Target("coordinator.state", coordinator_states, load_coordinator),
        Target("partition.transactional", transactional_entries, apply_transactional),
        Target("peer.transactions", requests, serve),
        Target("peer.transaction_replies", replies, read_reply),
    ]

"""Each stored or sent format: entries, segment dumps, small files, the states of the registry and of partitions."""

from __future__ import annotations

import json
import random
import struct
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.broker import values
from tests.broker.state import test_staged_acks, test_staged_offsets
from tests.broker.state.queue_commands import A, Queue
from tests.broker.state.test_group_cursors import opened
from tests.broker.values import Applied, moves
from tests.fakes.batches import payload
from tests.fuzz import disks, reseal
from tests.fuzz.driver import Target
from tests.log.values import GROUP
from tests.registry.records import broker
from tinymq.base.errors import CorruptData
from tinymq.base.types import METADATA_GROUP
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.state.state import PartitionState
from tinymq.cli.verbs.log import describe
from tinymq.format.delayed import (
    PUBLISHED_VERSION,
    StagedHead,
    pack_discarded,
    pack_published,
    pack_staged,
    unpack_discarded,
    unpack_staged,
)
from tinymq.format.entry import ENTRY_VERSION, Entry, Kind, NewEntry, iter_entries, make_entry, parse_header
from tinymq.log.segment.dump import dump_segment, format_dumped
from tinymq.log.segment.index import parse_index
from tinymq.log.segment.snapshot_files import parse_snapshot
from tinymq.proto import partition_pb2 as part
from tinymq.proto import registry_pb2
from tinymq.raft.rules.membership import Membership, Replica, pack_membership, parse_membership
from tinymq.registry.state.state import RegistryState
from tinymq.registry.state.wire import broker_to_wire


def chain() -> list[Entry]:
    """Entries of every kind in a row."""
    made: list[Entry] = []
    for number, kind in enumerate([Kind.CONFIG, Kind.NOOP, Kind.DATA, Kind.COMMAND, Kind.DATA, Kind.STAGED], 1):
        last = made[-1].header if made else None
        data = payload(number) if kind is Kind.DATA else b"x" * number
        made.append(
            make_entry(
                NewEntry(kind, data, record_count=number if kind is Kind.DATA else 0),
                index=number,
                term=number // 2,
                prev_crc=last.header_crc if last else 0,
                base_offset=last.next_offset if last else 0,
                append_time_us=5,
            )
        )
    return made


def frames(entries: list[Entry]) -> bytes:
    return b"".join(entry.head + entry.payload for entry in entries)


def parse_entries(data: bytes) -> object:
    parsed = list(iter_entries(data))
    assert frames(parsed) == data
    for entry in parsed:
        assert entry.header.next_offset < 1 << 63, "Arrow stores it as a signed number"
        assert parse_header(entry.head) == entry.header
    return parsed


@cache
def _scratch() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="tinymq-fuzz-")
    _KEPT.append(folder)
    return Path(folder.name) / "1.log"


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def dump(data: bytes) -> object:
    """`tinymq log dump`, both its outputs."""
    path = _scratch()
    path.write_bytes(data)
    items = list(dump_segment(path))
    return [(format_dumped(item), json.dumps(describe(item))) for item in items]


def segments() -> list[bytes]:
    return [content for path, content in disks.folder()[0].items() if path.endswith(".log")]


def _of(suffix: str) -> list[bytes]:
    return [content for path, content in disks.folder()[0].items() if path.endswith(suffix)]


# ---- the registry -----------------------------------------------------------------------------------------


@cache
def commands() -> tuple[registry_pb2.Command, ...]:
    rng = random.Random(1)
    made = [registry_pb2.Command(register_broker=broker_to_wire(broker(n, rack="r"))) for n in (1, 2, 3)]
    for name in ("a", "b"):
        wanted = registry_pb2.CreateTopic(name=name, topic_id=rng.randbytes(16), partitions=2, replication_factor=2)
        made.append(registry_pb2.Command(create_topic=wanted))
    altered = [registry_pb2.Setting(name="retention_ms", value="5000")]
    made.append(registry_pb2.Command(alter_topic=registry_pb2.AlterTopic(name="b", settings=altered)))
    made.append(registry_pb2.Command(create_queue=registry_pb2.AddPartition(topic="b")))
    made.append(registry_pb2.Command(delete_queue=registry_pb2.DeletePartition(topic="b", partition=1)))
    for partition in (0, 2):
        reads = registry_pb2.SetConsumer(topic="b", partition=partition, channel="c", consumer="me")
        made.append(registry_pb2.Command(set_consumer=reads))
    made.append(registry_pb2.Command(unset_consumer=registry_pb2.UnsetConsumer(topic="b", channel="c")))
    made.append(registry_pb2.Command(delete_topic=registry_pb2.DeleteTopic(name="a")))
    made.append(registry_pb2.Command(take_producer_ids=registry_pb2.TakeProducerIds(count=10)))
    made.append(registry_pb2.Command(unregister_broker=registry_pb2.UnregisterBroker(broker_id=3, session=1)))
    for command in made:
        command.command_id, command.time_us = rng.randbytes(16), 5
    return tuple(made)


def registry(upto: int = 10) -> RegistryState:
    state = RegistryState()
    for command in commands()[:upto]:
        state.apply(command)
    return state


def apply_command(data: bytes) -> object:
    """`apply` is total, counts each command, and a copy of the state behaves the same."""
    state, copy = registry(), RegistryState()
    copy.load(state.dump())
    before = state.version
    came = state.apply_bytes(data)
    _, reply, effects = came
    assert state.version in (before, before + 1)
    assert not (reply.error_code and effects)
    assert copy.apply_bytes(data) == came
    assert copy.dump() == state.dump()
    RegistryState().load(state.dump())
    return reply


def load_registry(data: bytes) -> object:
    """An accepted state is dumped unchanged, and applies every command."""
    state = RegistryState()
    state.load(data)
    again = RegistryState()
    again.load(state.dump())
    assert again.dump() == state.dump()
    for command in commands():
        fresh = registry_pb2.Command.FromString(command.SerializeToString())
        fresh.command_id = b"f" + command.command_id[1:]
        if fresh.HasField("create_topic"):
            fresh.create_topic.name += "-fresh"
            fresh.create_topic.topic_id = b"f" + fresh.create_topic.topic_id[1:]
        state.apply(fresh)
    return state.dump()


# ---- a partition ------------------------------------------------------------------------------------------


def _appended(index: int, base_offset: int, data: bytes) -> Entry:
    return make_entry(
        NewEntry(Kind.DATA, data, record_count=2, max_timestamp_us=5),
        index=index,
        term=1,
        prev_crc=0,
        base_offset=base_offset,
        append_time_us=index,
    )


def _commands(index: int, base_offset: int, packed: bytes) -> Entry:
    return make_entry(
        NewEntry(Kind.COMMAND, packed), index=index, term=1, prev_crc=0, base_offset=base_offset, append_time_us=index
    )


def partition_states() -> list[bytes]:
    """Without a producer, with one, and with several."""
    made = []
    for producers in (0, 1, 4):
        state = PartitionState(5)
        for n in range(8):
            data = payload(2, producer=1 + n % producers, epoch=1, sequence=2 * n) if producers else payload(2)
            state.apply(_appended(1 + n, 2 * n, data))
        made.append(state.dump())
    others = (commanded().state, delayed(), transacted().state, with_staged_progress().state)
    return [*made, *(state.dump() for state in others)]


def delayed() -> PartitionState:
    """With two delayed batches that wait, one of them of a producer."""
    state = PartitionState(5)
    for entry in delayed_entries()[:2]:
        apply_delayed_entry(state, entry)
    return state


def transacted() -> Applied:
    """With a transaction that is open, and another one whose records are not all below the log start."""
    applied, one, other = Applied(), TransactionId(7, 0, 1), TransactionId(8, 1, 2)
    for number in range(3):
        applied.stage(one, number, 2)
        applied.stage(other, number, 1, writer=number, coordinator=1)
    applied.publish(one)
    applied.run(moves(3))
    return applied


def with_staged_progress() -> Queue:
    """With acks and an offset that wait for the ends of transactions."""
    queue = Queue()
    queue.open_session(A)
    queue.run(values.makes(7, "g"), opened(), version=2)
    acks = test_staged_acks.stages(queue, (0, 2), (4, 5))
    generation = queue.state.cursors["g"].generation
    offset = test_staged_offsets.stages(3, transaction=test_staged_offsets.OTHER, generation=generation)
    outcomes = queue.run(acks, offset, version=test_staged_acks.VERSION)
    assert [outcome.error for outcome in outcomes] == [None, None]
    return queue


def delayed_entries() -> list[bytes]:
    """Entries about delayed batches: a byte for the kind, and the payload."""
    of_producer, plain = payload(2, producer=3, epoch=1, sequence=0), payload(1)
    first = pack_staged(StagedHead(0, 0, 1_000_000, 0, 5), of_producer)
    second = pack_staged(StagedHead(0, 77, 0, 0, 5), plain)
    copied = pack_staged(StagedHead(1, 78, 0, 3, 5), of_producer)
    published = [pack_published(ids, plain) for ids in ([1], [1, 2])]
    return [
        *[bytes([Kind.STAGED]) + packed for packed in (first, second, copied)],
        *[bytes([Kind.DATA]) + packed for packed in published],
        *[bytes([Kind.DISCARD]) + pack_discarded(ids) for ids in ([2], [1, 2])],
    ]


def apply_delayed_entry(state: PartitionState, data: bytes) -> Entry:
    kind = Kind(data[0]) if data and data[0] in (Kind.DATA, Kind.DISCARD) else Kind.STAGED
    version = PUBLISHED_VERSION if kind is Kind.DATA else ENTRY_VERSION
    entry = make_entry(
        NewEntry(kind, data[1:], int(kind is Kind.DATA), version=version),
        index=state.applied_index + 1,
        term=1,
        prev_crc=0,
        base_offset=state.high_watermark,
        append_time_us=state.applied_index + 1,
    )
    state.apply(entry)
    return entry


def apply_delayed(data: bytes) -> object:
    """`apply` is total, and an entry that does not parse changes nothing; a copy of the state behaves the same."""
    state, copy = delayed(), PartitionState(5)
    before = list(state.delayed)
    copy.load(state.dump())
    entry = apply_delayed_entry(state, data)
    apply_delayed_entry(copy, data)
    assert copy.dump() == state.dump()
    PartitionState(5).load(state.dump())
    after = list(state.delayed)
    try:
        if entry.header.kind == Kind.DATA:
            assert len(entry.batch) < len(entry.payload)
        elif entry.header.kind == Kind.DISCARD:
            unpack_discarded(entry.payload)
        else:
            unpack_staged(entry.payload)
    except CorruptData:
        assert after == before
        raise
    return after


def commanded() -> Applied:
    """With channels, their takes, retention marks, a moved start, and holds."""
    applied = Applied()
    for n in range(6):
        applied.batch(2, size=20 + n)
        applied.run(*command_calls()[n % 5])
    return applied


def command_calls() -> list[list[part.Command]]:
    """Every command."""
    return [
        [values.opens("a", 3, 1), values.opens("b"), values.commits(2, "b"), values.holds(3), values.moves(1)],
        [values.seeks(2, 1, "a", 3), values.consumes(1, "b"), values.holds(4, 2), values.releases(1)],
        [values.opens("c"), values.deletes("c"), values.moves(4, part.MoveStart.RETENTION), values.consumes(2, "b")],
        [
            part.Command(make=part.MakeCursor(name="q", kind=part.QUEUE, group_id=7)),
            part.Command(make=part.MakeCursor(name="r", kind=part.QUEUE, group_id=8)),
            part.Command(drop=part.DropCursor(name="r", group_id=8)),
            values.acknowledged(),
            part.Command(note_message_id=part.NoteMessageId(message_id=bytes(16), window_ms=1000)),
            part.Command(skip_duplicate=part.SkipDuplicate(producer_id=1, first_sequence=4)),
            part.Command(note_copy=part.NoteMessageId(message_id=bytes(16), window_ms=1000)),
        ],
        queue_calls(),
        [
            values.makes(7, "g"),
            opened(),
            test_staged_offsets.stages(3),
            test_staged_offsets.stages(4, 1),
            test_staged_offsets.publishes(),
        ],
    ]


def queue_calls() -> list[part.Command]:
    """The commands of a queue group."""
    queue = part.QueueRef(group="q", group_id=7, generation=5)
    acked, failed = struct.pack("<QQQQ", 2, 3, 5, 7), struct.pack("<QII", 4, 1, 10)
    session, topic = b"s" * 16, b"t" * 16
    bury = part.BuryRecord(queue=queue, offset=3, message_id=session, topic_id=topic, headers=b"h")
    settle = part.SettleRecords(queue=queue, acked=acked, acked_in_order=acked, failed=failed)
    stage = part.StageAcks(producer_id=1, number=2, queue=queue, session=session, acked=acked[16:])
    end = part.EndQueueSession(queue=queue, session=session, failed=failed, returned=acked)
    return [
        part.Command(open_session=part.OpenQueueSession(queue=queue, session=session)),
        part.Command(settle=settle),
        part.Command(stage_acks=stage),
        part.Command(bury=bury),
        part.Command(raise_mark=part.RaiseGrantMark(queue=queue, granted_below=9)),
        part.Command(end_session=end),
        part.Command(buried=part.EndBurial(queue=queue, message_id=session)),
    ]


def apply_commands(data: bytes) -> object:
    """`apply` is total, a failed command changes nothing, and a copy of the state behaves the same."""
    applied = commanded()
    state, copy = applied.state, PartitionState()
    copy.load(state.dump())
    before = state.dump()
    outcomes = applied.raw(data)
    if all(outcome.error is not None for outcome in outcomes):
        assert state.dump()[16:] == before[16:]
    again = copy.apply(applied.entries[-1])
    assert [_said(outcome) for outcome in again or ()] == [_said(outcome) for outcome in outcomes]
    assert copy.dump() == state.dump()
    PartitionState().load(state.dump())
    return outcomes


def _said(outcome: CommandOutcome) -> object:
    return replace(outcome, error=None), outcome.error and (outcome.error.code, str(outcome.error))


def load_partition(data: bytes) -> object:
    """An accepted state is dumped unchanged, within its bound, and applies the next entries."""
    state = PartitionState(5)
    state.load(data)
    assert state.dump() == data
    assert len(state.producers) <= 5
    if max(state.high_watermark, state.record_bytes) > 1 << 62:
        return state  # no log gets there
    for n in range(3):
        end = state.high_watermark
        state.apply(_appended(100 + n, end, payload(2, producer=1 + n, epoch=1, sequence=0)))
        for said in command_calls():
            packed = part.Commands(commands=said).SerializeToString()
            assert len(state.apply(_commands(110 + n, state.high_watermark, packed)) or ()) == len(said)
    PartitionState(5).load(state.dump())
    return state


# ---- CONFIG -----------------------------------------------------------------------------------------------


def memberships() -> list[bytes]:
    three = tuple(Replica(n, bytes([n]) * 16, n - 1) for n in (1, 2, 3))
    return [pack_membership(Membership(group, 7, three)) for group in (GROUP, METADATA_GROUP)]


def load_membership(data: bytes) -> object:
    membership = parse_membership(data)
    assert parse_membership(pack_membership(membership)) == membership
    assert membership.quorum <= len(membership.replicas)
    assert all(len(r.incarnation) == 16 and r.broker_id for r in membership.replicas)
    return membership


def targets() -> list[Target]:
    return [
        Target("entries", lambda: [frames(chain()[:n]) for n in (1, 3, 6)], parse_entries, (reseal.entries,)),
        Target("dump", segments, dump, (reseal.segment,), bytes_max=12 << 20),
        Target("index", lambda: _of(".index"), parse_index, (reseal.index,)),
        Target("state", lambda: _of(".state"), lambda data: parse_snapshot(data[:40], data[40:]), (reseal.at_twelve,)),
        Target("registry.command", lambda: [c.SerializeToString() for c in commands()], apply_command),
        Target(
            "registry.dump", lambda: [registry(n).dump() for n in (0, 4, 5, 10, 14)], load_registry, (reseal.leading,)
        ),
        Target("partition.state", partition_states, load_partition, (reseal.leading,)),
        Target(
            "partition.commands",
            lambda: [part.Commands(commands=said).SerializeToString() for said in command_calls()],
            apply_commands,
        ),
        Target("partition.delayed", delayed_entries, apply_delayed),
        Target("config", memberships, load_membership),
    ]

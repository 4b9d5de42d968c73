"""The applied state as bytes: damaged bytes are refused and change nothing."""

from __future__ import annotations

import random
import struct

import pytest

from tests.broker.values import Applied, commits, consumes, deletes, holds, moves, opens, releases, seeks
from tests.fakes.batches import payload
from tests.fakes.raft_group import NOW_US
from tinymq.base.errors import CorruptData
from tinymq.broker.state.cursors import CHANNELS_MAX, CURSORS_MAX, TAKEN_MAX, Cursors
from tinymq.broker.state.producers import Producers
from tinymq.broker.state.retention_index import RetentionIndex
from tinymq.broker.state.state import PartitionState
from tinymq.format.entry import Kind, NewEntry, crc32c, make_entry
from tinymq.proto import partition_pb2 as pb

GOLDEN = (
    "042d3ac802000000050000000000000006000000000000005a000000000000000000000000000000080210031a260a016110021803200328"
    "8380f9c0c1c4820330013a10000000000000000000000000000000091a120a016210022002288380f9c0c1c482033002220d080210141881"
    "80f9c0c1c48203220d08051032188280f9c0c1c482032a1d0a1000000000000000000000000000000005100418c484b6c1c1c482032a1d0a"
    "1000000000000000000000000000000006100318848ec7ddc1c48203308580f9c0c1c482033a380200000000000000000000000000000000"
    "000007000000000000000002000000000000000000000000000000000000080100000000000000"
)


def with_everything() -> Applied:
    """A moved channel, a channel that took records, retention marks, a moved start, and a hold."""
    applied = Applied()
    applied.batch(2, size=20)
    applied.batch(3, size=30)
    applied.run(opens("a", epoch=3, start=1), opens("b"), seeks(2, 9, "a", epoch=3), consumes(7, "b"), consumes(8, "b"))
    applied.run(moves(2), holds(4, 5), holds(3, 6, lease_ms=60_000))
    applied.batch(1, size=40)
    return applied


def filled() -> PartitionState:
    state = PartitionState()
    for index in range(1, 4):
        data = payload(2, producer=index, sequence=0)
        state.apply(
            make_entry(
                NewEntry(Kind.DATA, data, record_count=2, max_timestamp_us=0),
                index=index,
                term=1,
                prev_crc=0,
                base_offset=2 * index - 2,
                append_time_us=NOW_US + index,
            )
        )
    return state


def test_a_dump_is_loaded_unchanged() -> None:
    state, other = filled(), PartitionState()
    other.load(state.dump())
    assert other.dump() == state.dump()
    assert (other.applied_index, other.high_watermark) == (3, 6)
    assert len(other.producers) == 3


def test_the_bytes_of_the_first_release_stay() -> None:
    """Brokers of that version have these bytes on their disks."""
    data = with_everything().state.dump()
    assert data.hex() == GOLDEN
    state = PartitionState()
    state.load(data)
    assert (state.log_start, state.kept_records, state.kept_bytes) == (2, 4, 70)
    assert state.cursors["a"].generation == 3
    assert state.dump() == data


def test_equal_states_have_equal_bytes_whatever_their_history() -> None:
    """Names and ids in another order; deleted, released and overtaken items leave only their counters."""
    one, two = Applied(), Applied()
    for applied, order in ((one, "abc"), (two, "abc")):
        applied.batch(5, size=10)
        applied.run(*[opens(name) for name in order])
    one.run(holds(1, 1), holds(2, 2), opens("z"), deletes("z"), releases(1))
    two.run(opens("y"), holds(2, 2), deletes("y"), holds(1, 3), releases(3))
    assert one.state.dump() == two.state.dump()


def test_a_replayed_and_a_loaded_state_behave_alike() -> None:
    rng = random.Random(3)
    one, other = Applied(), PartitionState()
    for n in range(600):
        one.batch(rng.randrange(1, 4), size=rng.choice([10, 500]), later_us=rng.choice([1, 1, 10**6]))
        if n % 5 == 0:
            at = rng.randrange(one.state.log_start, one.state.high_watermark + 1)
            some = [opens(f"c{n % 7}"), seeks(at, n, f"c{n % 7}"), consumes(n, f"c{n % 3}"), deletes(f"c{n % 11}")]
            one.run(*some, moves(max(0, at - 50)), holds(at, n % 3))
        for entry in one.entries[other.applied_index :]:
            other.apply(entry)
        if n % 17 == 0:
            data, other = other.dump(), PartitionState()
            other.load(data)
        assert other.dump() == one.state.dump()


def test_every_flipped_bit_and_every_cut_is_refused() -> None:
    data = with_everything().state.dump()
    state = PartitionState()
    empty = state.dump()
    for position in range(len(data)):
        with pytest.raises(CorruptData):
            state.load(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        with pytest.raises(CorruptData):
            state.load(data[:position])
    assert state.dump() == empty


def test_a_newer_version_and_invalid_producers_are_refused() -> None:
    body = bytearray(filled().dump()[4:])
    body[0] = 3
    with pytest.raises(CorruptData, match="version 3"):
        PartitionState().load(crc32c(bytes(body)).to_bytes(4, "little") + bytes(body))
    for nonsense in (b"x" * 24, b"\0" * 24, Producers().dump() + b"1"):
        with pytest.raises(CorruptData):
            Producers().load(nonsense)


def test_apply_is_total() -> None:
    state = PartitionState()
    for index, (kind, data) in enumerate(
        [(Kind.NOOP, b""), (Kind.CONFIG, b"?"), (Kind.DATA, b"not a batch"), (99, b"")]
    ):
        entry = make_entry(
            NewEntry(kind, data, record_count=int(kind == Kind.DATA)),
            index=index + 1,
            term=1,
            prev_crc=0,
            base_offset=0,
            append_time_us=0,
        )
        state.apply(entry)
    assert (state.applied_index, state.high_watermark) == (4, 0), "every kind of entry counts its own offsets"


def sealed(state: pb.State, *, end: int = 6, record_bytes: int = 90) -> bytes:
    """A dump with this content, valid or not, under a valid checksum."""
    body = struct.pack("<HHQQQQ", 2, 0, 5, end, record_bytes, 0) + state.SerializeToString(deterministic=True)
    return crc32c(body).to_bytes(4, "little") + body


def parsed() -> pb.State:
    return pb.State.FromString(with_everything().state.dump()[40:])


LIES = {
    "starts behind the end": lambda s: s.MergeFrom(pb.State(log_start=7)),
    "a position behind the end": lambda s: s.channels[0].MergeFrom(pb.Cursor(position=7)),
    "channels out of order": lambda s: s.channels.reverse(),
    "a channel twice": lambda s: s.channels.add().CopyFrom(s.channels[-1]),
    "no name": lambda s: s.channels[0].MergeFrom(pb.Cursor(channel="a b")),
    "half a request id": lambda s: s.channels[0].MergeFrom(pb.Cursor(last_seek=b"1234")),
    "too many cursors": lambda s: s.channels.extend([pb.Cursor(channel=f"c{n:05}") for n in range(CURSORS_MAX)]),
    "half of a taken range": lambda s: s.MergeFrom(pb.State(taken=s.taken[:30])),
    "taken twice": lambda s: s.MergeFrom(pb.State(taken=s.taken * 2)),
    "too much taken": lambda s: s.MergeFrom(
        pb.State(taken=b"".join(n.to_bytes(20, "little") + bytes(8) for n in range(TAKEN_MAX + 1)))
    ),
    "taken behind the end": lambda s: s.MergeFrom(pb.State(taken=bytes(20) + b"\6" + bytes(7))),
    "no retention mark": lambda s: s.ClearField("retention_marks"),
    "retention marks out of order": lambda s: s.retention_marks.reverse(),
    "a retention mark behind the end": lambda s: s.retention_marks[-1].MergeFrom(pb.RetentionMark(offset=7)),
    "a retention mark of more bytes": lambda s: s.retention_marks[-1].MergeFrom(pb.RetentionMark(bytes=91)),
    "a retention mark of the future": lambda s: s.retention_marks[-1].MergeFrom(pb.RetentionMark(append_us=1 << 60)),
    "a first retention mark behind the start": lambda s: s.retention_marks[0].MergeFrom(pb.RetentionMark(offset=3)),
    "retention marks before the start": lambda s: s.retention_marks.insert(0, pb.RetentionMark()),
    "a hold behind the end": lambda s: s.holds[0].MergeFrom(pb.HeldRange(offset=7)),
    "holds out of order": lambda s: s.holds.reverse(),
    "half a hold's id": lambda s: s.holds[0].MergeFrom(pb.HeldRange(hold_id=b"1")),
    "too many holds": lambda s: s.holds.extend([pb.HeldRange(hold_id=(99 + n).to_bytes(16, "big")) for n in range(64)]),
}


@pytest.mark.parametrize("lie", LIES)
def test_invalid_content_under_a_valid_checksum_is_refused(lie: str) -> None:
    state, target = parsed(), with_everything().state
    before = target.dump()
    assert sealed(state)[8:] == before[8:]
    PartitionState().load(sealed(state))
    LIES[lie](state)
    with pytest.raises(CorruptData):
        target.load(sealed(state))
    assert target.dump() == before


@pytest.mark.parametrize("more", [b"\x08\x02", b"\x98\x06\x01", b"\xff"], ids=["a field twice", "unknown", "cut"])
def test_other_bytes_of_the_same_state_are_refused(more: bytes) -> None:
    data = with_everything().state.dump()[4:] + more
    with pytest.raises(CorruptData):
        PartitionState().load(crc32c(data).to_bytes(4, "little") + data)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x0a\xff", b"nonsense", bytes(100)])
def test_a_command_entry_of_any_bytes_is_applied(data: bytes) -> None:
    applied = with_everything()
    before = applied.state.dump()[16:]
    assert all(outcome.error is not None for outcome in applied.raw(data))
    assert applied.state.dump()[16:] == before


def test_commands_with_the_greatest_numbers_are_applied() -> None:
    most, applied = (1 << 64) - 1, with_everything()
    applied.now_us = (1 << 63) - 100
    applied.run(
        opens("m", most, most), commits(most, "m", most, (1 << 32) - 1), seeks(most, 1, "m", most),
        moves(most), holds(most, 1, (1 << 32) - 1), pb.Command(release=pb.Release()), consumes(1, "m"),
    )  # fmt: skip
    assert applied.state.cursors["m"].epoch == most
    PartitionState().load(applied.state.dump())


def test_an_empty_table_is_loaded() -> None:
    state = pb.State()
    Cursors().dump(state)
    RetentionIndex().dump(state)
    assert state == pb.State()
    PartitionState().load(PartitionState().dump())


def test_the_largest_state_is_small() -> None:
    """The loop dumps it at the end of each segment; benchmarks/README.md says how long that takes."""
    applied = Applied()
    for n in range(3000):
        applied.batch(10, size=10, later_us=n)
    for at in range(0, CHANNELS_MAX, 500):
        applied.run(*[opens(f"a-channel-of-some-length-{n}", epoch=1 << 40) for n in range(at, at + 500)])
    for at in range(0, TAKEN_MAX, 1000):
        applied.run(*[consumes(n, f"a-channel-of-some-length-{n % 1000}") for n in range(at, at + 1000)])
    data = applied.state.dump()
    assert len(data) < 500_000
    other = PartitionState()
    other.load(data)
    assert other.dump() == data

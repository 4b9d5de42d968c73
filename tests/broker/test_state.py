"""The applied state as bytes: what is damaged is refused, and then nothing has changed."""

from __future__ import annotations

import pytest

from tests.fakes.batches import payload
from tests.fakes.raft_group import NOW_US
from tinymq.broker.producers import Producers
from tinymq.broker.state import PartitionState
from tinymq.entry import Kind, crc32c, make_entry
from tinymq.errors import CorruptData


def filled() -> PartitionState:
    state = PartitionState()
    for index in range(1, 4):
        data = payload(2, producer=index, sequence=0)
        state.apply(
            make_entry(
                kind=Kind.DATA,
                index=index,
                term=1,
                prev_crc=0,
                base_offset=2 * index - 2,
                record_count=2,
                append_time_us=NOW_US + index,
                max_timestamp_us=0,
                payload=data,
            )
        )
    return state


def test_what_is_dumped_comes_back() -> None:
    state, other = filled(), PartitionState()
    other.load(state.dump())
    assert other.dump() == state.dump()
    assert (other.applied_index, other.high_watermark) == (3, 6)
    assert len(other.producers) == 3


def test_every_flipped_bit_and_every_cut_is_refused() -> None:
    data = filled().dump()
    state = PartitionState()
    empty = state.dump()
    for position in range(len(data)):
        with pytest.raises(CorruptData):
            state.load(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        with pytest.raises(CorruptData):
            state.load(data[:position])
    assert state.dump() == empty


def test_a_newer_version_and_nonsense_producers_are_refused() -> None:
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
            kind=kind, index=index + 1, term=1, prev_crc=0, base_offset=0, record_count=int(kind == Kind.DATA),
            append_time_us=0, max_timestamp_us=0, payload=data,
        )  # fmt: skip
        state.apply(entry)
    assert (state.applied_index, state.high_watermark) == (4, 0), "an entry's own offsets count, whatever it holds"

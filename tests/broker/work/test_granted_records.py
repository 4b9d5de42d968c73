"""Which granted records are read without waiting: those whose batch is in memory, whole or cut out of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from tests.fakes.batches import payload
from tinymq.base.config import Limits
from tinymq.base.types import GroupId, TopicId
from tinymq.broker.work.granted_records import GrantedRecords
from tinymq.format.batch import Codec, decode_batch
from tinymq.format.entry import Kind, NewEntry, make_entry, pack_header

T = TypeVar("T")
HEAVY = 300_000  # bytes that unpack from a few


class Threads:
    """A BlockingRunner for reads that `read_now` must not begin."""

    async def run(self, call: Callable[[], T]) -> T:
        raise NotImplementedError("read_now waits for nothing")


def stored(batch: bytes, count: int) -> Any:
    """A partition whose log ends with this batch, at the offset 10."""
    new = NewEntry(Kind.DATA, batch, record_count=count)
    entry = make_entry(new, index=1, term=1, prev_crc=0, base_offset=10, append_time_us=7)
    frames = pack_header(entry.header) + bytes(entry.payload)
    reader = SimpleNamespace(tail_from_offset=lambda start, end, most: frames if start >= 10 else b"")
    group = SimpleNamespace(id=GroupId(TopicId(b"t" * 16), 0), log=SimpleNamespace(reader=reader))
    return SimpleNamespace(group=group, state=SimpleNamespace(epoch_cache=SimpleNamespace(newest_term=1)))


def read_now(batch: bytes, count: int, *offsets: int) -> list[tuple[int, list[bytes]]] | None:
    """What is read at once: first offset and values, by batch."""
    found = GrantedRecords(Threads(), Limits()).read_now(stored(batch, count), offsets)
    if found is None:
        return None
    return [(each.base_offset, decode_batch(each.payload, Limits()).column(1).to_pylist()) for each in found]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_part_of_a_batch_in_memory_is_cut_out_at_once(codec: Codec) -> None:
    batch = payload(5, codec=codec)
    assert read_now(batch, 5, 11) == [(11, [b"v1"])]
    assert read_now(batch, 5, 10, 13) == [(10, [b"v0"]), (13, [b"v3"])]
    assert read_now(batch, 5, 10, 11, 12) == [(10, [b"v0", b"v1", b"v2", b"v3", b"v4"])], "most of it is wanted"


def test_what_is_not_in_memory_or_takes_long_to_unpack_is_read_by_a_task() -> None:
    assert read_now(payload(5), 5, 9) is None
    assert read_now(payload(5, value=b"v" * HEAVY, codec=Codec.ZSTD), 5, 11) is None


def test_a_damaged_batch_is_left_to_the_read_that_reports_it() -> None:
    assert read_now(payload(5)[:-40], 5, 11) is None

"""Batches of transactions as bytes, and the frames that readers get of them."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from tests.fakes import batches
from tinymq.base.config import Limits
from tinymq.base.errors import CorruptData
from tinymq.client.consume import records
from tinymq.format import transactional
from tinymq.format.batch import check_batch
from tinymq.format.entry import HEADER_SIZE, Entry, Kind, NewEntry, crc32c, iter_entries, make_entry, parse_header
from tinymq.format.feature_level import knows_entry
from tinymq.format.made_frames import made_head
from tinymq.format.transactional import (
    END_SIZE,
    ITEM_SIZE,
    ITEMS_MAX,
    MADE_VERSION,
    RISING_VERSION,
    SCATTERED_VERSION,
    CopiedHead,
    Item,
    PublishedItems,
    TransactionalHead,
    TransactionName,
    items_of,
    pack_copied,
    pack_discard,
    pack_publish,
    pack_transactional,
    publish_version,
    unpack_copied,
    unpack_discard,
    unpack_transactional,
)

NAME = TransactionName(producer_id=7, number=3, epoch=1)
HEAD = TransactionalHead(
    producer_id=7, number=3, epoch=1, coordinator=5, writer=2, batch_number=9, max_timestamp_us=1_600_000_000_000_000
)
COPIED = CopiedHead(producer_id=7, number=3, epoch=1, coordinator=5, writer=2, batch_number=9, replaced_index=1234)
ITEMS = [Item(4, 0, 100, 2, 50, 0xAABBCCDD), Item(6, 2, 90, 1, 60, 1), Item(9, 3, 120, 5, 70, 2)]

GOLDEN = {
    "staged": (
        pack_transactional(HEAD, b"batch"),
        "07000000000000000300000000000000010000000500000002000000090000000000a40731af05006261746368",
    ),
    "copied": (
        pack_copied(COPIED, b"batch"),
        "0700000000000000030000000000000001000000050000000200000009000000d2040000000000006261746368",
    ),
    "discard": (pack_discard(NAME), "070000000000000003000000000000000100000000000000"),
    "publish": (
        pack_publish(NAME, ITEMS[:2]),
        "070000000000000003000000000000000100000002000000"
        "0400000000000000000000000000000064000000000000000200000032000000ddccbbaa"
        "060000000000000002000000000000005a00000000000000010000003c00000001000000",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_payloads_have_the_bytes_that_were_written_down(name: str) -> None:
    packed, golden = GOLDEN[name]
    assert packed.hex() == golden


def test_payloads_come_back_from_their_bytes() -> None:
    assert unpack_transactional(pack_transactional(HEAD, b"batch")) == (HEAD, b"batch")
    assert unpack_copied(pack_copied(COPIED, b"batch")) == (COPIED, b"batch")
    assert unpack_discard(pack_discard(NAME)) == NAME
    published = PublishedItems(pack_publish(NAME, ITEMS))
    assert published.name == NAME
    assert list(published) == ITEMS
    assert [published[number] for number in range(len(published))] == ITEMS
    assert published.record_count == 8


def test_the_drawings_have_neither_gaps_nor_overlaps() -> None:
    rows = re.findall(r"^ +(\d+) +(\d+) (\w+) +[ui]\d+", transactional.__doc__ or "", re.MULTILINE)
    ends = {"STAGED": 40, "copy": 40, "PUBLISH": END_SIZE, "item": ITEM_SIZE, "DISCARD": END_SIZE}
    starts = [number for number, (offset, _, _) in enumerate(rows) if offset == "0"]
    assert len(starts) == len(ends)
    for start, stop, size in zip(starts, [*starts[1:], len(rows)], ends.values(), strict=True):
        end = 0
        for offset, length, _ in rows[start:stop]:
            assert int(offset) == end
            end += int(length)
        assert end == size


def test_items_take_their_offsets_from_the_records_before_them() -> None:
    staged = [(4, 2, 50, 100, 0xAABBCCDD), (6, 1, 60, 90, 1), (9, 5, 70, 120, 2)]
    assert items_of(staged) == ITEMS


@pytest.mark.parametrize("count", [1, 2, 3, 1000])
def test_each_record_is_found_in_its_item(count: int) -> None:
    rng = random.Random(count)
    staged = [(index, rng.randint(1, 5), 10, 0, 0) for index in range(1, count + 1)]
    published = PublishedItems(pack_publish(NAME, items_of(staged)))
    expected = [number for number, (_, records, *_) in enumerate(staged) for _ in range(records)]
    assert [published.number_at(record) for record in range(published.record_count)] == expected


def test_a_publish_entry_says_in_its_version_whether_its_items_rise() -> None:
    scattered = [ITEMS[0]._replace(entry_index=8), ITEMS[1], ITEMS[2]]
    assert (publish_version(ITEMS), publish_version(ITEMS[:1])) == (RISING_VERSION, RISING_VERSION)
    assert publish_version(scattered) == SCATTERED_VERSION
    published = PublishedItems(pack_publish(NAME, scattered))
    published.check(10, SCATTERED_VERSION, 8)
    assert published.lowest_index == 6
    with pytest.raises(CorruptData, match="wrong order"):
        published.check(10, RISING_VERSION, 8)


def test_a_publish_entry_is_readable_from_behind_the_last_batch_that_is_gone() -> None:
    scattered = [ITEMS[0]._replace(entry_index=8), ITEMS[1], ITEMS[2]]
    rising, other = PublishedItems(pack_publish(NAME, ITEMS)), PublishedItems(pack_publish(NAME, scattered))
    assert [rising.kept_from(index) for index in (4, 5, 7, 10)] == [0, 1, 2, 3]
    assert [other.kept_from(index) for index in (6, 7, 9, 10)] == [0, 2, 2, 3]


# ---- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        b"", pack_discard(NAME), pack_publish(NAME, ITEMS)[:-1], pack_publish(NAME, ITEMS) + b"x",
        pack_publish(NAME, ITEMS[:1]).replace(b"\x01\0\0\0\x01\0\0\0", b"\x01\0\0\0\x02\0\0\0", 1),
    ],
)  # fmt: skip
def test_a_publish_entry_of_another_size_than_it_says_is_damage(payload: bytes) -> None:
    with pytest.raises(CorruptData):
        PublishedItems(payload)


def test_no_more_items_than_a_transaction_can_have_in_a_partition() -> None:
    item = ITEMS[0]
    assert len(PublishedItems(pack_publish(NAME, [item] * ITEMS_MAX))) == ITEMS_MAX
    with pytest.raises(CorruptData):
        PublishedItems(pack_publish(NAME, [item] * (ITEMS_MAX + 1)))


@pytest.mark.parametrize(
    "items",
    [
        [ITEMS[1]],  # it begins behind the first record
        [ITEMS[0], ITEMS[2]],  # records are missing
        [ITEMS[0], ITEMS[1]._replace(entry_index=4)],
        [ITEMS[0]._replace(entry_index=0)],
        [ITEMS[0]._replace(entry_index=10)],  # it lies behind the PUBLISH entry
        [ITEMS[0]._replace(record_count=0)],
        [ITEMS[0]._replace(length=0)],
        [ITEMS[0]._replace(entry_index=1 << 63)],
    ],
)
def test_items_that_no_leader_appends_are_damage(items: list[Item]) -> None:
    published = PublishedItems(pack_publish(NAME, items))
    for version in (RISING_VERSION, SCATTERED_VERSION):
        with pytest.raises(CorruptData):
            published.check(10, version, published.record_count)


def test_a_publish_entry_has_the_records_that_its_header_counts() -> None:
    published = PublishedItems(pack_publish(NAME, ITEMS))
    for version in (RISING_VERSION, SCATTERED_VERSION):
        published.check(10, version, 8)
        with pytest.raises(CorruptData):
            published.check(10, version, 9)


@pytest.mark.parametrize("payload", [b"", b"x" * 40, pack_discard(NAME)])
def test_a_staged_entry_that_is_cut_short_is_damage(payload: bytes) -> None:
    for unpack in (unpack_transactional, unpack_copied):
        with pytest.raises(CorruptData):
            unpack(payload)


@pytest.mark.parametrize("payload", [b"", pack_discard(NAME)[:-1], pack_discard(NAME)[:-4] + b"\x01\0\0\0"])
def test_a_discard_entry_of_another_form_is_damage(payload: bytes) -> None:
    with pytest.raises(CorruptData):
        unpack_discard(payload)


# ---- what readers get ------------------------------------------------------------------------------------------------


def published_frames(batch_sizes: list[int]) -> tuple[Entry, bytes]:
    """A PUBLISH entry at index 50 and offset 1000, and its batches under the headers that are made for readers."""
    payloads = [batches.payload(size, value=b"%d:" % number) for number, size in enumerate(batch_sizes)]
    staged = [
        (10 + number, size, len(payload), batches.TIME_US + size - 1, crc32c(payload))
        for number, (size, payload) in enumerate(zip(batch_sizes, payloads, strict=True))
    ]
    packed = pack_publish(NAME, items_of(staged))
    new = NewEntry(Kind.PUBLISH, packed, sum(batch_sizes), batches.TIME_US)
    entry = make_entry(new, index=50, term=4, prev_crc=77, base_offset=1000, append_time_us=batches.TIME_US + 9)
    frames = [
        made_head(entry.header, item) + batch for item, batch in zip(PublishedItems(packed), payloads, strict=True)
    ]
    return entry, b"".join(frames)


def test_a_made_frame_stands_for_a_data_entry_in_the_place_of_its_records() -> None:
    entry, frames = published_frames([2, 1, 3])
    made = list(iter_entries(frames))
    assert [(each.header.base_offset, each.header.record_count) for each in made] == [(1000, 2), (1002, 1), (1003, 3)]
    for each in made:
        header = each.header
        assert (header.index, header.term, header.append_time_us) == (50, 4, entry.header.append_time_us)
        assert (header.kind, header.version, header.prev_crc) == (Kind.DATA, MADE_VERSION, 0)
        assert check_batch(each.batch, Limits()).header.record_count == header.record_count
    assert not knows_entry(Kind.DATA, MADE_VERSION), "it is sent to readers, and never stored"


def test_a_made_header_has_the_bytes_that_were_written_down() -> None:
    new = NewEntry(Kind.PUBLISH, pack_publish(NAME, ITEMS), 8, 120)
    publish = make_entry(new, index=50, term=4, prev_crc=77, base_offset=1000, append_time_us=9)
    assert made_head(publish.header, ITEMS[2]).hex() == (
        "8cf1334b02000000000000004600000003030000320000000000000004000000"
        "00000000eb030000000000000500000009000000000000007800000000000000"
    )


def test_a_client_reads_made_frames_as_any_others() -> None:
    _, frames = published_frames([2, 1])
    chunks: list[Any] = list(records.read_chunks(0, memoryview(frames), 1000, None, Limits()))
    assert [(chunk.base_offset, chunk.next_offset, chunk.leader_epoch) for chunk in chunks] == [
        (1000, 1002, 4),
        (1002, 1003, 4),
    ]
    values = [value for chunk in chunks for value in chunk.batch.column("value").to_pylist()]
    assert values == [b"0:0", b"0:1", b"1:0"]


@pytest.mark.parametrize("seed", range(50))
def test_damage_in_a_made_frame_is_found(seed: int) -> None:
    rng = random.Random(seed)
    _, frames = published_frames([2])
    damaged = bytearray(frames)
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    with pytest.raises(CorruptData):
        list(iter_entries(bytes(damaged)))
    assert parse_header(frames).size == len(frames) > HEADER_SIZE

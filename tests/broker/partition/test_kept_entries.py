"""Segments go by a state that no power cut takes back."""

from __future__ import annotations

from tests.broker.partition.test_transactions import Bench, run
from tinymq.broker.partition.kept_entries import KeptEntries


def test_a_synced_state_says_what_is_kept() -> None:
    kept = KeptEntries()
    assert kept.keep_from(10, 4, 10) == 4
    assert kept.keep_from(12, 6, 15) == 6
    assert kept.keep_from(13, None, 15) is None


def test_until_a_state_is_synced_an_earlier_one_counts() -> None:
    kept = KeptEntries()
    assert kept.keep_from(10, 4, 9) == 1, "nothing is known to be synced"
    assert kept.keep_from(20, 12, 9) == 1
    assert kept.keep_from(30, 22, 10) == 4
    assert kept.keep_from(40, None, 29) == 4
    assert kept.keep_from(50, 44, 30) == 22
    assert kept.keep_from(60, None, 50) == 44
    assert kept.keep_from(70, None, 60) == 61, "later entries may have batches"
    assert kept.keep_from(70, None, 70) is None


def test_a_segment_stays_until_the_copies_of_its_batches_are_synced_here() -> None:
    async def scenario(b: Bench) -> None:
        kept: list[int | None] = []
        b.group.log.remove_before_offset = lambda offset, keep_from=None: kept.append(keep_from)  # type: ignore[method-assign]
        first = await b.stage()
        b.partition.retain()
        await b.end(publish=False)
        b.group.log.synced_index = first
        b.partition.retain()
        b.group.log.synced_index = len(b.group.log.entries)
        b.partition.retain()
        assert kept == [first, first, None]

    run(scenario)

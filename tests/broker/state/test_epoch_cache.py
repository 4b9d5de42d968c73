"""Which offsets are still valid after a recovery that lost acknowledged records."""

from __future__ import annotations

import pytest

from tests.broker.state.test_state import sealed
from tests.broker.values import Applied, takes_over
from tinymq.base.errors import CorruptData
from tinymq.broker.state.epoch_cache import EPOCHS_MAX, EpochCache
from tinymq.broker.state.state import PartitionState
from tinymq.format.entry import Kind, NewEntry, make_entry
from tinymq.proto import partition_pb2 as pb


def noted(*entries: tuple[int, int, int]) -> EpochCache:
    """Of CONFIG entries: (term, recovery epoch, offset)."""
    cache = EpochCache()
    for term, epoch, offset in entries:
        cache.note(takes_over(term, epoch, offset))
    return cache


def test_nothing_was_ever_lost() -> None:
    cache = noted((1, 0, 0), (5, 0, 100))
    assert (cache.newest_term, cache.divergence_offset(0)) == (0, None)


def test_a_recovery_counts_from_the_first_config_of_its_epoch() -> None:
    cache = noted((1, 0, 0), (5, 1 << 32, 100), (5, 1 << 32, 120), (6, 1 << 32, 130), (9, 2 << 32, 140))
    assert cache.newest_term == 9
    assert [cache.divergence_offset(term) for term in (0, 4, 5, 8, 9)] == [100, 100, 140, 140, None]


def test_recovery_epochs_start_again_with_a_log_in_memory_and_terms_do_not() -> None:
    before, after = noted((5, 1 << 32, 0)), noted((8, 1 << 32, 0))
    assert after.divergence_offset(before.newest_term) == 0


def test_offsets_of_forgotten_epochs_count_as_lost() -> None:
    losses = [(10 * n, n, 100 * n) for n in range(1, EPOCHS_MAX + 4)]
    cache, state = noted(*losses), pb.State()
    cache.dump(state)
    assert len(state.recoveries) == EPOCHS_MAX
    for term, _, _ in losses:
        held = min((start for later, _, start in losses if later > term), default=None)
        divergence = cache.divergence_offset(term)
        assert divergence == held or (divergence is not None and held is not None and divergence < held and term < 40)
    assert cache.divergence_offset(0) == 100


def test_the_epoch_cache_is_part_of_the_applied_state() -> None:
    state, other = PartitionState(), PartitionState()
    state.apply(takes_over(5, 1 << 32, 3))
    state.apply(takes_over(8, 2 << 32, 7))
    other.load(state.dump())
    for one in (state, other):
        one.apply(takes_over(9, 2 << 32, 8))
        assert (
            one.epoch_cache.newest_term,
            one.epoch_cache.divergence_offset(5),
            one.epoch_cache.divergence_offset(0),
        ) == (8, 7, 3)
    assert other.dump() == state.dump()


def test_a_config_that_does_not_parse_changes_nothing() -> None:
    applied = Applied()
    applied.batch(2)
    before = applied.state.dump()[16:]
    broken = make_entry(NewEntry(Kind.CONFIG, b"?"), index=2, term=9, prev_crc=0, base_offset=2, append_time_us=0)
    applied.state.apply(broken)
    assert applied.state.dump()[16:] == before


@pytest.mark.parametrize(
    ("recoveries", "epoch"),
    [
        ([(5, 1), (5, 2)], 1),
        ([(0, 1)], 1),
        ([(5, 2), (6, 1)], 1),
        ([(5, 7)], 1),
        ([(5, 1)], 0),
        ([], 1),
        ([(n + 1, 1) for n in range(EPOCHS_MAX + 1)], 1),
    ],
)
def test_impossible_states_are_refused(recoveries: list[tuple[int, int]], epoch: int) -> None:
    said = pb.State(
        recoveries=[pb.Recovery(term=term, start=start) for term, start in recoveries], recovery_epoch=epoch
    )
    with pytest.raises(CorruptData, match="recover"):
        PartitionState().load(sealed(said, record_bytes=0))
    PartitionState().load(sealed(pb.State(recoveries=[pb.Recovery(term=5, start=6)], recovery_epoch=1), record_bytes=0))

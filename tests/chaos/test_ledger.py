"""The ledger judges what replicas do and claim as it happens: it finds every anomaly, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.story import LOG, Story
from tinymq_chaos.checkers import AnomalyKind, Ledger, check
from tinymq_chaos.checkers.cluster.ledger import HardState, Identity

Spoil = Callable[[Ledger], None]
ME: dict[int, Identity] = {broker: (bytes([broker]), 0) for broker in (1, 2, 3)}


def opens(
    ledger: Ledger, last: int = 5, hard_state: HardState = (2, 1), identity: Identity = ME[2], **more: object
) -> None:
    """Broker 2 opens, with entries 3 and later of term 2."""
    unsynced: list[str] = more.get("unsynced", [])  # type: ignore[assignment]
    ledger.opened(
        LOG, 2, identity, hard_state, lambda i: None if i < 2 else 1 if i < 3 else 2, last_index=last, unsynced=unsynced
    )


def good() -> Ledger:
    """Three replicas in term 2: broker 1 was elected by broker 2, and both hold entry 5."""
    ledger = Ledger(lambda: 1.5)
    for broker in (1, 2):
        ledger.rests_on(LOG, broker, ME[broker], (2, 1), durable=True)
        ledger.rests_on(LOG, broker, ME[broker], (2, None), durable=True)
    ledger.rests_on(LOG, 3, ME[3], (2, None), durable=True)
    ledger.counted(LOG, 1, 5, 2, {1: ME[1], 2: ME[2]}, ME)
    for broker in (1, 2):
        ledger.applied(LOG, broker, 5, 2, 99)
        ledger.state(LOG, broker, 5, 7)
        ledger.numbered(LOG, 4, 1, 0, 0, 2)
        ledger.numbered(LOG, 5, 1, 0, 2, 1)
    opens(ledger)
    ledger.cuts(LOG, 3, (2, 6), (2, 6))
    ledger.read(LOG, 1, 5, 5)
    return ledger


def test_a_good_story_has_no_anomalies() -> None:
    assert good().anomalies == []


def another_entry(ledger: Ledger) -> None:
    ledger.applied(LOG, 3, 5, 1, 98)


def another_leader(ledger: Ledger) -> None:
    ledger.led(LOG, 1, 2)
    ledger.led(LOG, 3, 2)


def a_minority_counts(ledger: Ledger) -> None:
    ledger.counted(LOG, 1, 6, 2, {1: ME[1]}, ME)


def half_of_four_counts(ledger: Ledger) -> None:
    ledger.counted(LOG, 1, 6, 2, {1: ME[1], 2: ME[2]}, ME | {4: (b"4", 0)})


def one_that_is_not_listed_counts(ledger: Ledger) -> None:
    ledger.counted(LOG, 1, 6, 2, {1: ME[1], 2: (b"other", 0)}, ME)


def a_repaired_one_counts(ledger: Ledger) -> None:
    ledger.counted(LOG, 1, 6, 2, {1: ME[1], 2: (ME[2][0], 1)}, ME)


def counted_before_the_sync(ledger: Ledger) -> None:
    ledger.lacks(LOG, 2, 6, 1)


def opened_before_the_sync(ledger: Ledger) -> None:
    opens(ledger, unsynced=["groups/x/0/1.log"])


def back_with_less(ledger: Ledger) -> None:
    opens(ledger, last=4)


def back_with_another_entry(ledger: Ledger) -> None:
    ledger.counted(LOG, 3, 6, 3, {2: ME[2], 3: ME[3]}, ME)
    opens(ledger, last=6)


def back_with_an_older_term(ledger: Ledger) -> None:
    opens(ledger, hard_state=(1, 1))


def back_without_its_vote(ledger: Ledger) -> None:
    opens(ledger, hard_state=(2, None))


def a_second_vote(ledger: Ledger) -> None:
    ledger.rests_on(LOG, 2, ME[2], (2, 3), durable=True)


def a_vote_before_its_sync(ledger: Ledger) -> None:
    ledger.rests_on(LOG, 2, ME[2], (3, 3), durable=False)


def a_skipped_sequence(ledger: Ledger) -> None:
    ledger.numbered(LOG, 6, 1, 0, 4, 1)


def a_sequence_twice(ledger: Ledger) -> None:
    ledger.numbered(LOG, 6, 1, 0, 2, 1)


def an_epoch_that_begins_in_the_middle(ledger: Ledger) -> None:
    ledger.numbered(LOG, 6, 1, 1, 3, 1)


def a_producer_that_begins_in_the_middle(ledger: Ledger) -> None:
    ledger.numbered(LOG, 6, 2, 0, 1, 1)


def cut_below_the_mark(ledger: Ledger) -> None:
    ledger.cuts(LOG, 2, (1, 4), (1, 5))


def begun_above_the_mark(ledger: Ledger) -> None:
    ledger.cuts(LOG, 2, (3, 5), (1, 5))


def another_state(ledger: Ledger) -> None:
    ledger.state(LOG, 3, 5, 8)


def a_read_of_the_past(ledger: Ledger) -> None:
    ledger.read(LOG, 1, 6, 5)


def another_entry_after_a_revival(ledger: Ledger) -> None:
    """Entries applied from then on are judged again."""
    ledger.begins_again(LOG)
    ledger.applied(LOG, 1, 5, 3, 97)
    ledger.applied(LOG, 2, 5, 4, 96)


def forgotten_after_a_revival(ledger: Ledger) -> None:
    ledger.begins_again(LOG)
    ledger.counted(LOG, 1, 3, 2, {1: ME[1], 2: ME[2]}, ME)
    opens(ledger, last=2)


def a_sequence_skipped_after_a_revival(ledger: Ledger) -> None:
    ledger.begins_again(LOG)
    ledger.numbered(LOG, 4, 1, 0, 7, 2)
    ledger.numbered(LOG, 5, 1, 0, 10, 1)


BAD: list[tuple[Spoil, AnomalyKind]] = [
    (another_entry, AnomalyKind.TWO_ENTRIES),
    (another_leader, AnomalyKind.TWO_LEADERS),
    (a_minority_counts, AnomalyKind.NO_QUORUM),
    (half_of_four_counts, AnomalyKind.NO_QUORUM),
    (one_that_is_not_listed_counts, AnomalyKind.NO_QUORUM),
    (a_repaired_one_counts, AnomalyKind.NO_QUORUM),
    (counted_before_the_sync, AnomalyKind.NOT_SYNCED),
    (opened_before_the_sync, AnomalyKind.NOT_SYNCED),
    (back_with_less, AnomalyKind.FORGOTTEN),
    (back_with_another_entry, AnomalyKind.FORGOTTEN),
    (back_with_an_older_term, AnomalyKind.FORGOTTEN),
    (back_without_its_vote, AnomalyKind.FORGOTTEN),
    (a_second_vote, AnomalyKind.TWO_VOTES),
    (a_vote_before_its_sync, AnomalyKind.TWO_VOTES),
    (a_skipped_sequence, AnomalyKind.BROKEN_SEQUENCE),
    (a_sequence_twice, AnomalyKind.BROKEN_SEQUENCE),
    (an_epoch_that_begins_in_the_middle, AnomalyKind.BROKEN_SEQUENCE),
    (a_producer_that_begins_in_the_middle, AnomalyKind.BROKEN_SEQUENCE),
    (cut_below_the_mark, AnomalyKind.NOT_SYNCED),
    (begun_above_the_mark, AnomalyKind.NOT_SYNCED),
    (another_entry_after_a_revival, AnomalyKind.TWO_ENTRIES),
    (forgotten_after_a_revival, AnomalyKind.FORGOTTEN),
    (a_sequence_skipped_after_a_revival, AnomalyKind.BROKEN_SEQUENCE),
    (another_state, AnomalyKind.STATES_DIFFER),
    (a_read_of_the_past, AnomalyKind.STALE),
]


@pytest.mark.parametrize(("spoil", "kind"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_each_violation_is_found(spoil: Spoil, kind: AnomalyKind) -> None:
    ledger = good()
    spoil(ledger)
    found = check(Story().history, ledger)
    assert [a.kind for a in found] == [kind]
    assert found[0].times_s == (1.5,)


# ---- what is no anomaly --------------------------------------------------------------------------------------


def test_another_identity_may_begin_with_an_empty_log() -> None:
    ledger = good()
    opens(ledger, last=1, hard_state=(0, None), identity=(ME[2][0], 1))
    opens(ledger, last=1, hard_state=(0, None), identity=(b"another folder", 0))
    ledger.rests_on(LOG, 2, (b"another folder", 0), (2, 3), durable=True)
    assert ledger.anomalies == []


def test_a_log_may_begin_after_the_counted_entries() -> None:
    ledger = good()
    ledger.counted(LOG, 1, 1, 1, {1: ME[1], 2: ME[2]}, ME)
    opens(ledger)
    assert ledger.anomalies == []


def test_sequences_continue_and_a_new_epoch_begins_at_0() -> None:
    ledger = good()
    ledger.numbered(LOG, 6, 1, 0, 3, 2)
    ledger.numbered(LOG, 7, 1, 1, 0, 2)
    ledger.numbered(LOG, 8, 1, 1, 2, 2)
    assert ledger.anomalies == []


def test_a_vote_may_be_told_twice_and_terms_rise() -> None:
    ledger = good()
    ledger.rests_on(LOG, 2, ME[2], (2, 1), durable=True)
    ledger.rests_on(LOG, 2, ME[2], (3, None), durable=True)
    ledger.rests_on(LOG, 2, ME[2], (3, 3), durable=True)
    opens(ledger, hard_state=(4, None))
    assert ledger.anomalies == []


def test_entries_lost_in_a_recovery_prove_nothing_afterwards() -> None:
    ledger = good()
    ledger.begins_again(LOG)
    opens(ledger, last=1)
    ledger.applied(LOG, 1, 5, 3, 97)
    ledger.state(LOG, 1, 5, 8)
    ledger.read(LOG, 1, ledger.end(LOG), 5)
    ledger.numbered(LOG, 5, 1, 0, 1, 2)
    assert ledger.anomalies == []


def test_missing_sequences_may_be_in_entries_that_no_replica_applied_again() -> None:
    """One replica begins to apply again at an early entry, and another one behind a later snapshot."""
    for seen in (range(5, 6), range(5, 9)):
        ledger = good()
        ledger.begins_again(LOG)
        for index in seen:
            ledger.applied(LOG, 1, index, 3, 90 + index)
        ledger.numbered(LOG, 5, 1, 0, 7, 2)
        ledger.numbered(LOG, 9, 1, 0, 20, 1)
        assert bool(ledger.anomalies) is (len(seen) > 1)

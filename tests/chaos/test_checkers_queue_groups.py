"""Queue groups: every violation of what must never happen is found, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from tests.chaos.story import LOG, Story, T
from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.records import queue_groups
from tinymq_chaos.group_changes import ATTACHED, CONFIRMED, ENDED, GRANTED, LEADS, LeaseChange, QueueChange
from tinymq_chaos.history import Call

CHECKERS = [
    queue_groups.settled_by_nobody,
    queue_groups.acks_are_kept,
    queue_groups.position_back,
    queue_groups.leased_twice,
    queue_groups.keys_out_of_order,
    queue_groups.dead_letters,
    queue_groups.rejected_and_delivered,
    queue_groups.acked_and_delivered,
    queue_groups.delivered_too_early,
    queue_groups.delivered_too_late,
    queue_groups.charged_unstarted,
]
REJECTED = queue_groups.REJECTED
Failed = tuple[int, int, int, int]


def job(s: Story, by: str, offset: int, delivery: int = 1, generation: int = 1, key: str | None = None) -> Call:
    """A worker is handed out a record."""
    place: dict[str, Any] = {"partition": 0, "offset": offset, "generation": generation, "delivery": delivery}
    call = s.begin(by, "job", topic=T, group="g", record=f"r-{offset}", key=key, keyed=key is not None, **place)
    call.ok()
    return call


def settle(
    s: Story,
    by: str,
    offset: int,
    verb: str = "ack",
    delivery: int = 1,
    generation: int = 1,
    delay_s: float | None = None,
) -> Call:
    place: dict[str, Any] = {"partition": 0, "offset": offset, "generation": generation, "delivery": delivery}
    call = s.begin(by, "settle", topic=T, group="g", verb=verb, delay_s=delay_s, **place)
    call.ok()
    return call


def state(
    s: Story, position: int, *settled: int, failures: tuple[Failed, ...] = (), burials: tuple[int, ...] = (),
    generation: int = 1, log_start: int = 0, staged: tuple[int, ...] = (),
) -> None:  # fmt: skip
    """An entry has changed the group's state to this; `settled` is new."""
    s.now_s += 0.01
    change = QueueChange(
        s.now_s, LOG, "g", 7, generation=generation, position=position, log_start=log_start, settled=settled,
        failures=failures, burials=burials, staged=staged,
    )  # fmt: skip
    s.history.queues.append(change)


def lease(s: Story, what: str, session: str = "", offset: int = -1, term: int = 1, **more: Any) -> None:
    s.now_s += 0.01
    values = {"session": session, "offset": offset, "generation": 1, "delivery": 1} | more
    s.history.leases.append(LeaseChange(s.now_s, LOG, "g", 7, term, broker=1, what=what, **values))


def good_group(s: Story) -> None:
    """Two records: one is done at once, the other one in its second delivery, by another worker."""
    state(s, 0)
    lease(s, LEADS, rejoin_s=1.0)
    lease(s, ATTACHED, "a")
    lease(s, ATTACHED, "b")
    for offset in (0, 1):
        lease(s, GRANTED, "a", offset, now_us=1_000)
        job(s, "a", offset, key="red")
    settle(s, "a", 1, "nack", delay_s=0.1)
    lease(s, ENDED, "a", 1)
    state(s, 0, failures=((1, 1, 0, 100_000),))
    settle(s, "a", 0)
    lease(s, ENDED, "a", 0)
    state(s, 1, 0, failures=((1, 1, 0, 100_000),))
    lease(s, GRANTED, "b", 1, delivery=2, now_us=200_000)
    job(s, "b", 1, 2, key="red")
    settle(s, "b", 1, delivery=2)
    lease(s, ENDED, "b", 1)
    state(s, 2, 1)


def a_skipped_record(s: Story) -> None:
    state(s, 3, 2)


def a_record_whose_ack_was_rolled_back(s: Story) -> None:
    job(s, "a", 2)
    place: dict[str, Any] = {"partition": 0, "offset": 2, "generation": 1, "delivery": 1}
    s.begin("a", "settle", topic=T, group="g", verb="ack", delay_s=None, **place).failed("rolled back")
    state(s, 3, 2)


def an_ack_that_is_forgotten(s: Story) -> None:
    job(s, "a", 2)
    settle(s, "a", 2)


def a_position_that_goes_back(s: Story) -> None:
    state(s, 1)


def a_record_with_two_workers(s: Story) -> None:
    lease(s, GRANTED, "a", 2)
    lease(s, GRANTED, "b", 2)


def a_record_that_a_worker_of_the_last_leader_has(s: Story) -> None:
    lease(s, GRANTED, "a", 2)
    lease(s, LEADS, term=2, rejoin_s=1.0)
    lease(s, ATTACHED, "b", term=2)
    lease(s, GRANTED, "b", 2, term=2)


def a_record_that_its_worker_has_listed(s: Story) -> None:
    lease(s, GRANTED, "a", 2)
    lease(s, LEADS, term=2, rejoin_s=1.0)
    lease(s, CONFIRMED, "a", 2, term=2)
    lease(s, ATTACHED, "a", term=2)
    lease(s, GRANTED, "b", 2, term=2)


def a_key_with_two_workers(s: Story) -> None:
    for offset in (2, 3):
        lease(s, GRANTED, "ab"[offset % 2], offset)
        job(s, "ab"[offset % 2], offset, key="red")


def a_later_record_of_a_key_first(s: Story) -> None:
    job(s, "a", 2, key="red")
    job(s, "a", 3, key="red")
    settle(s, "a", 3)
    state(s, 2, 3)


def rejected(s: Story) -> None:
    job(s, "a", 2)
    settle(s, "a", 2, "reject")
    state(s, 2, failures=((2, 1 | REJECTED, 0, 0),))
    state(s, 2, burials=(2,))
    state(s, 3, 2)


def letters(s: Story, *found: list[object]) -> None:
    s.begin("a", "dead_letters", topic=T, group="g").ok(list(found))


def a_dead_letter_that_is_missing(s: Story) -> None:
    rejected(s)
    letters(s)


def a_dead_letter_twice(s: Story) -> None:
    rejected(s)
    letters(s, [0, 2, 1, ""], [0, 2, 1, ""])


def a_dead_letter_of_another_record(s: Story) -> None:
    rejected(s)
    letters(s, [0, 2, 1, "nobody-0"])


def a_rejected_record_again(s: Story) -> None:
    job(s, "a", 2)
    settle(s, "a", 2, "reject")
    s.now_s += 2.0
    job(s, "b", 2, 2)


def an_acknowledged_record_again(s: Story) -> None:
    job(s, "a", 2)
    settle(s, "a", 2)
    state(s, 3, 2)
    s.now_s += 2.0
    job(s, "b", 2, 2)


def a_grant_before_its_time(s: Story) -> None:
    job(s, "a", 2)
    state(s, 2, failures=((2, 1, 0, 500_000),))
    lease(s, GRANTED, "b", 2, delivery=2, now_us=400_000)


def a_delivery_before_its_time(s: Story) -> None:
    job(s, "a", 2)
    settle(s, "a", 2, "nack", delay_s=3.0)
    job(s, "b", 2, 2)


def a_group_that_does_not_get_to_the_end(s: Story) -> None:
    s.begin("a", "work_off", topic=T, group="g").failed("DeadlineExceeded")


def a_delivery_that_comes_late(s: Story) -> None:
    call = s.begin("a", "work_off", 20.0, topic=T, group="g")
    lease(s, GRANTED, "a", 3, now_us=1_000_000)
    lease(s, ENDED, "a", 3)
    job(s, "a", 2)
    state(s, 2, failures=((2, 1, 0, 1_100_000),))
    s.now_s += 5.0
    lease(s, GRANTED, "b", 2, delivery=2, now_us=7_000_000)
    call.ok()


def a_charge_of_what_was_prefetched(s: Story) -> None:
    lease(s, GRANTED, "a", 2)
    lease(s, ENDED, "a", 2)
    state(s, 2, failures=((2, 1, 0, 0),))


def in_a_group(spoil: Callable[[Story], None]) -> Callable[[Story], None]:
    """The same after a group that does everything right."""

    @wraps(spoil)
    def both(s: Story) -> None:
        good_group(s)
        spoil(s)

    return both


FOUND = [
    (a_skipped_record, AnomalyKind.SETTLED_BY_NOBODY),
    (a_record_whose_ack_was_rolled_back, AnomalyKind.SETTLED_BY_NOBODY),
    (an_ack_that_is_forgotten, AnomalyKind.LOST_COMMIT),
    (a_position_that_goes_back, AnomalyKind.CURSOR_BACK),
    (a_record_that_a_worker_of_the_last_leader_has, AnomalyKind.LEASED_TWICE),
    (a_record_that_its_worker_has_listed, AnomalyKind.LEASED_TWICE),
    (a_record_with_two_workers, AnomalyKind.LEASED_TWICE),
    (a_key_with_two_workers, AnomalyKind.LEASED_TWICE),
    (a_later_record_of_a_key_first, AnomalyKind.KEY_OUT_OF_ORDER),
    (a_dead_letter_that_is_missing, AnomalyKind.DEAD_LETTERS),
    (a_dead_letter_twice, AnomalyKind.DEAD_LETTERS),
    (a_dead_letter_of_another_record, AnomalyKind.DEAD_LETTERS),
    (a_rejected_record_again, AnomalyKind.DEAD_LETTERS),
    (an_acknowledged_record_again, AnomalyKind.LOST_COMMIT),
    (a_grant_before_its_time, AnomalyKind.TOO_EARLY),
    (a_delivery_before_its_time, AnomalyKind.TOO_EARLY),
    (a_group_that_does_not_get_to_the_end, AnomalyKind.STUCK),
    (a_delivery_that_comes_late, AnomalyKind.STUCK),
    (a_charge_of_what_was_prefetched, AnomalyKind.NOT_STARTED),
]
BAD = [(in_a_group(spoil), kind) for spoil, kind in FOUND]


# ---- what is no violation -------------------------------------------------------------------------------------------


def a_record_whose_worker_did_not_come_back(s: Story) -> None:
    lease(s, GRANTED, "a", 2)
    lease(s, LEADS, term=2, rejoin_s=1.0)
    s.now_s += 1.0
    lease(s, GRANTED, "b", 2, term=2)


def a_record_that_its_worker_did_not_list(s: Story) -> None:
    lease(s, GRANTED, "a", 2)
    lease(s, LEADS, term=2, rejoin_s=1.0)
    lease(s, ATTACHED, "a", term=2)
    lease(s, GRANTED, "b", 2, term=2)


def a_grant_of_a_deposed_leader(s: Story) -> None:
    lease(s, LEADS, term=2, rejoin_s=1.0)
    lease(s, GRANTED, "b", 2, term=2)
    lease(s, GRANTED, "a", 2)


def a_lease_of_what_was_trimmed(s: Story) -> None:
    lease(s, GRANTED, "a", 2)
    job(s, "a", 2, key="red")
    state(s, 3, 2, log_start=3)
    lease(s, GRANTED, "b", 3)
    job(s, "b", 3, key="red")


def a_seek(s: Story) -> None:
    state(s, 0, generation=2)
    job(s, "a", 0, generation=2)
    settle(s, "a", 0, generation=2)
    state(s, 1, 0, generation=2)


def a_nack_after_another_worker_has_settled_the_record(s: Story) -> None:
    job(s, "a", 2)
    job(s, "b", 2, 2)
    settle(s, "b", 2, delivery=2)
    state(s, 3, 2)
    settle(s, "a", 2, "nack", delay_s=3.0)


def a_burial_that_the_deletion_of_its_group_ended(s: Story) -> None:
    job(s, "a", 2)
    settle(s, "a", 2, "reject")
    state(s, 2, burials=(2,))
    letters(s, [0, 2, 1, ""])


def a_record_that_is_granted_alone(s: Story) -> None:
    lease(s, GRANTED, "a", 2, alone=True)
    lease(s, ENDED, "a", 2)
    state(s, 2, failures=((2, 1, 3, 0),))


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        *FOUND,
        (lambda s: None, None),
        (a_record_whose_worker_did_not_come_back, None),
        (a_record_that_its_worker_did_not_list, None),
        (a_grant_of_a_deposed_leader, None),
        (a_lease_of_what_was_trimmed, None),
        (a_seek, None),
        (a_nack_after_another_worker_has_settled_the_record, None),
        (a_burial_that_the_deletion_of_its_group_ended, None),
        (a_record_that_is_granted_alone, None),
        (rejected, None),
    ],
)
def test_what_a_queue_group_must_never_do_is_found(spoil: Callable[[Story], None], kind: AnomalyKind | None) -> None:
    story = Story()
    good_group(story)
    spoil(story)
    facts = Facts(story.history)
    found = [anomaly for checker in CHECKERS for anomaly in checker(facts)]
    assert {anomaly.kind for anomaly in found} == ({kind} if kind is not None else set()), found

"""Delayed records: every violation is found, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.story import Story, T, good
from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.history import Call

Spoil = Callable[[Story], None]

DUE_US = 5_000_000


def schedule(s: Story, record: str) -> Call:
    return s.begin(
        "s", "schedule", topic=T, partition=0, records=[record], producer=record, idempotent=True
    )  # fmt: skip


def cancel(s: Story, record: str) -> Call:
    return s.begin("s", "cancel", topic=T, partition=0, records=[record], schedule_id=9)


def ended(s: Story, *times_us: int) -> None:
    """End the story. The last entries have these append times, and those before have 1, 2 ..."""
    replicas = []
    for replica in (s.replica(1, role="leader"), s.replica(2), s.replica(3)):
        known = [*range(1, len(replica.entries) + 1 - len(times_us)), *times_us]
        entries = [replace(e, append_time_us=us) for e, us in zip(replica.entries, known, strict=True)]
        replicas.append(replace(replica, entries=tuple(entries)))
    s.end(*replicas)


def early(s: Story) -> None:
    schedule(s, "d").ok([0, 9, DUE_US])
    s.stored("d")
    ended(s, DUE_US - 1)


def never(s: Story) -> None:
    schedule(s, "d").ok([0, 9, DUE_US])
    s.send("later", at=4)
    s.stored("later")
    ended(s, DUE_US + 3_000_000)


def twice(s: Story) -> None:
    schedule(s, "d").ok([0, 9, DUE_US])
    s.stored("d")
    s.stored("d")
    ended(s, DUE_US, DUE_US)


def canceled_and_there(s: Story) -> None:
    schedule(s, "d").ok([0, 9, DUE_US])
    cancel(s, "d").ok(True)
    s.stored("d")
    ended(s, DUE_US)


def failed_and_there(s: Story) -> None:
    schedule(s, "d").failed("QuotaExceeded")
    s.stored("d")
    ended(s, DUE_US)


def said_to_be_there(s: Story) -> None:
    schedule(s, "d").ok([0, 9, DUE_US])
    cancel(s, "d").ok(False)
    ended(s)


BAD: list[tuple[Spoil, AnomalyKind]] = [
    (early, AnomalyKind.TOO_EARLY),
    (never, AnomalyKind.LOST_WRITE),
    (twice, AnomalyKind.DUPLICATE),
    (canceled_and_there, AnomalyKind.ABORTED_READ),
    (failed_and_there, AnomalyKind.ABORTED_READ),
    (said_to_be_there, AnomalyKind.LOST_WRITE),
]


def canceled(s: Story) -> None:
    schedule(s, "d").ok([0, 9, DUE_US])
    cancel(s, "d").ok(True)
    s.send("later", at=4)
    s.stored("later")
    ended(s, DUE_US + 3_000_000)


def maybe_canceled(s: Story) -> None:
    schedule(s, "d").ok([0, 9, DUE_US])
    cancel(s, "d").unknown("OutcomeUnknown")
    s.send("later", at=4)
    s.stored("later")
    ended(s, DUE_US + 3_000_000)


def not_due_yet(s: Story) -> None:
    schedule(s, "d").ok([0, 9, DUE_US])
    schedule(s, "e").unknown("OutcomeUnknown")
    s.send("later", at=4)
    s.stored("later")
    ended(s, DUE_US + 1_000_000)


def delivered(s: Story) -> None:
    schedule(s, "d").ok([0, 9, DUE_US])
    schedule(s, "e").ok([0, 9, DUE_US - 1])
    cancel(s, "d").ok(False)
    s.stored("e")
    s.stored("d")
    ended(s, DUE_US, DUE_US)


@pytest.mark.parametrize("spoil", [canceled, maybe_canceled, not_due_yet, delivered])
def test_what_may_happen(spoil: Spoil) -> None:
    story = good()
    spoil(story)
    assert story.kinds() == set()

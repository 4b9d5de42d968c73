"""Leadership transfers: every violation is found, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.story import LOG, Story, T, good
from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.history import Call

Spoil = Callable[[Story], None]


def move(s: Story, to: int | None, leader: int | None = None, took_s: float = 0.1) -> Call:
    call = s.begin("m", "transfer", 3.0, topic=T, partition=0, to=to)
    if leader is not None:
        s.now_s = call.invoked_s + took_s
        call.ok(leader)
    return call


def led(s: Story, term: int, broker: int) -> None:
    s.history.leads_no_more(term - 1, LOG)
    s.history.led(LOG, term, broker)


def quiet(s: Story) -> None:
    s.history.calm()
    s.now_s += 3


def kept_quiet(s: Story) -> None:
    """Quiet to the end."""
    calm_s = s.history.calm_s
    s.end()
    s.history.calm_s = calm_s


def said_to_lead_and_does_not(s: Story) -> None:
    move(s, 2, 2)


def moved_to_another_in_quiet_times(s: Story) -> None:
    quiet(s)
    call = move(s, 3)
    led(s, 2, 2)
    call.ok(2)
    kept_quiet(s)


def moved_late(s: Story) -> None:
    quiet(s)
    call = move(s, 2)
    led(s, 2, 2)
    s.now_s += 1
    call.ok(2)
    kept_quiet(s)


BAD: list[tuple[Spoil, AnomalyKind]] = [
    (said_to_lead_and_does_not, AnomalyKind.NOT_MOVED),
    (moved_to_another_in_quiet_times, AnomalyKind.NOT_MOVED),
    (moved_late, AnomalyKind.NOT_MOVED),
]


def moved_as_it_was_to_be(s: Story) -> None:
    quiet(s)
    call = move(s, 2)
    led(s, 2, 2)
    call.ok(2)
    move(s, 2, 2)  # broker 2 leads already
    kept_quiet(s)


def moved_late_while_faults_happen(s: Story) -> None:
    call = move(s, 3)
    led(s, 2, 2)
    s.now_s += 2
    call.ok(2)
    s.end()


def moved_often(s: Story) -> None:
    """Requested transfers are no restlessness."""
    s.history.changed("all faults are over")
    s.now_s += 6
    for term in range(2, 9):
        call = move(s, term)
        led(s, term, term)
        call.ok(term)
    s.end()


@pytest.mark.parametrize(
    "tell", [moved_as_it_was_to_be, moved_late_while_faults_happen, moved_often], ids=lambda tell: tell.__name__
)
def test_each_harmless_history_has_no_anomalies(tell: Spoil) -> None:
    story = good()
    tell(story)
    assert story.kinds() == set()

"""How late the harness's own loop was: the sum of a window, not the longest wait."""

from __future__ import annotations

import pytest

from tinymq_chaos.real.run.lateness import WINDOW_S, Lateness


def test_waits_of_one_call_add_up() -> None:
    lateness = Lateness()
    for now_s, late_s in ((3.0, 2.5), (6.0, 2.0), (9.5, 3.0)):
        lateness.note(now_s, late_s)
    assert lateness.worst_s == pytest.approx(7.5)


def test_waits_of_different_calls_do_not() -> None:
    lateness = Lateness()
    for number in range(20):
        lateness.note(number * WINDOW_S, 1.0 + number % 2)
    assert lateness.worst_s == pytest.approx(2.0)


def test_the_worst_window_counts() -> None:
    lateness = Lateness()
    for now_s in (1.0, 2.0, 3.0, 50.0):
        lateness.note(now_s, 1.0)
    assert lateness.worst_s == pytest.approx(3.0)

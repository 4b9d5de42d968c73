"""Watchers of a partition: every change wakes all of them, a few per turn of the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tinymq.broker.partition.commit_watchers import WOKEN_MAX, CommitWatchers


class Loop:
    """A loop whose turns the test runs one by one."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def test_many_watchers_are_woken_in_slices() -> None:
    loop = Loop()
    watchers, woken = CommitWatchers(loop.soon), Counter[int]()
    many = 10 * WOKEN_MAX + 1
    for number in range(many):
        watchers.add(lambda number=number: woken.update([number]))  # type: ignore[misc]
    watchers.wake()
    for turn in range(1, 12):
        loop.turn()
        assert woken.total() == min(turn * WOKEN_MAX, many)
        if turn == 3:
            watchers.wake()  # watchers that were woken before check again
            watchers.wake()
    while loop.calls:
        loop.turn()
    assert woken == Counter(dict.fromkeys(range(many), 2))
    watchers.wake()
    loop.turn()
    assert woken.total() == 2 * many + WOKEN_MAX


def test_only_present_watchers_are_woken() -> None:
    loop = Loop()
    watchers, woken = CommitWatchers(loop.soon), Counter[str]()

    def last() -> None:
        woken["last"] += 1

    def late() -> None:
        woken["late"] += 1

    def first() -> None:
        woken["first"] += 1
        watchers.drop(last)
        watchers.add(late)

    for each in (first, last):
        watchers.add(each)
    watchers.wake()
    while loop.calls:
        loop.turn()
    assert woken == {"first": 1}
    watchers.wake()
    loop.turn()
    assert woken == {"first": 2, "late": 1}

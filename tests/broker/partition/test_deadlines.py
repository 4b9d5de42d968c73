"""Many waits share few timers; no wait ends early."""

from __future__ import annotations

from collections.abc import Callable

from tests.fakes.manual_clock import ManualClock
from tinymq.base.clock import Timer
from tinymq.broker.partition.deadlines import BUCKET_S, ENDED_MAX, Deadlines


class Wait:
    def __init__(self) -> None:
        self.expired = 0

    def expire(self) -> None:
        self.expired += 1


def test_a_wait_ends_on_time_and_once() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    wait, dropped = Wait(), Wait()
    deadlines.add(wait, 1.0)
    deadlines.drop(deadlines.add(dropped, 1.0))
    clock.advance(0.999)
    assert wait.expired == 0
    clock.advance(BUCKET_S + 0.002)
    clock.advance(5)
    assert (wait.expired, dropped.expired) == (1, 0)
    assert len(deadlines) == 0


def test_a_wait_may_end_another_in_the_same_bucket() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    seen: list[int] = []

    class Chain:
        def __init__(self, number: int) -> None:
            self.number = number
            self.ticket = deadlines.add(self, 0.5)

        def expire(self) -> None:
            seen.append(self.number)
            for other in chain:
                deadlines.drop(other.ticket)

    chain = [Chain(1), Chain(2)]
    clock.advance(1)
    assert len(seen) == 1


def test_a_thousand_waits_of_one_time_share_a_timer() -> None:
    clock = ManualClock()
    timers = []
    call_later = clock.call_later
    clock.call_later = lambda delay_s, call: timers.append(delay_s) or call_later(delay_s, call)  # type: ignore[func-returns-value,method-assign]
    deadlines = Deadlines(clock)
    waits = [Wait() for _ in range(1000)]
    for wait in waits:
        deadlines.add(wait, 30.0)
    assert len(timers) == 1
    clock.advance(31)
    assert all(wait.expired == 1 for wait in waits)


def test_waits_that_end_at_one_time_end_in_slices() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    waits = [Wait() for _ in range(3 * ENDED_MAX + 1)]
    for wait in waits:
        deadlines.add(wait, 1.0)
    ended: list[int] = []
    call_later = clock.call_later

    def counting(delay_s: float, call: Callable[[], None]) -> Timer:
        ended.append(sum(wait.expired for wait in waits))
        assert delay_s == 0.0
        return call_later(delay_s, call)

    clock.call_later = counting  # type: ignore[method-assign]
    clock.advance(1.0 + BUCKET_S)
    clock.advance(0.0)
    assert ended == [ENDED_MAX, 2 * ENDED_MAX, 3 * ENDED_MAX]
    assert {wait.expired for wait in waits} == {1}
    assert len(deadlines) == 0

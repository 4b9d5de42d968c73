"""The pauses of a retried operation, and when it ends (tinymq/base/retry.py)."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from tinymq.base.retry import Attempts, Backoff, retry_until
from tinymq_chaos.sim.virtual.event_loop import VirtualClock, VirtualLoop, run_virtually

DOUBLING = Backoff(0.02, 0.5)


def starts(
    timeout_s: float, backoff: Backoff = DOUBLING, *, takes_s: float = 0.0, stop_s: float = 0.0, reserve_s: float = 0.0
) -> list[float]:
    """When each attempt began, if each one fails after `takes_s`."""

    async def main(loop: VirtualLoop) -> list[float]:
        clock = VirtualClock(loop)
        began_s = clock.monotonic()
        seen: list[float] = []
        async for attempt in retry_until(began_s + timeout_s, clock, backoff, stop_s=stop_s):
            attempt.reserve_s = reserve_s
            assert attempt.number == len(seen) + 1
            seen.append(round(clock.monotonic() - began_s, 6))
            await clock.sleep(takes_s)
        return seen

    return run_virtually(main)


@pytest.mark.parametrize(
    ("failures", "pause_s"), [(1, 0.02), (2, 0.04), (3, 0.08), (5, 0.32), (6, 0.5), (100_000, 0.5)]
)
def test_a_pause_doubles_up_to_its_bound(failures: int, pause_s: float) -> None:
    assert DOUBLING.pause_s(failures) == pause_s


def test_jitter_shortens_a_pause_by_its_part() -> None:
    jittered = Backoff(0.02, 0.5, jitter=0.5)
    assert [jittered.pause_s(2, part) for part in (0.0, 0.5, 1.0)] == [0.02, 0.03, 0.04]


def test_the_last_attempt_is_made_at_the_deadline() -> None:
    assert starts(0.1) == [0.0, 0.02, 0.06, 0.1]


def test_one_attempt_is_made_without_any_time() -> None:
    assert starts(0.0) == [0.0]
    assert starts(0.05, stop_s=1.0) == [0.0]


def test_nothing_begins_once_no_more_than_the_stop_is_left() -> None:
    assert starts(0.5, Backoff(0.1, 0.1), stop_s=0.25) == [0.0, 0.1, 0.2, 0.3]


def test_a_reserve_is_left_to_the_last_attempt() -> None:
    unreserved = starts(1.0, Backoff(0.1, 0.8), takes_s=0.1, stop_s=0.55)
    reserved = starts(1.0, Backoff(0.1, 0.8), takes_s=0.1, stop_s=0.55, reserve_s=0.6)
    assert (unreserved, reserved) == ([0.0, 0.2, 0.5], [0.0, 0.2, 0.4])


def test_an_attempt_at_once_follows_without_a_pause_and_counts_as_no_failure() -> None:
    async def main(loop: VirtualLoop) -> list[float]:
        clock = VirtualClock(loop)
        began_s, seen = clock.monotonic(), []
        async for attempt in retry_until(math.inf, clock, DOUBLING):
            seen.append(round(clock.monotonic() - began_s, 6))
            if attempt.number == 5:
                return seen
            if attempt.number in (1, 3):
                attempt.at_once()
        raise AssertionError("it ended without a deadline")

    assert run_virtually(main) == [0.0, 0.0, 0.02, 0.02, 0.06]


def test_the_caller_is_called_before_each_pause_but_not_at_the_end() -> None:
    async def main(loop: VirtualLoop) -> tuple[int, int]:
        clock = VirtualClock(loop)
        calls: list[float] = []
        attempts: Attempts = retry_until(
            clock.monotonic() + 0.1, clock, DOUBLING, before_pause=lambda: calls.append(clock.monotonic())
        )
        count = 0
        async for _ in attempts:
            count += 1
        return count, len(calls)

    assert run_virtually(main) == (4, 3)


def test_a_seed_makes_the_pauses_of_a_jittered_schedule() -> None:
    async def main(loop: VirtualLoop) -> list[float]:
        clock = VirtualClock(loop)
        began_s = clock.monotonic()
        jittered = Backoff(0.02, 0.5, jitter=0.5)
        attempts = retry_until(began_s + 1.0, clock, jittered, rng=random.Random(1))
        return [clock.monotonic() - began_s async for _ in attempts]

    first = run_virtually(main)
    assert first == run_virtually(main)
    pauses = [later - earlier for earlier, later in itertools.pairwise(first)]
    assert all(0.01 <= pause <= 0.5 for pause in pauses)

"""Retry until a deadline: the pauses as a value, and the one loop that makes the pauses.

No other module has such a loop (docs/adr/0052). A caller iterates over `retry_until`, makes one attempt in each
pass, and leaves the loop with the result or with an error that no further attempt can change. When the iteration ends,
the time is up, and the caller raises an error that names what it tried:

    async for attempt in retry_until(deadline_s, clock, Backoff(0.02, 0.5)):
        try:
            return await ask(attempt.left_s)
        except Unavailable as error:
            last = error
    raise DeadlineExceeded(f"no answer: {last}")
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tinymq.base.clock import Clock

DOUBLINGS_MAX = 16  # keeps the power of two small when an operation fails for days


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses after failures in a row.

    The first failure is followed by `pause_s_min`. Each further one doubles the pause, up to `pause_s_max`.
    """

    pause_s_min: float
    pause_s_max: float
    jitter: float = 0.0  # the part of a pause that is random, 0 to 1: clients that failed together return apart

    def pause_s(self, failures: int, random_part: float = 1.0) -> float:
        """The pause after `failures` failures in a row, 1 or more. `random_part`, 0 to 1, scales the jitter."""
        whole_s = min(self.pause_s_max, self.pause_s_min * 2.0 ** min(failures - 1, DOUBLINGS_MAX))
        return whole_s * (1.0 - self.jitter + self.jitter * random_part)


class Attempts:
    """The attempts of one operation, for `async for`. The first one is always made, even if no time is left."""

    def __init__(
        self,
        deadline_s: float,
        clock: Clock,
        backoff: Backoff,
        rng: random.Random | None,
        before_pause: Callable[[], object],
    ) -> None:
        self.number = 0  # of the attempt under way; 1 is the first
        # The operation ends when no more than `stop_s` is left: a later attempt could not be answered in time. A pause
        # ends `reserve_s` before the deadline, so that the last attempt has this much time. The caller may change
        # both in each pass.
        self.stop_s = 0.0
        self.reserve_s = 0.0
        self._deadline_s = deadline_s
        self._clock = clock
        self._backoff = backoff
        self._rng = rng if backoff.jitter else None  # without jitter, no random number is drawn
        self._before_pause = before_pause
        self._pauses = 0
        self._at_once = False  # whether the next attempt follows without a pause (`at_once`)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, 0 or more."""
        return max(0.0, self._deadline_s - self._clock.monotonic())

    def at_once(self) -> None:
        """Make the next attempt without a pause, because this one told where to ask instead."""
        self._at_once = True

    def __aiter__(self) -> Attempts:
        return self

    async def __anext__(self) -> Attempts:
        if self.number:
            await self._pause()
        self.number += 1
        return self

    async def _pause(self) -> None:
        at_once, self._at_once = self._at_once, False
        left_s = self.left_s
        if left_s <= (0.0 if at_once else self.stop_s):
            raise StopAsyncIteration
        if at_once:
            return  # this attempt does not count as a failure, so it does not lengthen the next pause
        self._before_pause()
        self._pauses += 1
        pause_s = self._backoff.pause_s(self._pauses, 1.0 if self._rng is None else self._rng.random())
        # The reserve shortens a pause, but not below the least pause: without one, an operation that is refused at
        # once would be attempted in a busy loop until `stop_s`.
        longest_s = max(left_s - self.reserve_s, min(left_s, self._backoff.pause_s_min))
        await self._clock.sleep(min(longest_s, pause_s))


def retry_until(
    deadline_s: float,
    clock: Clock,
    backoff: Backoff,
    *,
    rng: random.Random | None = None,
    stop_s: float = 0.0,
    before_pause: Callable[[], object] = lambda: None,
) -> Attempts:
    """Return the attempts of an operation that may be repeated until `clock.monotonic()` is `deadline_s`.

    `math.inf` repeats for ever. `rng` draws the jitter of `backoff`; without it, pauses have their full length. No
    attempt begins when `stop_s` seconds or less are left, except the first one. `before_pause` is called before each
    pause, and not when the time is up.
    """
    attempts = Attempts(deadline_s, clock, backoff, rng, before_pause)
    attempts.stop_s = stop_s
    return attempts

"""What becomes of a command, and what it is judged by besides the state: values only."""

from __future__ import annotations

from typing import NamedTuple

from tinymq.base.errors import TinymqError
from tinymq.base.value import value


class OffsetBounds(NamedTuple):
    """The log as of one entry."""

    log_start: int
    end: int  # offset after the last record before the entry
    now_us: int  # the entry's append time: there is no other clock


@value
class CommandOutcome:
    """Of one command. With an error nothing was changed; the rest is as of that entry all the same, 0 where it means
    nothing."""

    error: TinymqError | None = None
    position: int = 0  # of the cursor: where to go on reading, never below the log start
    epoch: int = 0  # of the cursor
    generation: int = 0  # of the cursor
    taken: bool = False  # Consume: there was a record,
    offset: int = 0  # and this is it
    log_start: int = 0
    high_watermark: int = 0
    until_us: int = 0  # Hold: append time at which it ends by itself

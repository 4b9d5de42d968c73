"""The outcome of a command, and the bounds of the log by which it is judged. Values only."""

from __future__ import annotations

from typing import NamedTuple

from tinymq.base.errors import TinymqError
from tinymq.base.value import value


class OffsetBounds(NamedTuple):
    """The log as of one entry."""

    log_start: int
    end: int  # offset after the last record before the entry
    now_us: int  # the entry's append time: replicated decisions have no other clock
    cursors_max: int  # how many cursors the partition may have, by the version of the entry


@value
class CommandOutcome:
    """The outcome of one command. A command with an error has changed nothing. With or without an error, the other
    fields describe the state after the command; those that have no meaning for it are 0."""

    error: TinymqError | None = None
    position: int = 0  # of the cursor: the next offset to read, never below the log start
    epoch: int = 0  # of the cursor
    generation: int = 0  # of the cursor
    taken: bool = False  # Consume: whether there was a record
    offset: int = 0  # Consume: of that record
    log_start: int = 0
    high_watermark: int = 0
    until_us: int = 0  # Hold: the append time at which the lease ends
    refused: tuple[tuple[int, int], ...] = ()  # queue groups: offsets that the command did not change, from and below

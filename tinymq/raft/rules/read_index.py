"""Which rounds of questions prove that a leader still led: reads that are not stale, without writing anything. Pure.

ReadIndex (Ongaro's thesis, 6.4). A read notes how far is committed, and then has to know that nobody else led by then:
its leader asks its followers in a *round*, which begins after the read was asked for, and a majority answers in the
leader's own term. Who answers has not voted in a later term yet, so no later leader was elected before the round began,
and whatever was acknowledged before the read was by this leader, or before its term.

Reads that come while a round is out share the next one. Any number of rounds may be out: an answer names the greatest
that was seen, and that is an answer to all before it. A round that got lost is begun anew under the next number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tinymq.base.errors import TinymqError
from tinymq.base.value import value

ROUND_RETRY_S = 0.09  # looked at every 0.1 s while somebody waits

Answer = Callable[[int | TinymqError], None]
"""Told once: up to which index everything is applied, or why nobody knows."""


@value
class _Read:
    index: int  # committed when it was asked for: it must be applied before the answer
    round: int  # the first that began after it was asked for; 0: none has yet
    answer: Answer


class ReadIndexes:
    """Of one leadership: rounds count from 1 in each term."""

    def __init__(self) -> None:
        self._newest = 0  # the round begun last
        self._begun_at = 0.0
        self._new: list[_Read] = []  # wait for a round to begin
        self._asked: list[_Read] = []  # wait for answers
        self._proven: list[_Read] = []  # wait until their index is applied
        self._seen: dict[int, int] = {}  # by broker: the greatest round that it has answered

    @property
    def pending(self) -> bool:
        """Somebody waits."""
        return bool(self._new or self._asked or self._proven)

    def ask(self, index: int, answer: Answer) -> None:
        """Somebody wants to read what is committed now: up to `index`, which is not below the term's first entry."""
        self._new.append(_Read(index, 0, answer))

    def begin(self, now: float) -> int | None:
        """The round to send to every follower now; None when nobody needs another one."""
        overdue = bool(self._asked) and now - self._begun_at >= ROUND_RETRY_S
        if not overdue and (self._asked or not self._new):
            return None
        self._newest += 1
        self._begun_at = now
        self._asked += [_Read(read.index, self._newest, read.answer) for read in self._new]
        self._new.clear()
        return self._newest

    def answered(self, broker_id: int, round_: int) -> None:
        """A listed replica answered in this term (the caller checks both, when the answer comes)."""
        if round_ <= self._newest:
            self._seen[broker_id] = max(self._seen.get(broker_id, 0), round_)

    def take(self, own: Collection[int], applied: int, is_quorum: Callable[[Collection[int]], bool]) -> list[Answer]:
        """Whom to answer now: their rounds are proven, their indexes applied. `own`: the leader, if its word counts."""
        proven = max((r for r in {read.round for read in self._asked} if is_quorum(self._who(r, own))), default=0)
        if proven:
            self._proven += [read for read in self._asked if read.round <= proven]
            self._asked = [read for read in self._asked if read.round > proven]
        ready = [read.answer for read in self._proven if read.index <= applied]
        if ready:
            self._proven = [read for read in self._proven if read.index > applied]
        return ready

    def _who(self, round_: int, own: Collection[int]) -> set[int]:
        return {*own, *(broker_id for broker_id, seen in self._seen.items() if seen >= round_)}

    def end(self, error: TinymqError) -> None:
        """The leadership is over: nobody knows any more."""
        waiting = [*self._proven, *self._asked, *self._new]
        for reads in (self._proven, self._asked, self._new):
            reads.clear()
        for read in waiting:
            read.answer(error)

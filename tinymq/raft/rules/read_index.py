"""ReadIndex: reads that are not stale, without writing anything (Ongaro's thesis, 6.4). Pure.

A read notes the commit index. Then it waits until a majority confirms that no other broker led at that moment. The
leader asks its followers with a *read id*, after the read was asked for, and a majority answers in the leader's own
term. A replica that answers has not voted in a later term yet. So no later leader was elected before the question, and
every record acknowledged before the read was acknowledged by this leader, or before its term.

Reads that come while a question is in flight share the next read id. Any number of read ids may be in flight: an answer
names the greatest one that the follower has seen, and confirms all ids up to it. If answers are lost, the leader asks
again under the next id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tinymq.base.errors import TinymqError
from tinymq.base.value import value

RETRY_S = 0.09  # the leader looks every 0.1 s while a read waits

Answer = Callable[[int | TinymqError], None]
"""Called once, with the applied index, or with the error that ended the wait."""


@value
class _Read:
    index: int  # the commit index when the read was asked for; it has to be applied before the answer
    read_id: int  # the first one that was sent after the read was asked for; 0: none was yet
    answer: Answer


class ReadIndexes:
    """The waiting reads of one leadership. Read ids count from 1 in each term."""

    def __init__(self) -> None:
        self._newest = 0  # the read id that was sent last
        self._begun_at = 0.0  # monotonic time at which it was sent
        self._new: list[_Read] = []  # wait for a read id to be sent
        self._asked: list[_Read] = []  # wait for a majority's answers
        self._confirmed: list[_Read] = []  # confirmed; wait until their index is applied
        self._seen: dict[int, int] = {}  # by broker: the greatest read id that it has answered

    @property
    def pending(self) -> bool:
        """Does any read wait?"""
        return bool(self._new or self._asked or self._confirmed)

    def ask(self, index: int, answer: Answer) -> None:
        """A read needs everything up to `index`: the commit index now, but at least the term's first entry."""
        self._new.append(_Read(index, 0, answer))

    def begin(self, now: float) -> int | None:
        """Return the read id to send to every follower now, or None if no read needs another one."""
        overdue = bool(self._asked) and now - self._begun_at >= RETRY_S
        if not overdue and (self._asked or not self._new):
            return None
        self._newest += 1
        self._begun_at = now
        self._asked += [_Read(read.index, self._newest, read.answer) for read in self._new]
        self._new.clear()
        return self._newest

    def answered(self, broker_id: int, read_id: int) -> None:
        """A listed replica has answered in this term. The caller checks both when the answer comes."""
        if read_id <= self._newest:
            self._seen[broker_id] = max(self._seen.get(broker_id, 0), read_id)

    def take(self, own: Collection[int], applied: int, is_quorum: Callable[[Collection[int]], bool]) -> list[Answer]:
        """Take out the reads that a majority has confirmed and whose index is applied.

        `own`: the leader's broker if its own confirmation counts, else nothing.
        """
        confirmed = max(
            (r for r in {read.read_id for read in self._asked} if is_quorum(self._brokers_that_answered(r, own))),
            default=0,
        )
        if confirmed:
            self._confirmed += [read for read in self._asked if read.read_id <= confirmed]
            self._asked = [read for read in self._asked if read.read_id > confirmed]
        ready = [read.answer for read in self._confirmed if read.index <= applied]
        if ready:
            self._confirmed = [read for read in self._confirmed if read.index > applied]
        return ready

    def _brokers_that_answered(self, read_id: int, own: Collection[int]) -> set[int]:
        return {*own, *(broker_id for broker_id, seen in self._seen.items() if seen >= read_id)}

    def end(self, error: TinymqError) -> None:
        """The leadership is over: end every waiting read with `error`."""
        waiting = [*self._confirmed, *self._asked, *self._new]
        for reads in (self._confirmed, self._asked, self._new):
            reads.clear()
        for read in waiting:
            read.answer(error)

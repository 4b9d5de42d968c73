"""The fate of the rows that a relay has marked. Pure: tests/outbox/test_relay_model.py searches these rules.

A relay marks rows with the id of a transaction, in the database, before it commits that transaction. It begins no
transaction before the rows of the one before are removed, or unmarked. So after a crash, the newest decision of the
transactional id tells what became of the rows that are still marked.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

BATCH_ROWS_MAX = 500


class TransactionMark(NamedTuple):
    """The id of a transaction, as rows are marked with it. No two transactions have the same mark."""

    producer_id: int
    epoch: int
    number: int


class Decision(NamedTuple):
    """The newest decision on a transaction of the relay's transactional id."""

    producer_id: int
    number: int  # of the transaction, among those of its producer id
    committed: bool


class RowFate(Enum):
    """The fate of a marked row."""

    SENT = "its transaction is committed"
    UNSENT = "its transaction is rolled back"
    UNKNOWN = "nobody remembers its transaction"


def fate_of(mark: TransactionMark, newest: Decision | None) -> RowFate:
    """The fate of the rows with a mark, by the newest decision that was known after the id was taken.

    Taking the id rolls back what was open, so the marked transaction is decided. A later decision means that the marked
    one was rolled back: a relay begins nothing while rows of a committed transaction are marked. The coordinator
    forgets the decision when nobody has used the id for long, or after a loss of its log.
    """
    if newest is None or newest.producer_id != mark.producer_id or newest.number < mark.number:
        return RowFate.UNKNOWN
    if newest.number > mark.number:
        return RowFate.UNSENT
    return RowFate.SENT if newest.committed else RowFate.UNSENT


def is_older(newest_mark: TransactionMark | None, newest: Decision | None) -> bool:
    """Whether the database lacks rows that the log has: a transaction is committed that is not the newest one marked.

    `newest_mark` is the relay's newest mark, also after its rows are removed. If True, the database was restored from a
    backup, or another database uses the same transactional id.
    """
    if newest is None or not newest.committed:
        return False
    return newest_mark is None or (newest_mark.producer_id, newest_mark.number) != (newest.producer_id, newest.number)


def next_rows_max(rows_max: int, configured: int, *, refused: bool) -> int:
    """How many rows the next transaction takes: fewer after a refusal, until one row is alone and can be named."""
    return max(1, rows_max // 2) if refused else min(configured, rows_max * 2)

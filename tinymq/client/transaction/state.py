"""How far a transaction is."""

from __future__ import annotations

from enum import Enum


class TransactionState(Enum):
    """How far a transaction is."""

    NEW = "not begun"
    OPEN = "open"
    COMMITTING = "being committed"
    COMMITTED = "committed"
    ABORTED = "rolled back"
    UNKNOWN = "of unknown outcome"  # the commit has no answer yet

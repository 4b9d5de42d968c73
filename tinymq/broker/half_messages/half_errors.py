"""The errors of calls on half messages that the coordinator refuses."""

from __future__ import annotations

from tinymq.base.errors import (
    InvalidRequest,
    NotReady,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
    TransactionAborted,
)
from tinymq.base.types import transaction_name
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.rules import Refusal


def begin_error(refusal: Refusal, group: str) -> TinymqError:
    """The error for a half message that does not begin."""
    if refusal is Refusal.USED_ID:
        return NotReady("the coordinator has lost a part of its log, and needs another producer id")
    message = f"too many half messages of {group!r}, or of others at its coordinator, are not over"
    return QuotaExceeded(message, hint="commit or roll back what is open: tinymq half list")


def error_of(refusal: Refusal, group: str, transaction: TransactionId) -> TinymqError:
    """The error for a decision that was refused."""
    name = f"half message {transaction_name(*transaction)} of {group!r}"
    if refusal is Refusal.ABORTED:
        hint = "its sender or a checker rolled it back, it was given up, or its topic was deleted"
        return TransactionAborted(f"{name} was rolled back", hint=hint)
    if refusal is Refusal.COMMITTED:
        return InvalidRequest(f"{name} is committed already", hint="that cannot be undone")
    hint = "only the newest outcomes are remembered: read back, or see: tinymq half list"
    return OutcomeUnknown(f"{name} is not known, or over for long", hint=hint)

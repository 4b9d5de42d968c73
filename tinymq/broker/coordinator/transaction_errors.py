"""The errors that owners of transactional ids get when the coordinator refuses their calls."""

from __future__ import annotations

from tinymq.base.errors import (
    Fenced,
    InvalidRequest,
    NotReady,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
    TransactionAborted,
    VersionReused,
)
from tinymq.broker.transactions.rules import PARTITIONS_MAX, Refusal


def error_of(refusal: Refusal, name: str) -> TinymqError:
    """The error for a call on the transactional id `name` that was refused."""
    match refusal:
        case Refusal.FENCED:
            hint = "one process for each transactional id; the later one goes on, and this one has to register again"
            return Fenced(f"another registration took the transactional id {name!r}, or it expired", hint=hint)
        case Refusal.ABORTED:
            return TransactionAborted(f"the transaction of {name!r} was rolled back")
        case Refusal.COMMITTED:
            return InvalidRequest(f"the transaction of {name!r} is committed already", hint="begin another one")
        case Refusal.UNKNOWN:
            hint = "only the newest outcome of a transactional id is remembered: read back before sending again"
            return OutcomeUnknown(f"{name!r} has no such transaction any more", hint=hint)
        case Refusal.TOO_LARGE:
            hint = "use several transactions"
            return InvalidRequest(f"a transaction has at most {PARTITIONS_MAX} partitions", hint=hint)
        case Refusal.TOO_MANY:
            return QuotaExceeded(f"too many transactions of {name!r} or its coordinator are not over yet")
        case Refusal.REUSED:
            hint = "after a checkpoint was deleted, choose another txnAppId"
            return VersionReused(f"another query has committed this version of {name!r}, or a higher one", hint=hint)
        case Refusal.KNOWN:
            return InvalidRequest(f"{name!r} has a coordinator that decides", hint="see: tinymq transaction list")
        case Refusal.USED_ID:
            return NotReady("the coordinator has lost a part of its log, and needs another producer id")


def resolution_error(refusal: Refusal, transaction: str) -> TinymqError:
    """The error for an operator's decision about the transaction of this name that was refused."""
    if refusal in (Refusal.COMMITTED, Refusal.ABORTED):
        done = "committed" if refusal is Refusal.COMMITTED else "rolled back"
        message = f"transaction {transaction} was {done} by an operator before, and that cannot be undone"
        return InvalidRequest(message)
    hint = "its record is not lost: see tinymq transaction list, and tinymq transaction abort"
    return InvalidRequest(f"the coordinator decides about transaction {transaction} itself", hint=hint)

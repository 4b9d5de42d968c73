"""The calls that a transaction refuses, and the errors that it raises when it fails. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tinymq.base.errors import Denied, InvalidRequest, NotFound, OutOfOrderSequence, TinymqError, TransactionAborted


def check_plain(message_id: object, delay: object, deliver_at: object) -> None:
    """Refuse what a record of a transaction cannot have. Raises InvalidRequest."""
    if message_id is not None or delay is not None or deliver_at is not None:
        raise InvalidRequest(
            "a record of a transaction has no message id, and is not delayed",
            hint="send it by mq.send, or by a producer",
        )


def check_no_settings(settings: Mapping[str, object]) -> None:
    """Refuse settings of a transaction without an id. Raises InvalidRequest."""
    if settings:
        raise InvalidRequest(
            f"{', '.join(settings)}: a transaction without an id has no settings",
            hint='give the transaction an id: mq.transaction("NAME", ...)',
        )


def aborted_by(error: TinymqError) -> TinymqError:
    """Return the error that a transaction raises after `error` has ended it.

    The same records fail again if they were refused for good.
    """
    permanent = isinstance(error, InvalidRequest | NotFound | Denied) and not isinstance(error, OutOfOrderSequence)
    if permanent:
        return error
    aborted = TransactionAborted(f"the transaction is rolled back: {error.message}")
    aborted.__cause__ = error
    return aborted

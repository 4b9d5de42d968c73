"""Errors on the wire: a TinymqError as an Error message, and back. No transport is named here.

An error keeps its code, message, hint and detail. A code that this build does not know (the other end is
newer) comes back as a TinymqError that keeps what the sender said about retrying.
"""

from __future__ import annotations

from tinymq.base.errors import BY_CODE, PUBLIC, TinymqError
from tinymq.proto import tinymq_pb2 as pb

TRAILER = "tinymq-error-bin"  # gRPC metadata key of a status's trailer: a packed Error
MESSAGE_CHARS_MAX = 2000  # an error never outgrows the message that it travels in


class UnknownError(TinymqError):
    """The other end answered with a code that this build does not know. detail: wire_code."""

    __module__ = PUBLIC
    default_hint = "the other end is newer: run versions that are closer together"


class RetriableUnknownError(UnknownError):
    """The same, and the other end says that a later try may succeed."""

    retriable = True


def to_wire(error: TinymqError) -> pb.Error:
    """The message that stands for `error`."""
    return pb.Error(
        code=error.code,
        message=error.message[:MESSAGE_CHARS_MAX],
        retriable=error.retriable,
        hint=error.hint[:MESSAGE_CHARS_MAX],
        detail={name: value[:MESSAGE_CHARS_MAX] for name, value in error.detail.items()},
    )


def from_wire(error: pb.Error) -> TinymqError:
    """The error that `error` stands for; the inverse of `to_wire`."""
    return make_error(error.code, error.message, error.hint, dict(error.detail), retriable=error.retriable)


def make_error(
    code: str, message: str, hint: str | None, detail: dict[str, str], *, retriable: bool = False
) -> TinymqError:
    """An error from its parts, by the class that `code` names."""
    kind = BY_CODE.get(code)
    if kind is None or kind.__init__ is not TinymqError.__init__:  # unknown, or one that never travels
        kind = RetriableUnknownError if retriable else UnknownError
        detail = {**detail, "wire_code": code}
    made = kind(message, hint=hint)
    made.detail = dict(detail)
    return made

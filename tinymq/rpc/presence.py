"""Numbers that a request must state, although 0 is a value of theirs: an absent field is not a 0. Pure.

A request that changes something names what it changes: a queue, a partition, a place, a lease. Proto3 writes no 0 of a
field without presence, so these fields are `optional`, and a request that leaves one out is refused (docs/adr/0035).
tinymq's clients of before presence leave a 0 out, too; they are told from others by the client id that they send.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from tinymq.errors import InvalidRequest
from tinymq.rpc.services import CLIENT_ID, Context

HINT = "0 is a value like any other and is not assumed; a client generated from an older tinymq.proto leaves it out"


def leaves_zeros_out(context: Context) -> bool:
    """Does the call come from a client of tinymq's own, which may be of before presence?"""
    metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
    return bool(metadata.get(CLIENT_ID))


def require(request: Message, *fields: str, lenient: bool = False) -> None:
    """Raises InvalidRequest for the first of `fields` that is absent. `lenient`: absent is 0."""
    if lenient:
        return
    for field in fields:
        if not request.HasField(field):
            raise InvalidRequest(f"{request.DESCRIPTOR.name} does not say which {field}", hint=HINT)

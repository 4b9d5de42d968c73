"""Checks that a request states the numbers it needs, because an absent field does not mean 0. Pure.

A request that changes something names what it changes: a queue, a partition, a place, a lease. Proto3 does not write a
0 in a field without presence. So these fields are `optional`, and a request that leaves one out is refused
(docs/adr/0035). Older clients of tinymq, from before these fields had presence, also leave a 0 out. The client id in
their metadata identifies them.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from tinymq.base.errors import InvalidRequest
from tinymq.rpc.common.call_context import CLIENT_ID, Context

HINT = "an absent field does not mean 0; a client generated from an older tinymq.proto leaves a 0 out"


def leaves_zeros_out(context: Context) -> bool:
    """Does the call come from tinymq's own client? Its older versions leave a 0 out."""
    metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
    return bool(metadata.get(CLIENT_ID))


def require(request: Message, *fields: str, lenient: bool = False) -> None:
    """Raises InvalidRequest for the first of `fields` that is absent. `lenient`: an absent field means 0."""
    if lenient:
        return
    for field in fields:
        if not request.HasField(field):
            raise InvalidRequest(f"{request.DESCRIPTOR.name} does not say which {field}", hint=HINT)

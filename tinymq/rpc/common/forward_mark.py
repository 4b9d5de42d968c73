"""The mark on a call that one broker forwards to another: it proves that the call is already counted to its client's
quota.

A call with the metadata key is never forwarded again, whether its mark is valid or not: refusing a second hop grants
nothing. Not counting the call does grant something, so the mark is an HMAC by the cluster's secret, and is valid for
one call.

    value      sender "." number "." HMAC in hex
    HMAC over  "forward", cluster id, sender and its session, receiver and its session, number, method, client, request,
               and, while callers are checked, the caller that the sender has identified

A session is the random number of one start of a broker, as the registry has it, and `number` counts the calls that a
sender has marked since its start. So a mark is valid once, at one receiver, and no clock matters. An invalid mark is
ignored, and its call counts to the quota of the client that it names.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from itertools import count
from typing import Any

from tinymq.broker.serve.broker import Broker
from tinymq.rpc.common.proof import forward_proof

FORWARDED = "tinymq-forwarded"  # metadata key
WINDOW = 4096  # how many calls of one sender may overtake one another; older marks are invalid
MARK_CHARS_MAX = 128
_IDS = struct.Struct("<IQIQQ")
_LENGTHS = struct.Struct("<II")


class ForwardMarks:
    """The marks that one broker makes, and those that it has seen."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._numbers = count(1)
        self._seen: dict[int, _Seen] = {}  # by sender; at most one for each broker of the cluster

    def sign(
        self, broker: Broker, receiver: int, method: str, client: str, request: Any, *, principal: str = ""
    ) -> str:  # fmt: skip
        """The mark for a call that `broker` passes on to `receiver`. `principal`: the caller, as text."""
        sender, number = broker.env.broker_id, next(self._numbers)
        proof = self._proof(broker, (sender, receiver, number), method, client, request, principal)
        return f"{sender}.{number}.{proof.hex()}"

    def holds(
        self, broker: Broker, mark: str, method: str, client: str, request: Any, *, principal: str = ""
    ) -> bool:  # fmt: skip
        """Is the mark valid: made by a broker of this cluster for this one, and not seen before?"""
        parts = mark.split(".") if len(mark) <= MARK_CHARS_MAX and mark.isascii() else ()
        if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
            return False
        sender, number = int(parts[0]), int(parts[1])
        session = _session(broker, sender)
        if not session or number >= 1 << 64:
            return False
        proof = self._proof(broker, (sender, broker.env.broker_id, number), method, client, request, principal)
        if not hmac.compare_digest(proof.hex(), parts[2]):
            return False
        seen = self._seen.get(sender)
        if seen is None or seen.session != session:
            seen = self._seen[sender] = _Seen(session)
        return seen.is_new(number)

    def _proof(
        self, broker: Broker, ids: tuple[int, int, int], method: str, client: str, request: Any, principal: str
    ) -> bytes:  # fmt: skip
        sender, receiver, number = ids
        client_name = client.encode("utf-8", "replace")
        message = (
            broker.env.cluster_id,
            _IDS.pack(sender, _session(broker, sender), receiver, _session(broker, receiver), number),
            _LENGTHS.pack(len(method), len(client_name)),
            method.encode(),
            client_name,
            hashlib.sha256(request.SerializeToString(deterministic=True)).digest(),
            principal.encode("utf-8", "replace"),  # last: what is before it has a known length
        )
        return forward_proof(self._secret, b"".join(message))


class _Seen:
    """The numbers that one sender has used since its start."""

    def __init__(self, session: int) -> None:
        self.session = session
        self._highest = 0
        self._recent: set[int] = set()  # invariant: holds every used number above _highest - WINDOW

    def is_new(self, number: int) -> bool:
        if number <= self._highest - WINDOW or number in self._recent:
            return False
        self._recent.add(number)
        self._highest = max(self._highest, number)
        if len(self._recent) > 2 * WINDOW:
            self._recent = {each for each in self._recent if each > self._highest - WINDOW}
        return True


def _session(broker: Broker, broker_id: int) -> int:
    """The session of a broker. 0: the broker is not registered."""
    record = broker.registry.get_broker(broker_id)
    return record.session if record is not None else 0

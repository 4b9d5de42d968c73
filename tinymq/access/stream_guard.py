"""The rights of one open stream, from its opening to its end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tinymq.access.caller import Caller, quota_name
from tinymq.base.errors import TinymqError

if TYPE_CHECKING:
    from tinymq.access.gate import Gate

ACCESSES_MAX = 20_000  # that one stream remembers: a cluster has no more partitions

Refused = Callable[["Access", TinymqError], None]
"""Called with what a stream may not do any more, and the reason."""

Access = tuple[str, str, bytes | str]
"""Operation, kind and name; of a topic, its id."""


class StreamGuard:
    """The rights of one open stream: asked for once for each resource, and again after each change."""

    __slots__ = ("_call", "_gate", "allowed", "caller", "lapsed", "refused")

    def __init__(self, gate: Gate, caller: Caller, call: str) -> None:
        self.caller = caller
        self.refused: Refused = _keep_waiting
        self.lapsed: Callable[[], None] = _keep_open  # called when the proof of who calls does not hold any more
        self._gate = gate
        self._call = call
        self.allowed: set[Access] = set()  # invariant: all of it is allowed by the gate's present directory

    def check(self, access: Access) -> None:
        """Raises Unauthenticated, Denied, NotReady, UnknownTopic unless the access is allowed now."""
        if access in self.allowed:
            return
        self._check(access, once=True)
        if len(self.allowed) >= ACCESSES_MAX:  # while nobody is checked, a client may name any ids
            self.allowed.clear()
        self.allowed.add(access)

    def look_again(self) -> None:
        """Refuse what is not allowed any more."""
        if not self._gate.holds(self.caller.principal):
            self.lapsed()
        for access in list(self.allowed):
            try:
                self._check(access, once=False)
            except TinymqError as error:
                self.allowed.discard(access)
                self.refused(access, error)

    def proof_left_s(self) -> float:
        """The seconds until the proof of who calls ends; math.inf: it does not end by itself."""
        expires_us = self.caller.principal.expires_us
        return max(0.0, (expires_us - self._gate.now_us()) / 1e6) if expires_us else math.inf

    @property
    def quota_name(self) -> str:
        """The name to whose quota the stream counts; "" while callers are not checked."""
        return quota_name(self.caller.principal) if self._gate.on else ""

    def close(self) -> None:
        """End the guard together with its stream."""
        self._gate.forget(self)

    def _check(self, access: Access, *, once: bool) -> None:
        gate = self._gate
        if not gate.on:
            return
        operation, kind, name = access
        gate.present(self.caller.principal)
        if isinstance(name, bytes):
            gate.require_topic(self.caller, self._call, operation, name, once=once)
        else:
            gate.require(self.caller, self._call, operation, kind, name, once=once)


def _keep_waiting(access: Access, error: TinymqError) -> None:
    """For a stream in which nothing waits: its next message is refused."""


def _keep_open() -> None:
    """For a stream that has not begun: its first message is refused."""

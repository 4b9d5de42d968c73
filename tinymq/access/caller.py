"""The caller of an RPC: the credentials of its connection, and the principal behind them. Values; gate.py decides."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinymq.access.directory import Principal

QUOTA_PREFIX = "user:"  # before a user's name, where the others are those that clients give themselves


@dataclass(frozen=True, slots=True)
class Credential:
    """The credentials that a connection or call presents, and its address."""

    host: str
    client: str = ""  # as the client names itself: for the audit log, never for a decision
    token: str = field(default="", repr=False)
    uri: str = ""  # the subject alternative name of the client's certificate, which TLS has verified
    uri_expires_us: int = 0  # when that certificate ends, wall time
    encrypted: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """The principal that makes a call, and its address."""

    principal: Principal
    host: str
    client: str


def quota_name(principal: Principal) -> str:
    """The name to whose quota a caller counts."""
    return f"{QUOTA_PREFIX}{principal.name}"

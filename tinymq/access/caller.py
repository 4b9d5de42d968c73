"""Who makes a call: what a connection shows, and what was made of it. Values; the gate decides (gate.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinymq.access.directory import Principal

QUOTA_PREFIX = "user:"  # before a user's name, where the others are those that clients give themselves


@dataclass(frozen=True, slots=True)
class Credential:
    """What one connection or call shows of its caller, and where it comes from."""

    host: str
    client: str = ""  # as the client names itself: for the audit log, never for a decision
    token: str = field(default="", repr=False)
    uri: str = ""  # the subject alternative name of the client's certificate, which TLS has verified
    uri_expires_us: int = 0  # when that certificate ends, wall time
    encrypted: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call, and from where."""

    principal: Principal
    host: str
    client: str


def quota_name(principal: Principal) -> str:
    """The name to whose quota a caller counts."""
    return f"{QUOTA_PREFIX}{principal.name}"

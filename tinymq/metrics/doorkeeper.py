"""Which requests the HTTP port answers.

A port on loopback answers every program of its machine, and a request must name loopback as its Host: a web page that
a browser on this machine shows cannot read it under a name of its own. A port that other machines reach answers, while
callers are checked, those who may describe the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from tinymq.access.caller import Credential
from tinymq.access.gate import Gate
from tinymq.base.config import is_loopback
from tinymq.base.errors import NotReady, TinymqError, Unauthenticated
from tinymq.metrics.http import Response, plain

BEARER = "bearer "


class Doorkeeper:
    """Decides about the requests of one port."""

    def __init__(self, gate: Gate, on_loopback: bool) -> None:
        self._gate = gate
        self._on_loopback = on_loopback

    def admit(self, host: str, headers: Mapping[str, str], encrypted: bool = False) -> Response | None:
        """Return the refusal, or None. `host`: the caller's. `encrypted`: the request came with TLS."""
        if self._on_loopback:
            if is_local(headers.get("host", "")):
                return None
            return plain(HTTPStatus.MISDIRECTED_REQUEST, "this port answers as localhost only")
        if not self._gate.on:
            return None
        sent = headers.get("authorization", "")
        token = sent[len(BEARER) :].strip() if sent.lower().startswith(BEARER) else ""
        try:
            caller = self._gate.identify(Credential(host, token=token, encrypted=encrypted))
            self._gate.require(caller, "GET", "describe", "cluster")
        except Unauthenticated as error:
            return plain(HTTPStatus.UNAUTHORIZED, error.message, headers={"www-authenticate": "Bearer"})
        except NotReady as error:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, error.message)
        except TinymqError as error:
            return plain(HTTPStatus.FORBIDDEN, error.message)
        return None


def is_local(host: str) -> bool:
    """Does a Host header name this machine's loopback? None at all counts, too: browsers always send one."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return not host or is_loopback(name.strip("[]"))

"""The servers that a program names: their addresses, and whether it connects with TLS. No I/O."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tinymq.base.config import PLAIN_SCHEME, TLS_SCHEME, format_address, parse_address
from tinymq.base.errors import InvalidConfig
from tinymq.client.common.config import ClientConfig, configure

SERVERS_VARIABLE = "TINYMQ_SERVERS"  # of the environment: the brokers, if a program names none


def configure_client(servers: str | Sequence[str] | None, settings: Mapping[str, object]) -> ClientConfig:
    """Return the settings of a client of these servers. Raises InvalidConfig."""
    named = _named(servers)
    if any(part.startswith(TLS_SCHEME) for part in named):
        settings = {"tls": True, **settings}
        if not settings["tls"] or any(part.startswith(PLAIN_SCHEME) for part in named):
            raise InvalidConfig(
                "some servers with TLS, and some without", hint=f"write {TLS_SCHEME}host:port,host:port"
            )
    return configure(ClientConfig, settings)


def parse_servers(servers: str | Sequence[str] | None) -> tuple[str, ...]:
    """Read "host:port,host:port", or a list of such texts, as addresses. None means those of the environment variable
    TINYMQ_SERVERS. "tinymq://" or "tinymq+tls://" may stand in front. Raises InvalidConfig."""
    bare = [part.removeprefix(TLS_SCHEME).removeprefix(PLAIN_SCHEME) for part in _named(servers)]
    addresses = tuple(format_address(*parse_address(part)) for part in bare)
    if not addresses:
        raise InvalidConfig("no server is named", hint=f"pass Client('127.0.0.1:7070'), or set {SERVERS_VARIABLE}")
    return addresses


def _named(servers: str | Sequence[str] | None) -> list[str]:
    if servers is None:
        servers = os.environ.get(SERVERS_VARIABLE, "")
    parts = servers.split(",") if isinstance(servers, str) else servers
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise InvalidConfig(f"servers={servers!r}", hint="such as '127.0.0.1:7070', or a list of such")
    return [part.strip() for part in parts if part.strip()]

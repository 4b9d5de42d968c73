"""The cluster that a program names: its addresses, and the settings that come with it.

A program never uses the context that is in use on the command line, because a terminal must not decide where a service
writes (docs/adr/0115-a-program-names-its-cluster.md).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

from tinymq.base.config import PLAIN_SCHEME, TLS_SCHEME, format_address, parse_address
from tinymq.base.errors import CorruptData, InvalidConfig
from tinymq.client.common import contexts
from tinymq.client.common.config import TLS_CA_VARIABLE, TOKEN_VARIABLE, ClientConfig, configure
from tinymq.client.common.contexts import CONTEXT_VARIABLE, SERVERS_VARIABLE, Context


def find_cluster(
    servers: str | Sequence[str] | None, context: str | None, settings: Mapping[str, object]
) -> tuple[tuple[str, ...], ClientConfig]:
    """Return the addresses and the settings of a client.

    Its cluster is that of `servers` (see parse_servers), or the context of that name. Without both, the environment
    names it: TINYMQ_SERVERS, or else TINYMQ_CONTEXT. A context brings a token and certificates; `settings` and the
    environment overrule them.

    Raises InvalidConfig, NotFound (there is no such context), CorruptData (the file of contexts).
    """
    if servers is not None and context is not None:
        raise InvalidConfig(f"servers and the context {context!r:.100}", hint="name the cluster by one of them")
    if servers is None:
        named = _named(context)
        servers, settings = named.servers, {**_credentials(named, settings), **settings}
    return parse_servers(servers), _configured(_parts(servers), settings)


def parse_servers(servers: str | Sequence[str]) -> tuple[str, ...]:
    """Read "host:port,host:port", or a list of such texts, as addresses. "tinymq://" or "tinymq+tls://" may stand in
    front. Raises InvalidConfig."""
    bare = [part.removeprefix(TLS_SCHEME).removeprefix(PLAIN_SCHEME) for part in _parts(servers)]
    addresses = tuple(format_address(*parse_address(part)) for part in bare)
    if not addresses:
        raise InvalidConfig("no server is named", hint=f"pass Client('127.0.0.1:7070'), or set {SERVERS_VARIABLE}")
    return addresses


def _named(name: str | None) -> Context:
    """The context of that name; without a name, the cluster that the environment names."""
    if name is None:
        if servers := os.environ.get(SERVERS_VARIABLE, "").strip():
            return Context(servers)
        name = os.environ.get(CONTEXT_VARIABLE) or None
    if name is None:
        raise InvalidConfig("no cluster is named", hint=f"pass {_ways()}, or set {SERVERS_VARIABLE}")
    return contexts.load().get(name)


def _ways() -> str:
    """The hint that lists what a program may pass. It names the context that commands use, which programs do not
    use."""
    with contextlib.suppress(CorruptData):
        if current := contexts.load().current:
            return f"Client('127.0.0.1:7070') or Client(context={current!r}), which commands use now"
    return "Client('127.0.0.1:7070')"


def _credentials(context: Context, settings: Mapping[str, object]) -> dict[str, object]:
    """The settings of a context that neither `settings` nor the environment overrule."""
    found: dict[str, object] = {}
    if context.token and not (settings.get("token_file") or os.environ.get(TOKEN_VARIABLE)):
        found["token"] = context.token
    overruled = {"tls_ca", "tls_dir"} & settings.keys() or os.environ.get(TLS_CA_VARIABLE)
    if context.servers.startswith(TLS_SCHEME) and not overruled:
        found |= {"tls_ca": context.tls_ca, "tls_dir": context.tls_dir}
    return found


def _configured(parts: Sequence[str], settings: Mapping[str, object]) -> ClientConfig:
    if any(part.startswith(TLS_SCHEME) for part in parts):
        settings = {"tls": True, **settings}
        if not settings["tls"] or any(part.startswith(PLAIN_SCHEME) for part in parts):
            raise InvalidConfig(
                "some servers with TLS, and some without", hint=f"write {TLS_SCHEME}host:port,host:port"
            )
    return configure(ClientConfig, settings)


def _parts(servers: str | Sequence[str]) -> list[str]:
    parts = servers.split(",") if isinstance(servers, str) else servers
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise InvalidConfig(f"servers={servers!r}", hint="such as '127.0.0.1:7070', or a list of such")
    return [part.strip() for part in parts if part.strip()]

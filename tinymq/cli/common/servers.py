"""The brokers that a command talks to: those that it or the environment names, else the local cluster of the current
directory, else the context in use (tinymq/client/common/contexts.py)."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tinymq.base.config import PLAIN_SCHEME, TLS_SCHEME, parse_address
from tinymq.base.errors import InvalidConfig, InvalidRequest, NotFound
from tinymq.cli.common import stopwatch
from tinymq.client.common import contexts
from tinymq.client.common.contexts import CONTEXT_VARIABLE, SERVERS_VARIABLE, Context
from tinymq.dev import dev_directory

if TYPE_CHECKING:
    from tinymq.client import Client
    from tinymq.net.client_tls import ClientTls

TIMEOUT_S = 30.0
TIMEOUT_S_MIN = 0.001
TIMEOUT_S_MAX = 86_400.0


@Parameter(name="*")  # cyclopts makes each field an option of the command
@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of every command that talks to brokers."""

    servers: Annotated[
        str | None,
        Parameter(
            name=["--servers", "-s"],
            env_var=SERVERS_VARIABLE,
            help="Brokers' addresses: host:port[,host:port…], after tinymq+tls:// with TLS. [default: the local "
            "cluster's, or the context's]",
        ),
    ] = None
    timeout: Annotated[
        float, Parameter(help="Seconds to wait for an answer to a call; the first call's include the command's start.")
    ] = TIMEOUT_S
    token_file: Annotated[
        Path | None,
        Parameter(
            env_var="TINYMQ_TOKEN_FILE", help="A file with your token. [default: TINYMQ_TOKEN, or the context's token]"
        ),
    ] = None

    tls_ca: Annotated[
        Path | None,
        Parameter(
            env_var="TINYMQ_TLS_CA",
            help="The certificate of the brokers' authority, for tinymq+tls://. [default: the local cluster's, or the "
            "context's]",
        ),
    ] = None
    tls_dir: Annotated[
        Path | None,
        Parameter(env_var="TINYMQ_TLS_DIR", help="A directory with your certificate: ca.crt, tls.crt, tls.key."),
    ] = None
    context: Annotated[
        str | None,
        Parameter(
            env_var=CONTEXT_VARIABLE,
            help="A context's name, instead of --servers. [default: the local cluster, or the context in use]",
        ),
    ] = None

    def __post_init__(self) -> None:
        if not TIMEOUT_S_MIN <= self.timeout <= TIMEOUT_S_MAX:  # also refuses NaN
            hint = f"seconds, above 0: {TIMEOUT_S_MIN} to {TIMEOUT_S_MAX:.0f}"
            raise InvalidRequest(f"--timeout {self.timeout:g} is out of range", hint=hint)

    @property
    def left_s(self) -> float:
        """Seconds that are left of the time-out. However slowly the command started, a call gets half of it."""
        return max(self.timeout / 2, self.timeout - stopwatch.elapsed_s())

    @property
    def timeout_ms(self) -> float:
        """The same in milliseconds."""
        return self.left_s * 1000

    def addresses(self) -> list[str]:
        """Return the brokers' addresses, host:port each. Raises as `named`."""
        bare = self.named().servers.removeprefix(TLS_SCHEME).removeprefix(PLAIN_SCHEME)
        return [address.strip() for address in bare.split(",") if address.strip()]

    def named(self) -> Context:
        """Return the brokers of `--servers`, else those of `--context`, of the local cluster, or of the context in
        use, with what is known of their TLS and of the caller's token. An option comes before the environment.

        Raises InvalidConfig for a malformed address, and NotFound if no brokers are named.
        """
        if self.context is not None and not self._servers_come_first():
            found: Context | None = contexts.load().get(self.context)
        else:
            found = self._known()
            if self.servers is not None:
                check_addresses(self.servers)
                found = found if found is not None and found.servers == self.servers else Context(self.servers)
        if found is None:
            hint = "give -s host:port or --context, set TINYMQ_SERVERS, or start a local cluster: tinymq dev up"
            raise NotFound("no brokers were named", hint=hint)
        if self.tls_ca is not None or self.tls_dir is not None:
            ca, directory = (str(path) if path is not None else "" for path in (self.tls_ca, self.tls_dir))
            return replace(found, tls_ca=ca, tls_dir=directory)
        return found

    def _servers_come_first(self) -> bool:
        """Whether both are named, and not `--servers` by the environment alone."""
        option = self.context != os.environ.get(CONTEXT_VARIABLE)
        return self.servers is not None and not (option and self.servers == os.environ.get(SERVERS_VARIABLE))

    def _known(self) -> Context | None:
        """The local cluster of the current directory, else the context in use."""
        try:
            local = dev_directory.load(dev_directory.DEFAULT)
        except NotFound:
            known = contexts.load()
            return known.get(known.current) if known.current else None
        return Context(local.servers, str(local.path.absolute()), local.token, local.authority)

    def connect(self) -> Client:
        """Return a client for a `with` block. It sends nothing yet."""
        named, token = self.named(), self.token()
        settings: dict[str, Any] = {}
        if named.servers.startswith(TLS_SCHEME):
            settings = {"tls_ca": named.tls_ca, "tls_dir": named.tls_dir}
        from tinymq.client import Client  # takes time, which counts: see left_s

        return Client(named.servers, token=token, request_timeout_ms=self.timeout_ms, **settings)

    def tls(self) -> ClientTls | None:
        """How to call a broker without a client; None: without TLS. Raises InvalidConfig."""
        named = self.named()
        if not named.servers.startswith(TLS_SCHEME):
            return None
        if not (named.tls_ca or named.tls_dir):
            raise InvalidConfig("TLS needs the certificate of the brokers' authority", hint="give --tls-ca FILE")
        from tinymq.net.client_tls import ClientTls, paths_of
        from tinymq.net.tls_files import TlsFiles

        return ClientTls(TlsFiles(paths_of(named.tls_dir, named.tls_ca)))

    def token(self) -> str:
        """Return the token of `--token-file`, else the one that is kept for these brokers. "": the client's own, of
        the environment, if any. Raises InvalidConfig for a file that others may read."""
        if self.token_file is not None:
            return contexts.read_token(self.token_file)
        if os.environ.get("TINYMQ_TOKEN"):
            return ""  # the client reads it
        return self.named().token


def check_addresses(servers: str) -> None:
    """Raise InvalidConfig unless each part of "host:port,host:port" is an address. A scheme of tinymq's may stand in
    front."""
    for address in filter(None, map(str.strip, servers.removeprefix(TLS_SCHEME).removeprefix(PLAIN_SCHEME).split(","))):
        _check(address)


def _check(address: str) -> None:
    """Raise InvalidConfig for an address that is not host:port.

    A URL of another kind is refused because its scheme would be resolved as a part of the host name, which fails late.
    """
    scheme, found, rest = address.partition("://")
    if found:
        hint = f"write host:port, without {scheme}://: {rest.rstrip('/')}"
        raise InvalidConfig(f"{address!r} is a URL, not an address", hint=hint)
    parse_address(address)


DEFAULT_SERVERS = ServerOptions()

"""The brokers that a command talks to: those of `--servers`, else the local cluster of the current directory, else the
context in use (tinymq/cli/common/contexts.py)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tinymq.base.config import parse_address
from tinymq.base.errors import InvalidConfig, InvalidRequest, NotFound
from tinymq.cli.common import contexts, stopwatch
from tinymq.dev import dev_directory

if TYPE_CHECKING:
    from tinymq.client import Client

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
            env_var="TINYMQ_SERVERS",
            help="Brokers' addresses: host:port[,host:port…]. [default: the local cluster's, or the context's]",
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

    def addresses(self) -> str:
        """Return the addresses of `--servers`, or of the local cluster.

        Raises InvalidConfig for a malformed address, and NotFound if there are no addresses and no local cluster.
        """
        if self.servers is not None:
            check_addresses(self.servers)
            return self.servers
        try:
            return dev_directory.load(dev_directory.DEFAULT).servers
        except NotFound:
            known = contexts.load()
        if known.current:
            return known.get(known.current).servers
        hint = "give -s host:port, set TINYMQ_SERVERS, or start a local cluster: tinymq dev up"
        raise NotFound("no brokers were named", hint=hint)

    def connect(self) -> Client:
        """Return a client for a `with` block. It sends nothing yet."""
        addresses, token = self.addresses(), self.token()
        from tinymq.client import Client  # takes time, which counts: see left_s

        return Client(addresses, token=token, request_timeout_ms=self.timeout_ms)

    def token(self) -> str:
        """Return the token of `--token-file`, else of the context in use for its own brokers. "": the client's own, of
        the environment, if any. Raises InvalidConfig for a file that others may read."""
        if self.token_file is not None:
            return contexts.read_token(self.token_file)
        if os.environ.get("TINYMQ_TOKEN"):
            return ""  # the client reads it
        known = contexts.load()
        context = known.get(known.current) if known.current else None
        return context.token if context is not None and context.servers == self.addresses() else ""


def check_addresses(servers: str) -> None:
    """Raise InvalidConfig unless each part of "host:port,host:port" is an address."""
    for address in filter(None, map(str.strip, servers.split(","))):
        _check(address)


def _check(address: str) -> None:
    """Raise InvalidConfig for an address that is not host:port.

    A URL is refused because its scheme would be resolved as a part of the host name, which fails late.
    """
    scheme, found, rest = address.partition("://")
    if found:
        hint = f"write host:port, without {scheme}://: {rest.rstrip('/')}"
        raise InvalidConfig(f"{address!r} is a URL, not an address", hint=hint)
    parse_address(address)


DEFAULT_SERVERS = ServerOptions()

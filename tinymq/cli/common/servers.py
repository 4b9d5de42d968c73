"""Which brokers a command talks to: those named, else the local cluster of this folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tinymq.base.config import parse_address
from tinymq.base.errors import InvalidConfig, InvalidRequest, NotFound
from tinymq.dev import dev_folder

if TYPE_CHECKING:
    from tinymq.client import Client

TIMEOUT_S = 30.0
TIMEOUT_S_MIN = 0.001
TIMEOUT_S_MAX = 86_400.0


@Parameter(name="*")  # its fields are options of the command itself
@dataclass(frozen=True, slots=True)
class Where:
    """The options of every command that talks to brokers."""

    servers: Annotated[
        str | None,
        Parameter(
            name=["--servers", "-s"],
            env_var="TINYMQ_SERVERS",
            help="Addresses of brokers, host:port with commas between; else the local cluster's.",
        ),
    ] = None
    timeout: Annotated[float, Parameter(help="Seconds until a call that got no answer gives up.")] = TIMEOUT_S

    def __post_init__(self) -> None:
        if not TIMEOUT_S_MIN <= self.timeout <= TIMEOUT_S_MAX:  # nor is it for NaN
            hint = f"seconds, above 0: {TIMEOUT_S_MIN} to {TIMEOUT_S_MAX:.0f}"
            raise InvalidRequest(f"--timeout {self.timeout:g} is no time to wait", hint=hint)

    @property
    def timeout_ms(self) -> float:
        return self.timeout * 1000

    def addresses(self) -> str:
        """The addresses to begin with. Raises InvalidConfig for what is none, NotFound when none were given and
        there is no local cluster."""
        if self.servers is not None:
            for address in filter(None, map(str.strip, self.servers.split(","))):
                _check(address)
            return self.servers
        try:
            return dev_folder.load(dev_folder.DEFAULT).servers
        except NotFound:
            hint = "give -s host:port, set TINYMQ_SERVERS, or start a local cluster: tinymq dev up"
            raise NotFound("no brokers were named", hint=hint) from None

    def connect(self) -> Client:
        """A client, to be used in a `with` block. Nothing is sent yet."""
        addresses = self.addresses()
        from tinymq.client import Client

        return Client(addresses, request_timeout_ms=self.timeout_ms)


def _check(address: str) -> None:
    """Refuse what is no host:port. A scheme would be looked up as a part of the host, and not be found."""
    scheme, found, rest = address.partition("://")
    if found:
        hint = f"write host:port, without {scheme}://: {rest.rstrip('/')}"
        raise InvalidConfig(f"{address!r} is a URL, not an address", hint=hint)
    parse_address(address)


HERE = Where()

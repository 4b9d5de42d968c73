"""Which brokers a command talks to: those named, else the local cluster of this folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tinymq.cli import devfolder
from tinymq.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from tinymq.client import Client

TIMEOUT_S = 30.0


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

    def addresses(self) -> str:
        """The addresses to begin with. Raises NotFound when none were given and there is no local cluster."""
        if self.servers is not None:
            return self.servers
        try:
            return devfolder.load(devfolder.DEFAULT).servers
        except NotFound:
            hint = "give -s host:port, set TINYMQ_SERVERS, or start a local cluster: tinymq dev up"
            raise NotFound("no brokers were named", hint=hint) from None

    def connect(self) -> Client:
        """A client, to be used in a `with` block. Nothing is sent yet."""
        addresses = self.addresses()
        if self.timeout <= 0:
            raise InvalidRequest(f"--timeout {self.timeout}: must be above 0")
        from tinymq.client import Client

        return Client(addresses, request_timeout_ms=self.timeout * 1000)


HERE = Where()

"""`tinymq cert`: make an authority, and certificates for brokers and users, for clusters that have no authority yet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest
from tinymq.base.private_files import make_private_directory
from tinymq.base.types import check_consumer_name
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, say

HELP = """
Once: `tinymq cert ca`, on a machine that runs no broker. Then `tinymq cert broker 1 --host db1.example` for each
broker, whose directory you copy to that broker and name in its setting tls_dir. Clients need the file ca/ca.crt.
Certificates of another authority work as well, under the same file names (docs/security.md).

Example: tinymq cert broker 1 --host db1.example
"""

app = App(name="cert", help="Make certificates for TLS: ca, broker, user.", help_epilogue=HELP)
Dir = Annotated[Path, Parameter(name=["--dir", "-D"], help="The directory of all certificates.")]
Days = Annotated[int, Parameter(help="How long the certificate is valid.")]
CERTIFICATES = Path("certificates")
CA_DAYS, DAYS = 3650, 365


@app.command
def ca(
    *,
    name: Annotated[str, Parameter(help="The authority's name, which errors show.")] = "tinymq",
    days: Days = CA_DAYS,
    dir: Dir = CERTIFICATES,
    output: Output = "table",
) -> None:
    """Make an authority. Its key, ca/ca.key, signs certificates: keep it away from brokers and clients."""
    from tinymq.dev.certificates import Authority

    place = dir / "ca"
    make_private_directory(dir)
    Authority.make(name, days).write(place)
    say(f"clients know brokers by {place / 'ca.crt'}; keep {place / 'ca.key'} secret: it makes certificates")
    _made(place, output)


@app.command
def broker(
    number: Annotated[int, Parameter(help="The broker's number, from 1.")],
    /,
    *,
    host: Annotated[
        list[str] | None,
        Parameter(help="A name or an address at which clients dial it; may be repeated. [default: this machine]"),
    ] = None,
    days: Days = DAYS,
    dir: Dir = CERTIFICATES,
    output: Output = "table",
) -> None:
    """Make the certificate of a broker, or a new one. A running broker uses new files from the next connection on."""
    from tinymq.dev.certificates import HOSTS, Authority, write_issued

    if not 1 <= number < 1 << 32:
        raise InvalidRequest(f"{number} is not the number of a broker", hint="1 or more")
    authority, place = Authority.read(dir / "ca"), dir / f"broker-{number}"
    write_issued(place, authority.pem, authority.broker(number, tuple(host) if host else HOSTS, days))
    say(f'broker {number}: security = "required", tls_dir = "{place.absolute()}"')
    _made(place, output)


@app.command
def user(
    name: Annotated[str, Parameter(help="The user, whom tinymq user create makes.")],
    /,
    *,
    days: Days = DAYS,
    dir: Dir = CERTIFICATES,
    output: Output = "table",
) -> None:
    """Make the certificate of a user, for brokers with client_certificates = true. Others know users by tokens."""
    from tinymq.dev.certificates import Authority, write_issued

    check_consumer_name(name)
    if name == "ca" or name.startswith("broker-"):
        raise InvalidRequest(f"a user cannot be called {name!r} here", hint="its directory would be another's")
    authority, place = Authority.read(dir / "ca"), dir / name
    write_issued(place, authority.pem, authority.user(name, days))
    say(f"{name} connects with --tls-dir {place}, or Client(..., tls_dir={str(place)!r})")
    _made(place, output)


def _made(place: Path, output: Output) -> None:
    say(f"made {place}")
    if output == "json":
        print_json({"directory": str(place)})

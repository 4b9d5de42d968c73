"""`tinymq quota`: bound what users may use."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest
from tinymq.base.identity.quota import NAMES
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.common.units import parse_bytes

HELP = """
Quotas count while callers are checked (`tinymq auth enable`). "*" stands for every user, as far as a user has no bound
of its own.

Example: tinymq quota set anna --produce-bytes-per-s 10MB --topics 20

Example: tinymq quota set '*' --requests-per-s 500 --connections 50

Example: tinymq quota list
"""

app = App(name="quota", help="Bound what users may use: set, list, delete.", help_epilogue=HELP)
User = Annotated[str, Parameter(help='The user, or "*": every user without a bound of its own.')]


def _bound(text: str) -> Any:
    return Annotated[str, Parameter(help=f"{text}; none: no bound.")]


@app.command(name="set")
def set_(
    user: User,
    /,
    *,
    produce_bytes_per_s: _bound("What its programs send to one broker, such as 10MB") = "",  # type: ignore[valid-type]
    fetch_bytes_per_s: _bound("What its programs read from one broker") = "",  # type: ignore[valid-type]
    requests_per_s: _bound("Calls, batches and answers to fetches, of one broker") = "",  # type: ignore[valid-type]
    connections: _bound("Open streams to one broker") = "",  # type: ignore[valid-type]
    topics: _bound("Topics that it has made") = "",  # type: ignore[valid-type]
    partitions: _bound("Partitions of those topics") = "",  # type: ignore[valid-type]
    groups: _bound("Groups that it has made") = "",  # type: ignore[valid-type]
    producer_ids_per_h: _bound("Producers that are new to one partition, in an hour") = "",  # type: ignore[valid-type]
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Set some bounds. The others stay."""
    texts = {
        "produce_bytes_per_s": produce_bytes_per_s, "fetch_bytes_per_s": fetch_bytes_per_s,
        "requests_per_s": requests_per_s, "connections": connections, "topics": topics, "partitions": partitions,
        "groups": groups, "producer_ids_per_h": producer_ids_per_h,
    }  # fmt: skip
    assert tuple(texts) == NAMES, "an option for each bound"
    bounds = {name: _number(name, text) for name, text in texts.items() if text}
    if not bounds:
        raise InvalidRequest("no bound is named", hint="such as --requests-per-s 100; --requests-per-s none removes it")
    with servers.connect() as mq:
        quota = mq.access.set_quota(user, **bounds)
    say(f"quota of {user}: {_text(quota.bounds)}")
    if output == "json":
        print_json({"user": quota.user, "bounds": quota.bounds})


@app.command(name="list")
def list_(
    user: Annotated[str, Parameter(help='A user, or "*". [default: all]')] = "",
    /,
    *,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """List the quotas."""
    with servers.connect() as mq:
        quotas = mq.access.list_quotas(user)
    if output == "json":
        print_json({"quotas": [{"user": quota.user, "bounds": quota.bounds} for quota in quotas]})
        return
    print_table(["user", "bounds"], [(quota.user, _text(quota.bounds)) for quota in quotas])


@app.command
def delete(user: User, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """Remove all bounds of a user."""
    with servers.connect() as mq:
        mq.access.delete_quota(user)
    say(f"{user} has no quota any more")
    if output == "json":
        print_json({"user": user, "deleted": True})


def _text(bounds: dict[str, int]) -> str:
    return ", ".join(f"{name}={bound}" for name, bound in bounds.items()) or "none"


def _number(name: str, text: str) -> int | None:
    """Raises InvalidRequest."""
    if text == "none":
        return None
    if "bytes" in name:
        return parse_bytes(text)
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidRequest(f"{name}={text!r:.100} is not a number", hint="write a whole number, or none")
    return int(text)

"""`tinymq hold`: list, create, renew and release holds, which keep records from being removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest, NotFound
from tinymq.base.types import Offset
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.common.units import parse_seconds
from tinymq.cli.verbs.channel import Partitions
from tinymq.cli.verbs.topic import extent

if TYPE_CHECKING:
    from tinymq.client import Client, HoldDescription

HELP = """
A hold keeps the records from an offset on until its lease ends, regardless of retention, so that a long read finds
them all.

Example: tinymq hold list orders
"""

app = App(
    name="hold",
    help="Keep records from being removed for a while: list, create, renew and release holds.",
    help_epilogue=HELP,
)

Topic = Annotated[str, Parameter(help="The topic.")]
Partition = Annotated[int, Parameter(help="The partition's number.")]
HoldId = Annotated[str, Parameter(help="The hold's id, as `tinymq hold list` shows it, or the beginning of the id.")]
Lease = Annotated[str, Parameter(help="How long the hold lasts unless you renew it: 1s to 1h, such as 90s or 15m.")]


@app.command(name="list")
def list_(
    topic: Topic, /, *, partition: Partitions = None, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table"
) -> None:
    """List a topic's holds: the offset from which each keeps records, and the time left.

    Expired holds keep nothing and are not listed.
    """
    with servers.connect() as mq:
        if partition is None:
            holds = mq.admin.list_holds(topic)
        else:
            holds = [hold for number in partition for hold in mq.admin.list_holds(topic, number)]
    if output == "json":
        print_json({"holds": [_document(hold) for hold in holds]})
    else:
        _print_table(holds)


@app.command
def create(
    topic: Topic,
    partition: Partition,
    /,
    *,
    offset: Annotated[str, Parameter(help="Keep the records from here on: an offset, or start.")] = "start",
    lease: Lease = "60s",
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Keep the records of a partition from an offset on, for as long as the lease lasts.

    Retention and drop_oldest stop at that offset (a full partition refuses writes meanwhile), and a trim waits. The
    hold is not renewed automatically: see `tinymq hold renew`. Programs use admin.hold(), which renews its lease.
    """
    lease_s = parse_seconds(lease)
    with servers.connect() as mq:
        first = extent(mq, topic, partition).log_start if offset == "start" else _number(offset)
        made = mq.admin.make_hold(topic, partition, Offset(first), lease=lease_s)
    _show(made, output)


@app.command
def renew(
    topic: Topic,
    partition: Partition,
    hold_id: HoldId,
    /,
    *,
    lease: Lease = "60s",
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Give a hold a new lease from now on, also a hold of another client."""
    lease_s = parse_seconds(lease)
    with servers.connect() as mq:
        held = _named(mq, topic, partition, hold_id)
        made = mq.admin.make_hold(topic, partition, Offset(held.offset), lease=lease_s, hold_id=held.hold_id)
    _show(made, output)


@app.command
def release(
    topic: Topic,
    partition: Partition,
    hold_id: HoldId,
    /,
    *,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """End a hold now, also a hold of another client. Retention may then remove its records.

    A reader that relies on the hold gets no warning.
    """
    with servers.connect() as mq:
        held = _named(mq, topic, partition, hold_id)
        mq.admin.release_hold(topic, partition, held.hold_id)
    if output == "json":
        print_json({**_document(held), "left_s": 0.0, "released": True})
    else:
        say(f"hold {held.hold_id.hex()} of {topic}/{partition} released: it kept offset {held.offset} and later")


def _named(mq: Client, topic: str, partition: int, text: str) -> HoldDescription:
    """Return the hold whose id begins with `text`. Raises NotFound, or InvalidRequest if several ids do."""
    holds = [hold for hold in mq.admin.list_holds(topic, partition) if hold.hold_id.hex().startswith(text.lower())]
    hint = f"see: tinymq hold list {topic} -p {partition}"
    if not holds:
        raise NotFound(f"{topic}/{partition} has no hold {text!r} (any more)", hint=hint)
    if len(holds) > 1:
        raise InvalidRequest(f"{len(holds)} holds of {topic}/{partition} begin with {text!r}", hint=hint)
    return holds[0]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequest(f"{text!r} is not an offset", hint="write --offset 42, or --offset start")
    return int(text)


def _show(hold: HoldDescription, output: Output) -> None:
    if output == "json":
        print_json(_document(hold))
    else:
        _print_table([hold])


def _print_table(holds: list[HoldDescription]) -> None:
    rows = [(hold.hold_id.hex(), hold.partition, hold.offset, f"{hold.left_s:.0f}s") for hold in holds]
    print_table(["hold", "partition", "from offset", "left"], rows)


def _document(hold: HoldDescription) -> dict[str, Any]:
    return {
        "hold": hold.hold_id.hex(),
        "topic": hold.topic,
        "partition": hold.partition,
        "offset": hold.offset,
        "left_s": hold.left_s,
    }

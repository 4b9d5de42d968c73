"""`tinymq hold`: what keeps records of a topic from being removed: listing, making, renewing and releasing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest, NotFound
from tinymq.base.types import Offset
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import HERE, Where
from tinymq.cli.common.units import parse_seconds
from tinymq.cli.verbs.channel import Partitions
from tinymq.cli.verbs.topic import extent

if TYPE_CHECKING:
    from tinymq.client import Client, HoldDescription

app = App(
    name="hold",
    help="Keep records from being removed for a while: list, create, renew and release holds.\n\nA hold keeps what "
    "lies from an offset on, whatever retention says, until its lease ends: a long read, once planned, finds it all.",
)

Topic = Annotated[str, Parameter(help="The topic.")]
Partition = Annotated[int, Parameter(help="The partition's number.")]
HoldId = Annotated[str, Parameter(help="As `tinymq hold list` shows it, or its beginning.")]
Lease = Annotated[str, Parameter(help="How long it lasts unless it is renewed: 1s to 1h, such as 90s or 15m.")]


@app.command(name="list")
def list_(topic: Topic, /, *, partition: Partitions = None, where: Where = HERE, output: Output = "table") -> None:
    """List a topic's holds: from which offset on each keeps records, and for how much longer.

    Holds that ran out are not listed: they keep nothing.
    """
    with where.connect() as mq:
        if partition is None:
            found = mq.admin.list_holds(topic)
        else:
            found = [hold for number in partition for hold in mq.admin.list_holds(topic, number)]
    if output == "json":
        print_json({"holds": [_document(hold) for hold in found]})
    else:
        _print_table(found)


@app.command
def create(
    topic: Topic,
    partition: Partition,
    /,
    *,
    offset: Annotated[str, Parameter(help="Keep what lies from here on: an offset, or start.")] = "start",
    lease: Lease = "60s",
    where: Where = HERE,
    output: Output = "table",
) -> None:
    """Keep the records of a partition from an offset on, for as long as the lease lasts.

    Retention and drop_oldest stop there (a full partition refuses writes meanwhile), and a trim waits. Nobody renews
    it: see `tinymq hold renew`. Programs use admin.hold(), which renews itself.
    """
    lease_s = parse_seconds(lease)
    with where.connect() as mq:
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
    where: Where = HERE,
    output: Output = "table",
) -> None:
    """Give a hold a new lease, from now on, whoever made it."""
    lease_s = parse_seconds(lease)
    with where.connect() as mq:
        found = _named(mq, topic, partition, hold_id)
        made = mq.admin.make_hold(topic, partition, Offset(found.offset), lease=lease_s, hold_id=found.hold_id)
    _show(made, output)


@app.command
def release(
    topic: Topic, partition: Partition, hold_id: HoldId, /, *, where: Where = HERE, output: Output = "table"
) -> None:
    """End a hold now, whoever made it: retention may remove its records. Who reads them is not told before."""
    with where.connect() as mq:
        found = _named(mq, topic, partition, hold_id)
        mq.admin.release_hold(topic, partition, found.hold_id)
    if output == "json":
        print_json({**_document(found), "left_s": 0.0, "released": True})
    else:
        say(f"hold {found.hold_id.hex()} of {topic}/{partition} released, which kept all from offset {found.offset} on")


def _named(mq: Client, topic: str, partition: int, text: str) -> HoldDescription:
    """The hold whose id begins so. Raises NotFound, InvalidRequest (several do)."""
    found = [hold for hold in mq.admin.list_holds(topic, partition) if hold.hold_id.hex().startswith(text.lower())]
    hint = f"see: tinymq hold list {topic} -p {partition}"
    if not found:
        raise NotFound(f"{topic}/{partition} has no hold {text!r} (any more)", hint=hint)
    if len(found) > 1:
        raise InvalidRequest(f"{len(found)} holds of {topic}/{partition} begin with {text!r}", hint=hint)
    return found[0]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequest(f"{text!r} is no offset", hint="write --offset 42, or --offset start")
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

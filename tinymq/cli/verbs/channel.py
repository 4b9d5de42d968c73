"""`tinymq channel`: list, move and delete the channels of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.errors import OffsetOutOfRange, UnknownChannel
from tinymq.base.quantity import named
from tinymq.base.types import Offset
from tinymq.cli.common.offsets import Last, Start, parse_start
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.verbs.topic import DryRun

if TYPE_CHECKING:
    from tinymq.client import ChannelDescription, Client, PartitionOffsets
    from tinymq.client.common.start_positions import Place

HELP = """
Example: tinymq channel list orders

Example: tinymq channel seek orders billing --to @-1h
"""

app = App(
    name="channel",
    help="List, move and delete the channels of a topic. A channel is a reader's cursor in a partition.",
    help_epilogue=HELP,
)

Topic = Annotated[str, Parameter(help="The topic.")]
Channel = Annotated[str, Parameter(help="The channel's name.")]
Partitions = Annotated[
    list[int] | None, Parameter(name=["--partition", "-p"], help="Only these partitions; may be repeated.")
]
TO = "start, end, a number, -N (the last N of each partition), or @time (ISO 8601, seconds)."


@app.command(name="list")
def list_(
    topic: Topic, /, *, partition: Partitions = None, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table"
) -> None:
    """List a topic's channels: the position of each, its lag in records, and its consumer.

    The consumer is the client that opened the channel last and has not closed it. It may have died since.
    """
    with servers.connect() as mq:
        channels = _channels(mq, topic, partition)
    if output == "json":
        print_json({"channels": [_document(channel) for channel in channels]})
        return
    rows = [
        (c.channel, c.partition, c.position, c.lag, c.consumer or None, c.moved.isoformat() if c.moved else None)
        for c in sorted(channels, key=lambda c: (c.channel, c.partition))
    ]
    print_table(["channel", "partition", "position", "lag", "consumer", "moved"], rows)


@app.command
def seek(
    topic: Topic,
    channel: Channel,
    /,
    *,
    to: Annotated[str, Parameter(allow_leading_hyphen=True, help=TO)],
    partition: Partitions = None,
    dry_run: DryRun = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Move a channel, in all partitions that have it. Its consumer is fenced at the next commit and must reopen it."""
    place = parse_start(to)
    with servers.connect() as mq:
        channels = _named(mq, topic, channel, partition)
        targets = _targets(mq, topic, place, channels)
        moved = []
        for described in channels:
            if dry_run:
                position = targets[described.partition]
            else:
                # "end" and a time are resolved again at the move, because records may have arrived since the lookup.
                exact = isinstance(place, Offset | Last)
                to_place: Place = Offset(targets[described.partition]) if exact else _as_place(place)
                position = mq.admin.seek_channel(topic, described.partition, channel, to_place)
            moved.append((described.partition, described.position, position))
    if output == "json":
        rows = [dict(zip(("partition", "from", "to"), row, strict=True)) for row in moved]
        print_json({"topic": topic, "channel": channel, "dry_run": dry_run, "partitions": rows})
    else:
        say(f"channel {channel} of {topic} {'would move' if dry_run else 'moved'}")
        print_table(["partition", "from", "to"], moved)


@app.command
def delete(
    topic: Topic,
    channel: Channel,
    /,
    *,
    partition: Partitions = None,
    dry_run: DryRun = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Delete a channel, in all partitions that have it. The records stay. A reader that reopens it starts over."""
    with servers.connect() as mq:
        channels = _named(mq, topic, channel, partition)
        for described in channels:
            if not dry_run:
                mq.admin.delete_channel(topic, described.partition, channel)
    numbers = [described.partition for described in channels]
    if output == "json":
        print_json({"topic": topic, "channel": channel, "partitions": numbers, "deleted": not dry_run})
    else:
        done = "would be deleted" if dry_run else "deleted"
        say(f"channel {channel} of {topic} {done}, in {named('partition', numbers)}")


def _channels(mq: Client, topic: str, partitions: list[int] | None) -> list[ChannelDescription]:
    if partitions is None:
        return mq.admin.list_channels(topic)
    return [described for number in partitions for described in mq.admin.list_channels(topic, number)]


def _named(mq: Client, topic: str, channel: str, partitions: list[int] | None) -> list[ChannelDescription]:
    """Return the channel in each partition that has it. Raises UnknownChannel for a named partition without it."""
    channels = [c for c in _channels(mq, topic, partitions) if c.channel == channel]
    missing = sorted({*(partitions or [])} - {c.partition for c in channels})
    if not channels or missing:
        place = f"partition {missing[0]} of {topic}" if missing else topic
        raise UnknownChannel(f"{place} has no channel {channel!r}", hint=f"see: tinymq channel list {topic}")
    return channels


def _targets(mq: Client, topic: str, place: Start, channels: list[ChannelDescription]) -> dict[int, int]:
    """Return the target offset in each partition, as of now. Raises OffsetOutOfRange before anything is moved."""
    extents = mq.admin.offsets(topic)
    if isinstance(place, Offset):
        for described in channels:
            _check_within(topic, described.partition, place.value, extents[described.partition])
        return {described.partition: place.value for described in channels}
    if isinstance(place, Last):
        last = {p: max(extent.log_start, extent.high_watermark - place.count) for p, extent in extents.items()}
        return {described.partition: last[described.partition] for described in channels}
    offsets = mq.admin.find_offsets(topic, place)
    return {described.partition: offsets[described.partition] for described in channels}


def _check_within(topic: str, partition: int, offset: int, extent: PartitionOffsets) -> None:
    if not extent.log_start <= offset <= extent.high_watermark:
        raise OffsetOutOfRange(
            f"{topic}/{partition} has no offset {offset}: it begins at {extent.log_start} and ends at"
            f" {extent.high_watermark}",
            hint="choose partitions with -p, or write start, end or -N",
            log_start=extent.log_start,
            high_watermark=extent.high_watermark,
        )


def _as_place(place: Start) -> Place:
    assert not isinstance(place, Last), "Last is resolved to offsets first"
    return place


def _document(channel: ChannelDescription) -> dict[str, Any]:
    return {
        "channel": channel.channel,
        "partition": channel.partition,
        "position": channel.position,
        "lag": channel.lag,
        "consumer": channel.consumer or None,
        "moved": channel.moved.isoformat() if channel.moved else None,
    }

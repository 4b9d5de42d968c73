"""`tinymq topic`: create, list, describe, alter, trim and delete topics."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base import topic_config
from tinymq.base.errors import InvalidRequest, OffsetOutOfRange, UnknownPartition, UnknownTopic
from tinymq.base.quantity import quantity
from tinymq.base.types import Offset
from tinymq.cli.common import units
from tinymq.cli.common.confirmation import confirm
from tinymq.cli.common.offsets import parse_time
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_line, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions

if TYPE_CHECKING:
    from tinymq.client import Client, PartitionOffsets, TopicDescription

HELP = """
Example: tinymq topic create orders --partitions 6 --set retention_ms=7d

Example: tinymq topic describe orders

Example: tinymq topic alter orders --set max_bytes=1GiB
"""

app = App(name="topic", help="Create, list, describe, alter, trim and delete topics.", help_epilogue=HELP)

SETTINGS = (
    f"name=value; may be repeated: {', '.join(setting.usage() for setting in topic_config.SETTINGS)}. "
    f"`{topic_config.NO_BOUND}` means no bound."
)
Name = Annotated[str, Parameter(help="The topic's name: 1 to 249 of A-Z a-z 0-9 . _ -")]
Number = Annotated[int, Parameter(help="The partition's number.")]
Settings = Annotated[list[str] | None, Parameter(name=["--set"], help=SETTINGS)]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative="", help="Do not ask.")]
DryRun = Annotated[
    bool, Parameter(name=["--dry-run"], negative="", help="Show what the command would do, and change nothing.")
]


@app.command
def create(
    name: Name,
    /,
    *,
    partitions: Annotated[int, Parameter(name=["--partitions", "-p"])] = 1,
    replication_factor: Annotated[int | None, Parameter(name=["--replication-factor", "-r"])] = None,
    settings: Settings = None,
    if_not_exists: Annotated[
        bool, Parameter(negative="", help="Leave a topic of this name as it is, and show it.")
    ] = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Create a topic; return when every partition has a leader.

    All bounds among the settings apply per partition. `tinymq topic describe NAME` shows what the settings promise.

    Parameters
    ----------
    replication_factor
        Copies of each partition. [default: 3, or the number of brokers if there are fewer; the command first waits
        until as many brokers are registered as the metadata has voters, or 3]
    """
    parsed = units.parse_settings(settings or [])
    topic_config.make(parsed.items())  # refuses invalid settings before any call to a broker
    with servers.connect() as mq:
        topic = mq.admin.create_topic(name, partitions, replication_factor, settings=parsed, exist_ok=if_not_exists)
    if output == "json":
        print_json(_document(topic))
    else:
        _print_table([topic])


@app.command(name="list")
def list_(*, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """List all topics."""
    with servers.connect() as mq:
        topics = mq.admin.list_topics()
    if output == "json":
        print_json({"topics": [_document(topic) for topic in topics]})
    else:
        _print_table(topics)


@app.command
def describe(name: Name, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """Show a topic's partitions (leader, replicas and offsets), its settings, and what they promise."""
    with servers.connect() as mq:
        topic = mq.admin.describe_topic(name)
        offsets = mq.admin.offsets(name)
    if output == "json":
        print_json(_described(topic, offsets))
        return
    rows = [
        (
            p.partition,
            p.leader or None,
            " ".join(map(str, p.replicas)),
            offsets[p.partition].log_start,
            offsets[p.partition].high_watermark,
        )
        for p in topic.partitions
    ]
    print_table(["partition", "leader", "replicas", "start", "end"], rows)
    if topic.settings:
        print_line()
        print_table(["setting", "value"], [(n, units.show(n, value)) for n, value in topic.settings.items()])
        _print_promise(topic)


@app.command
def alter(
    name: Name,
    /,
    *,
    settings: Annotated[list[str], Parameter(name=["--set"], help=SETTINGS)],
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Change the given settings of a topic, all of them or none. `storage` cannot change.

    A shorter retention removes older records within seconds, and permanently.
    """
    parsed = units.parse_settings(settings)
    topic_config.parse_settings(parsed.items())
    with servers.connect() as mq:
        topic = mq.admin.alter_topic(name, parsed)
    if output == "json":
        print_json({"name": topic.name, "settings": dict(topic.settings)})
    else:
        print_table(["setting", "value"], [(n, units.show(n, value)) for n, value in topic.settings.items()])
        _print_promise(topic)


@app.command
def trim(
    name: Name,
    partition: Number,
    /,
    *,
    before: Annotated[
        str | None, Parameter(help="Remove the records before this time: ISO 8601, or seconds since 1970.")
    ] = None,
    before_offset: Annotated[int | None, Parameter(help="Remove the records before this offset.")] = None,
    dry_run: DryRun = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Remove the oldest records of a partition, permanently and for all its readers.

    --before compares the records' timestamps: it removes all records before the first one at or after that time.
    Records under a hold stay, and the call waits up to --timeout for the hold to end.
    """
    place = _place(before, before_offset)
    with servers.connect() as mq:
        bounds = extent(mq, name, partition)
        if dry_run:
            target = place.value if isinstance(place, Offset) else mq.admin.find_offsets(name, place)[partition]
            if target > bounds.high_watermark:
                raise OffsetOutOfRange(
                    f"offset {target} is past the end",
                    hint=f"the partition has offsets {bounds.log_start} to {bounds.high_watermark}",
                    log_start=bounds.log_start,
                    high_watermark=bounds.high_watermark,
                )
            start = max(bounds.log_start, target)
        else:
            start = mq.admin.trim(name, partition, place)
    removed = max(0, start - bounds.log_start)
    if output == "json":
        print_json({"name": name, "partition": partition, "log_start": start, "removed": removed, "dry_run": dry_run})
        return
    removal = f"{'would remove' if dry_run else 'removed'} {quantity(removed, 'record')} of {name}/{partition}"
    say(f"{removal}: it {'would begin' if dry_run else 'begins'} at {start}, and ends at {bounds.high_watermark}")


@app.command
def add_partition(name: Name, /, *, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table") -> None:
    """Add a partition to a topic, with a number that the topic never used before.

    Records with a key may go to other partitions than before, so order within a key holds only from now on.
    """
    with servers.connect() as mq:
        added = mq.admin.add_partition(name)
    if output == "json":
        print_json({"name": name, "partition": added.partition, "replicas": list(added.replicas)})
    else:
        print_table(["topic", "partition", "replicas"], [(name, added.partition, " ".join(map(str, added.replicas)))])


@app.command
def delete_partition(
    name: Name,
    partition: Number,
    /,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Delete one partition of a topic with all its records and channels; its number is never used again."""
    with servers.connect() as mq:
        if dry_run:
            bounds = extent(mq, name, partition)
            say(f"would delete {name}/{partition}, with {quantity(bounds.high_watermark - bounds.log_start, 'record')}")
        else:
            confirm(f"delete partition {name}/{partition} with all its records", yes)
            mq.admin.delete_partition(name, partition)
            say(f"partition {name}/{partition} deleted")
    if output == "json":
        print_json({"name": name, "partition": partition, "deleted": not dry_run})


@app.command
def delete(
    name: Name, /, *, yes: Yes = False, servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table"
) -> None:
    """Delete a topic and all its records. Asks first; a script has to pass --yes."""
    with servers.connect() as mq:
        try:
            if not yes:
                partitions = len(mq.admin.describe_topic(name).partitions)
                confirm(f"delete topic {name}, {quantity(partitions, 'partition')} with all records", yes)
            mq.admin.delete_topic(name)
        except UnknownTopic as error:  # the default hint is to create the topic
            meant = error.hint.partition("?")[0] + "?" if "did you mean" in error.hint else ""
            raise UnknownTopic(error.message, hint=meant or "list the topics: tinymq topic list") from None
    say(f"topic {name} deleted")
    if output == "json":
        print_json({"name": name, "deleted": True})


BEFORE_HINT = "write --before 2026-01-01T00:00Z, or seconds since 1970"


def _place(before: str | None, before_offset: int | None) -> datetime | Offset:
    if (before is None) == (before_offset is None):
        raise InvalidRequest(
            "neither or both of --before and --before-offset are given", hint="give exactly one of them"
        )
    return parse_time(before, BEFORE_HINT) if before is not None else Offset(before_offset or 0)


def extent(mq: Client, name: str, partition: int) -> PartitionOffsets:
    """Return the start and the end of a partition. Raises UnknownPartition."""
    offsets = mq.admin.offsets(name)
    if partition not in offsets:
        raise UnknownPartition(f"{name} has no partition {partition}")
    return offsets[partition]


def _document(topic: TopicDescription) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partitions": len(topic.partitions),
        "replication_factor": topic.replication_factor,
    }


def _described(topic: TopicDescription, offsets: dict[int, PartitionOffsets]) -> dict[str, Any]:
    partitions = [
        {
            "partition": p.partition,
            "leader": p.leader or None,
            "replicas": list(p.replicas),
            "start_offset": offsets[p.partition].log_start,
            "end_offset": offsets[p.partition].high_watermark,
        }
        for p in topic.partitions
    ]
    document = {"name": topic.name, "replication_factor": topic.replication_factor, "partitions": partitions}
    return {**document, "settings": dict(topic.settings), "promise": _promise(topic)}


def _promise(topic: TopicDescription) -> str:
    """Return the text that tells what the settings promise, and what can be lost with them."""
    return topic_config.promise(topic_config.make(topic.settings.items()))


def _print_promise(topic: TopicDescription) -> None:
    print_line()
    for line in _promise(topic).splitlines():
        print_line(line)


def _print_table(topics: list[TopicDescription]) -> None:
    rows = [(t.name, len(t.partitions), t.replication_factor) for t in topics]
    print_table(["topic", "partitions", "replication factor"], rows)

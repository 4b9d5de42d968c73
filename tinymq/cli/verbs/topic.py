"""`tinymq topic`: what topics there are, making, altering and deleting them, and cutting off what is old."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base import topic_config
from tinymq.base.errors import InvalidRequest, OffsetOutOfRange, UnknownPartition, UnknownTopic
from tinymq.base.quantity import quantity
from tinymq.base.types import Offset
from tinymq.cli.common import units
from tinymq.cli.common.offsets import parse_time
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_line, print_table, say
from tinymq.cli.common.servers import HERE, Where

if TYPE_CHECKING:
    from tinymq.client import Client, PartitionOffsets, TopicDescription

app = App(name="topic", help="Create, list, describe, alter, trim and delete topics.")

SETTINGS = (
    f"name=value, may be repeated: {', '.join(setting.usage() for setting in topic_config.SETTINGS)}. "
    f"`{topic_config.NO_BOUND}` is no bound."
)
Name = Annotated[str, Parameter(help="The topic's name: 1 to 249 of A-Z a-z 0-9 . _ -")]
Number = Annotated[int, Parameter(help="The partition's number.")]
Settings = Annotated[list[str] | None, Parameter(name=["--set"], help=SETTINGS)]
DryRun = Annotated[bool, Parameter(name=["--dry-run"], negative="", help="Say what would be done, and do nothing.")]


@app.command
def create(
    name: Name,
    /,
    *,
    partitions: Annotated[int, Parameter(name=["--partitions", "-p"])] = 1,
    replication_factor: Annotated[int | None, Parameter(name=["--replication-factor", "-r"])] = None,
    settings: Settings = None,
    where: Where = HERE,
    output: Output = "table",
) -> None:
    """Create a topic; return when every partition has a leader.

    All bounds among the settings are per partition; what they promise: tinymq topic describe NAME.

    Parameters
    ----------
    replication_factor
        Copies of each partition. [default: 3, or the number of brokers if there are fewer; the command waits until as
        many brokers are registered as the metadata has voters, or 3]
    """
    wanted = units.parse_settings(settings or [])
    topic_config.make(wanted.items())  # what is wrong with them is said before a broker is asked
    with where.connect() as mq:
        topic = mq.admin.create_topic(name, partitions, replication_factor, settings=wanted)
    if output == "json":
        print_json(_document(topic))
    else:
        _print_table([topic])


@app.command(name="list")
def list_(*, where: Where = HERE, output: Output = "table") -> None:
    """List all topics."""
    with where.connect() as mq:
        topics = mq.admin.list_topics()
    if output == "json":
        print_json({"topics": [_document(topic) for topic in topics]})
    else:
        _print_table(topics)


@app.command
def describe(name: Name, /, *, where: Where = HERE, output: Output = "table") -> None:
    """Show a topic's partitions (leader, replicas and offsets), its settings, and what they promise."""
    with where.connect() as mq:
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
    where: Where = HERE,
    output: Output = "table",
) -> None:
    """Change settings of a topic: all of these, or none. What is not named stays; storage is fixed.

    A shorter retention removes what is older within seconds, and for good.
    """
    wanted = units.parse_settings(settings)
    topic_config.parse_settings(wanted.items())
    with where.connect() as mq:
        topic = mq.admin.alter_topic(name, wanted)
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
    before: Annotated[str | None, Parameter(help="Remove what is older than this: ISO 8601, or seconds.")] = None,
    before_offset: Annotated[int | None, Parameter(help="Remove what lies before this offset.")] = None,
    dry_run: DryRun = False,
    where: Where = HERE,
    output: Output = "table",
) -> None:
    """Remove the oldest records of a partition, for good and for all its readers.

    What is older than --before is told by the records' own timestamps: all before the first one at or after it go.
    What is held for a planned read stays, and the call waits for that up to --timeout.
    """
    place = _place(before, before_offset)
    with where.connect() as mq:
        at = extent(mq, name, partition)
        if dry_run:
            upto = place.value if isinstance(place, Offset) else mq.admin.find_offsets(name, place)[partition]
            if upto > at.high_watermark:
                raise OffsetOutOfRange(
                    f"offset {upto} lies beyond the end",
                    hint=f"there are {at.log_start} to {at.high_watermark}",
                    log_start=at.log_start,
                    high_watermark=at.high_watermark,
                )
            start = max(at.log_start, upto)
        else:
            start = mq.admin.trim(name, partition, place)
    removed = max(0, start - at.log_start)
    if output == "json":
        print_json({"name": name, "partition": partition, "log_start": start, "removed": removed, "dry_run": dry_run})
        return
    said = f"{'would remove' if dry_run else 'removed'} {quantity(removed, 'record')} of {name}/{partition}"
    say(f"{said}: it {'would begin' if dry_run else 'begins'} at {start}, and ends at {at.high_watermark}")


@app.command
def add_partition(name: Name, /, *, where: Where = HERE, output: Output = "table") -> None:
    """Give a topic one more partition, with a number that it never had.

    Records with a key may go to other partitions than before: order within a key holds from here on.
    """
    with where.connect() as mq:
        added = mq.admin.add_partition(name)
    if output == "json":
        print_json({"name": name, "partition": added.partition, "replicas": list(added.replicas)})
    else:
        print_table(["topic", "partition", "replicas"], [(name, added.partition, " ".join(map(str, added.replicas)))])


@app.command
def delete_partition(
    name: Name, partition: Number, /, *, dry_run: DryRun = False, where: Where = HERE, output: Output = "table"
) -> None:
    """Delete one partition of a topic with all its records and channels; its number is never used again."""
    with where.connect() as mq:
        if dry_run:
            at = extent(mq, name, partition)
            say(f"would delete {name}/{partition}, with {quantity(at.high_watermark - at.log_start, 'record')}")
        else:
            mq.admin.delete_partition(name, partition)
            say(f"partition {name}/{partition} deleted")
    if output == "json":
        print_json({"name": name, "partition": partition, "deleted": not dry_run})


@app.command
def delete(name: Name, /, *, where: Where = HERE, output: Output = "table") -> None:
    """Delete a topic and all its records."""
    with where.connect() as mq:
        try:
            mq.admin.delete_topic(name)
        except UnknownTopic as error:  # its usual hint is to create it
            raise UnknownTopic(error.message, hint="see what there is: tinymq topic list") from None
    say(f"topic {name} deleted")
    if output == "json":
        print_json({"name": name, "deleted": True})


BEFORE = "write --before 2026-01-01T00:00Z, or seconds since 1970"


def _place(before: str | None, before_offset: int | None) -> datetime | Offset:
    if (before is None) == (before_offset is None):
        raise InvalidRequest("what is to go?", hint="give either --before TIME or --before-offset N")
    return parse_time(before, BEFORE) if before is not None else Offset(before_offset or 0)


def extent(mq: Client, name: str, partition: int) -> PartitionOffsets:
    """Where a partition begins and ends. Raises UnknownPartition."""
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
    """What the settings promise, and what they lose."""
    return topic_config.promise(topic_config.make(topic.settings.items()))


def _print_promise(topic: TopicDescription) -> None:
    print_line()
    for line in _promise(topic).splitlines():
        print_line(line)


def _print_table(topics: list[TopicDescription]) -> None:
    rows = [(t.name, len(t.partitions), t.replication_factor) for t in topics]
    print_table(["topic", "partitions", "replication factor"], rows)

"""`tinymq topic`: what topics there are, and making and deleting them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.cli.output import Output, print_json, print_table, say
from tinymq.cli.servers import HERE, Where
from tinymq.errors import UnknownTopic

if TYPE_CHECKING:
    from tinymq.client import TopicDescription

app = App(name="topic", help="Create, list, describe and delete topics.")

Name = Annotated[str, Parameter(help="The topic's name: 1 to 249 of A-Z a-z 0-9 . _ -")]


@app.command
def create(
    name: Name,
    /,
    *,
    partitions: Annotated[int, Parameter(name=["--partitions", "-p"])] = 1,
    replication_factor: Annotated[int | None, Parameter(name=["--replication-factor", "-r"])] = None,
    where: Where = HERE,
    output: Output = "table",
) -> None:
    """Create a topic; return when every partition has a leader.

    Parameters
    ----------
    replication_factor
        Copies of each partition. [default: 3, or the number of brokers when they are fewer]
    """
    with where.connect() as mq:
        topic = mq.admin.create_topic(name, partitions, replication_factor)
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
    """Show a topic's partitions: leader, replicas and offsets."""
    with where.connect() as mq:
        topic = mq.admin.describe_topic(name)
        offsets = mq.admin.offsets(name)
    rows = [
        (
            p.partition,
            p.leader or None,
            list(p.replicas),
            offsets[p.partition].log_start,
            offsets[p.partition].high_watermark,
        )
        for p in topic.partitions
    ]
    if output == "json":
        keys = ("partition", "leader", "replicas", "start_offset", "end_offset")
        document: dict[str, Any] = {"name": topic.name, "replication_factor": topic.replication_factor}
        print_json({**document, "partitions": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        shown = [(p, leader, " ".join(map(str, replicas)), start, end) for p, leader, replicas, start, end in rows]
        print_table(["partition", "leader", "replicas", "start", "end"], shown)


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


def _document(topic: TopicDescription) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partitions": len(topic.partitions),
        "replication_factor": topic.replication_factor,
    }


def _print_table(topics: list[TopicDescription]) -> None:
    rows = [(t.name, len(t.partitions), t.replication_factor) for t in topics]
    print_table(["topic", "partitions", "replication factor"], rows)

"""`tinymq schedule`: list and cancel delayed records that are not delivered yet."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.errors import NotFound
from tinymq.cli.common.due import left
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.verbs.channel import Partitions
from tinymq.cli.verbs.topic import DryRun

if TYPE_CHECKING:
    from tinymq.client import Client, ScheduledDescription

HELP = """
`tinymq produce --delay 5m` and the clients send delayed records.

Example: tinymq schedule list orders

Example: tinymq schedule cancel orders 0 17
"""

app = App(
    name="schedule",
    help="Delayed records that are not delivered yet: list, cancel.",
    help_epilogue=HELP,
)

Topic = Annotated[str, Parameter(help="The topic.")]
Partition = Annotated[int, Parameter(help="The partition's number.")]
ScheduleId = Annotated[int, Parameter(help="The record's schedule id, as `tinymq schedule list` shows it.")]
COUNT = "At most this many; 0: all of them."


@app.command(name="list")
def list_(
    topic: Topic,
    /,
    *,
    partition: Partitions = None,
    count: Annotated[int, Parameter(name=["--count", "-n"], help=COUNT)] = 100,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """List a topic's delayed records: when each is due, and its size.

    In each partition, they are in the order in which they were sent. Records are due by the clock of the partition's
    leader; `in` is by the clock of this machine.
    """
    with servers.connect() as mq:
        found = _scheduled(mq, topic, partition)
        shown = list(islice(found, count or None))
        more = next(found, None) is not None
    if output == "json":
        print_json({"scheduled": [_document(scheduled) for scheduled in shown], "more": more})
        return
    rows = [(s.partition, s.schedule_id, s.deliver_at.isoformat(), left(s.deliver_at), s.bytes) for s in shown]
    print_table(["partition", "schedule id", "due", "in", "bytes"], rows)
    if more:
        say(f"these are the first {count}; all of them: --count 0")


@app.command
def cancel(
    topic: Topic,
    partition: Partition,
    schedule_id: ScheduleId,
    /,
    *,
    dry_run: DryRun = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Take a delayed record back, so that it is never delivered.

    If it was delivered or canceled before, nothing changes, and the exit code is 3.
    """
    with servers.connect() as mq:
        if dry_run:
            there = any(s.schedule_id == schedule_id for s in mq.admin.scheduled(topic, partition))
        else:
            there = mq.cancel(topic, partition, schedule_id)
    if not there:
        raise NotFound(
            f"{topic}/{partition} has no delayed record {schedule_id} (any more)",
            hint=f"it may be delivered already; see: tinymq schedule list {topic} -p {partition}",
        )
    if output == "json":
        print_json({"topic": topic, "partition": partition, "schedule_id": schedule_id, "canceled": not dry_run})
    else:
        say(f"delayed record {schedule_id} of {topic}/{partition} {'would be' if dry_run else 'is'} canceled")


def _scheduled(mq: Client, topic: str, partitions: list[int] | None) -> Iterator[ScheduledDescription]:
    if partitions is None:
        yield from mq.admin.scheduled(topic)
    else:
        for partition in partitions:
            yield from mq.admin.scheduled(topic, partition)


def _document(scheduled: ScheduledDescription) -> dict[str, Any]:
    return {
        "topic": scheduled.topic,
        "partition": scheduled.partition,
        "schedule_id": scheduled.schedule_id,
        "deliver_at": scheduled.deliver_at.isoformat(),
        "stored_at": scheduled.stored_at.isoformat(),
        "bytes": scheduled.bytes,
        "records": scheduled.records,
    }

"""`tinymq why`: the history of a record in each group."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tinymq.cli.common.escapes import visible
from tinymq.cli.common.options import Output, epilogue
from tinymq.cli.common.output import print_json, print_line
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tinymq.client import GroupStory


def why(
    topic: Annotated[str, Parameter(help="The topic.")],
    partition: Annotated[int, Parameter(help="The partition's number.")],
    offset: Annotated[int, Parameter(help="The record's offset.")],
    /,
    *,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Show what became of a record in each group: read, free, leased to whom, acked in which transaction, waiting until
    when, failed how often and why, buried where.

    A leader remembers the leases and the reasons of failures; all else is replicated.
    """
    with servers.connect() as mq:
        story = mq.admin.why(topic, partition, offset)
    if output == "json":
        print_json(asdict(story))
        return
    removed = ", which is removed" if story.removed else ""
    print_line(f"{topic}/{partition} offset {offset}{removed}")
    if not story.groups:
        print_line("no group and no channel reads this partition")
    for group in story.groups:
        for line in lines(group):
            print_line(line)


def lines(story: GroupStory) -> Iterator[str]:
    """The story as lines. Each begins with the name of the group, so that no text of a worker can pass for a line of
    another one."""
    name = visible(story.group)
    for part in _parts(story):
        yield f"{name}: {part}"


def _parts(story: GroupStory) -> Iterator[str]:
    yield f"{visible(story.state)} ({visible(story.kind)}, its cursor is at {story.position})"
    if story.worker:
        begun = "started" if story.started else "not started"
        yield f"leased to {visible(story.worker)} for {story.lease_left_ms / 1000:.1f} s more, {begun}"
    if story.transaction:
        yield f"its ack is in the transaction {visible(story.transaction)}, which is not over"
    if story.deliveries or story.returns:
        returned = f", {story.returns} times returned unstarted" if story.returns else ""
        yield f"failed deliveries: {story.deliveries}{returned}"
    if story.wait_ms:
        yield f"not before {story.wait_ms / 1000:.1f} s from now"
    if story.failure:
        by = f" of {visible(story.failed_by)}" if story.failed_by else ""
        for line in story.failure.splitlines():
            yield f"last failure{by}: {visible(line)}"
    for line in story.reason.splitlines():
        yield f"given up: {visible(line)}"
    if story.dead_topic:
        place = f"{visible(story.dead_topic)}/{story.dead_partition}"
        yield f"dead letter: {place}" + (f" offset {story.dead_offset}" if story.dead_offset is not None else "")
    if story.blocked:
        yield f"the burial does not go on: {visible(story.blocked)}"


app = App(
    name="why",
    help_epilogue=epilogue(
        why,
        "tinymq why emails 0 17",
    ),
)
app.default(why)

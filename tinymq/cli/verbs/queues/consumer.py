"""`tinymq queue consumer`: show and remove the registered consumer of a channel."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.partition_arguments import Channel, Queue, parse_queue
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions

app = App(
    name="consumer",
    help="Show and remove the registered consumer of a channel: show, unset.\n\nThe registry has one consumer for each "
    "channel of a queue: the client that took the channel over last and has not closed it. It may have died since.",
)


@app.command
def show(
    queue: Queue, /, *, channel: Channel = "default", servers: ServerOptions = DEFAULT_SERVERS, output: Output = "table"
) -> None:
    """Show the consumer of a channel: its client id, and the epoch with which it fenced earlier consumers."""
    topic, partition = parse_queue(queue)
    with servers.connect() as mq:
        assignment = mq.admin.get_consumer(topic, partition, channel)
    if output == "json":
        row = (
            {"consumer": assignment.consumer, "epoch": assignment.epoch}
            if assignment
            else {"consumer": None, "epoch": None}
        )
        print_json({"topic": topic, "partition": partition, "channel": channel, **row})
    elif assignment is None:
        say(f"{channel} of {topic}/{partition} has no consumer")
    else:
        print_table(["channel", "consumer", "epoch"], [(channel, assignment.consumer, assignment.epoch)])


@app.command
def unset(
    queue: Queue,
    /,
    *,
    channel: Channel = "default",
    epoch: Annotated[int, Parameter(help="Only if the consumer still has this epoch. [default: any epoch]")] = 0,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Remove the registration of a channel's consumer, for example of a consumer that died.

    This does not stop a consumer: if it is alive, it reads and commits as before. To stop it, take the channel over
    (tinymq queue poll) or move it (tinymq channel seek). The channel and its position do not change.
    """
    topic, partition = parse_queue(queue)
    with servers.connect() as mq:
        before = mq.admin.get_consumer(topic, partition, channel)
        matches = before is not None and epoch in (0, before.epoch)
        if before is not None and matches:
            mq.admin.unset_consumer(topic, partition, channel, before.epoch)
    removed = before.consumer if before is not None and matches else None
    if output == "json":
        print_json({"topic": topic, "partition": partition, "channel": channel, "unset": removed})
    elif removed is not None:
        say(f"{removed} is no longer the consumer of {channel} of {topic}/{partition}")
    else:
        consumer = "no consumer" if before is None else f"the consumer {before.consumer}, at epoch {before.epoch}"
        say(f"nothing to do: {channel} of {topic}/{partition} has {consumer}")

"""`tinymq queue consumer`: who is on record for reading a queue through a channel, and taking that record away."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json, print_table, say
from tinymq.cli.common.partition_arguments import Channel, Queue, parse_queue
from tinymq.cli.common.servers import HERE, Where

app = App(
    name="consumer",
    help="Who reads a queue through a channel: show, unset.\n\nThe registry names one consumer for each channel of a "
    "queue: whoever took it over last, and has not closed it. It may have died since.",
)


@app.command
def show(queue: Queue, /, *, channel: Channel = "default", where: Where = HERE, output: Output = "table") -> None:
    """Show who is on record for a channel: its client id, and the epoch with which it fenced whoever came before."""
    topic, partition = parse_queue(queue)
    with where.connect() as mq:
        found = mq.admin.get_consumer(topic, partition, channel)
    if output == "json":
        who = {"consumer": found.consumer, "epoch": found.epoch} if found else {"consumer": None, "epoch": None}
        print_json({"topic": topic, "partition": partition, "channel": channel, **who})
    elif found is None:
        say(f"nobody is on record for {channel} of {topic}/{partition}")
    else:
        print_table(["channel", "consumer", "epoch"], [(channel, found.consumer, found.epoch)])


@app.command
def unset(
    queue: Queue,
    /,
    *,
    channel: Channel = "default",
    epoch: Annotated[int, Parameter(help="Only if it is still this assignment. [default: whichever it is]")] = 0,
    where: Where = HERE,
    output: Output = "table",
) -> None:
    """Take the record away that somebody reads a channel: of a consumer that died, say.

    Nobody is stopped by that: a consumer that lives reads and commits as before. To stop it, take the channel over
    (tinymq queue poll) or move it (tinymq channel seek). The channel and its position stay as they are.
    """
    topic, partition = parse_queue(queue)
    with where.connect() as mq:
        before = mq.admin.get_consumer(topic, partition, channel)
        mine = before is not None and epoch in (0, before.epoch)
        if before is not None and mine:
            mq.admin.unset_consumer(topic, partition, channel, before.epoch)
    gone = before.consumer if before is not None and mine else None
    if output == "json":
        print_json({"topic": topic, "partition": partition, "channel": channel, "unset": gone})
    elif gone is not None:
        say(f"{gone} is no more on record for {channel} of {topic}/{partition}")
    else:
        who = "nobody is" if before is None else f"{before.consumer} is, at epoch {before.epoch},"
        say(f"nothing to do: {who} on record for {channel} of {topic}/{partition}")

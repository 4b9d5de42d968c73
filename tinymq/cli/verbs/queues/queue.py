"""`tinymq queue`: use a partition as a queue: push to it, poll it through a channel, peek into it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest
from tinymq.base.types import Offset
from tinymq.cli.common.options import Output, Raw
from tinymq.cli.common.output import flush, print_json, print_line, say, write_record
from tinymq.cli.common.partition_arguments import Channel, Queue, parse_queue
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.verbs.consume import renderer
from tinymq.cli.verbs.produce import parse_headers, without_ends
from tinymq.cli.verbs.topic import extent

if TYPE_CHECKING:
    from tinymq.client import Message

HELP = """
Example: tinymq queue push orders/0 hello

Example: tinymq queue poll orders/0 -n 10
"""

app = App(
    name="queue",
    help="Use a partition as a queue from the shell: push to it, poll it through a channel, peek into it.",
    help_epilogue=HELP,
)
app.command(
    "tinymq.cli.verbs.queues.consumer:app",
    name="consumer",
    help="Show and remove the registered consumer of a channel: show, unset.",
)

RECORDS_PER_POLL_MAX = 1000
PUSHED_MAX = 10_000
Format = Annotated[
    str | None,
    Parameter(name=["--format", "-f"], help="%t topic %p partition %o offset %k key %v value %T time %h headers."),
]


@app.command
def push(
    queue: Queue,
    values: Annotated[
        list[str] | None, Parameter(help="One message each. [default: the lines of standard input]")
    ] = None,
    /,
    *,
    key: Annotated[str | None, Parameter(name=["--key", "-k"], help="The key of every message.")] = None,
    header: Annotated[list[str] | None, Parameter(name=["--header", "-H"], help="name=value; may be repeated.")] = None,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Write up to 10,000 messages, and wait until a majority of the replicas has them on disk."""
    topic, partition = parse_queue(queue)
    headers = parse_headers(header or [])
    key_bytes = os.fsencode(key) if key is not None else None  # the original bytes of the argument
    messages = [os.fsencode(value) for value in values or ()] or list(
        islice(without_ends(sys.stdin.buffer), PUSHED_MAX + 1)
    )
    if len(messages) > PUSHED_MAX:
        raise InvalidRequest(
            f"more than {PUSHED_MAX} messages", hint=f"for many: tinymq produce {topic} --partition {partition}"
        )
    with servers.connect() as mq, mq.queue(topic, partition) as to:
        sent = [to.push_nowait(value, key_bytes, headers) for value in messages]
        written = [delivery.result().offset for delivery in sent]
    if output == "json":
        print_json({"topic": topic, "partition": partition, "offsets": written})
    else:
        say(f"{len(written)} pushed to {topic}/{partition}" + (f", from offset {written[0]} on" if written else ""))


@app.command
def poll(
    queue: Queue,
    /,
    *,
    channel: Channel = "default",
    count: Annotated[int, Parameter(name=["--count", "-n"], help="The maximum number of messages.")] = 1,
    wait: Annotated[float, Parameter(help="Seconds to wait for the first message.")] = 0.0,
    format: Format = None,
    raw: Raw = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Take the next messages of a channel: print them, and then commit them.

    This takes the channel over, which fences any other consumer of the channel. A channel that does not exist is
    created at the earliest message. Nothing is printed if there is no message.
    """
    topic, partition = parse_queue(queue)
    if count < 1:
        raise InvalidRequest(f"-n {count}: the number of messages must be 1 or more")
    render = renderer(format, output, raw)
    left = count
    with servers.connect() as mq, mq.queue(topic, partition, channel, auto_commit=False) as taken:
        while left > 0:
            messages = taken.poll(min(left, RECORDS_PER_POLL_MAX), wait if left == count else 0.0)
            if not messages:
                break
            _print(messages, render)
            taken.commit()
            left -= len(messages)
    if left == count:
        say(f"{topic}/{partition} has no message for {channel}")


@app.command
def peek(
    queue: Queue,
    /,
    *,
    channel: Channel = "default",
    format: Format = None,
    raw: Raw = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Print the next message of a channel without taking it. This fences no consumer."""
    topic, partition = parse_queue(queue)
    render = renderer(format, output, raw)
    with servers.connect() as mq:
        message = mq.queue(topic, partition, channel).peek()
    if message is None:
        say(f"{topic}/{partition} has no message for {channel}")
    else:
        _print([message], render)


@app.command
def get(
    queue: Queue,
    offset: Annotated[int, Parameter(help="The message's offset.")],
    /,
    *,
    format: Format = None,
    raw: Raw = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Print the message at an offset."""
    topic, partition = parse_queue(queue)
    render = renderer(format, output, raw)
    with servers.connect() as mq:
        _print([mq.queue(topic, partition).get(Offset(offset))], render)


@app.command
def size(
    queue: Queue,
    /,
    *,
    channel: Annotated[
        str | None,
        Parameter(name=["--channel", "-c"], help="Count only the messages that this channel has still to read."),
    ] = None,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> None:
    """Print the number of stored messages, or with --channel the number that the channel has still to read.

    A channel that does not exist has all of them to read, because `peek` and `poll` start it at the earliest message.
    """
    topic, partition = parse_queue(queue)
    with servers.connect() as mq:
        if channel is None:
            bounds = extent(mq, topic, partition)
            count = bounds.high_watermark - bounds.log_start
        else:
            count = mq.queue(topic, partition, channel).size()
    if output == "json":
        print_json({"topic": topic, "partition": partition, "channel": channel, "messages": count})
    else:
        print_line(count)


def _print(messages: Iterable[Message], render: Callable[[Message], bytes]) -> None:
    """Print all messages and flush, because `poll` commits only messages that are printed."""
    for message in messages:
        write_record(render(message))
    flush()

"""The arguments of verbs about one partition: its queue, and a channel. Pure."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from tinymq.base.errors import InvalidRequest

Queue = Annotated[str, Parameter(help="TOPIC/PARTITION, or TOPIC for partition 0.")]
Channel = Annotated[str, Parameter(name=["--channel", "-c"], help="The channel: a reader's cursor in the partition.")]


def parse_queue(text: str) -> tuple[str, int]:
    """Parse "topic" or "topic/3". Raises InvalidRequest."""
    topic, slash, number = text.partition("/")
    if slash and not (number.isascii() and number.isdigit() and len(number) <= 9):
        raise InvalidRequest(f"{text!r} is not a queue", hint="write TOPIC or TOPIC/PARTITION, such as orders/3")
    return topic, int(number or 0)

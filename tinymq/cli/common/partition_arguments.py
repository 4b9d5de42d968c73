"""What a verb about one partition is told: which queue, and through which channel. Pure."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from tinymq.base.errors import InvalidRequest

Queue = Annotated[str, Parameter(help="TOPIC, which is its partition 0, or TOPIC/PARTITION.")]
Channel = Annotated[str, Parameter(name=["--channel", "-c"], help="The reader's own place in the partition.")]


def parse_queue(text: str) -> tuple[str, int]:
    """ "topic" or "topic/3". Raises InvalidRequest."""
    topic, slash, number = text.partition("/")
    if slash and not (number.isascii() and number.isdigit() and len(number) <= 9):
        raise InvalidRequest(f"{text!r} is no queue", hint="write TOPIC or TOPIC/PARTITION, such as orders/3")
    return topic, int(number or 0)

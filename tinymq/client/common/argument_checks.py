"""Checks of the arguments that an application passes: names, numbers, times to wait. Pure.

A refused argument raises InvalidRequest, which names the argument and says what to pass instead. Each check returns the
argument.
"""

from __future__ import annotations

from typing import Any

from tinymq.base.errors import InvalidRequest
from tinymq.base.types import check_channel_name, check_consumer_name, check_scan_id, check_topic_name

WAIT_S_MAX = 1e6  # eleven days; for longer, pass no timeout
WAIT_S_MIN = 0.001  # for a call that has to ask a broker
COUNT_MAX = (1 << 31) - 1
OFFSET_MAX = (1 << 63) - 1
FORK_HINT = "fork before the parent's first call, or start workers by spawn"


def check_topic(topic: object) -> str:
    """Check a topic's name. Raises InvalidName, too."""
    return check_topic_name(_text("topic", topic, "pass the topic's name as text"))


def check_channel(channel: object) -> str:
    """Check a channel's name. Raises InvalidName, too."""
    return check_channel_name(_text("channel", channel, "pass the channel's name as text"))


def check_consumer(consumer: object) -> str:
    """Check a consumer's name. Raises InvalidName, too."""
    return check_consumer_name(_text("consumer", consumer, "pass a name as text"))


def check_scan(scan_id: object) -> str:
    """Check a scan's id. Raises InvalidName, too."""
    return check_scan_id(_text("scan_id", scan_id, "pass a name as text"))


def check_count(name: str, value: object, least: int, most: int = COUNT_MAX) -> int:
    """Check a whole number from `least` to `most`."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise InvalidRequest(f"{name}={value!r}", hint=f"pass an int from {least} to {most}")


def check_partition(partition: object) -> int:
    """Check that this is the number of a partition. The topic need not have it."""
    if isinstance(partition, int) and not isinstance(partition, bool):
        return partition
    raise InvalidRequest(
        f"partition={partition!r} is {_kind(partition)}, not int", hint="pass the partition's number, from 0"
    )


def check_partitions(partitions: object) -> tuple[int, ...] | None:
    """Check a list of partitions to read. None means all of them."""
    if partitions is None:
        return None
    hint = "pass a list of partition numbers, such as [0, 2], or leave it out to read them all"
    if not isinstance(partitions, list | tuple | range | set | frozenset):
        raise InvalidRequest(f"partitions={partitions!r} is {_kind(partitions)}, not a list", hint=hint)
    if not partitions:
        raise InvalidRequest("partitions=[]: there is nothing to read", hint=hint)
    for partition in partitions:
        if not isinstance(partition, int) or isinstance(partition, bool):
            raise InvalidRequest(f"partitions: {partition!r} is {_kind(partition)}, not int", hint=hint)
    return tuple(partitions)


def check_wait(value: Any, least_s: float = 0.0, name: str = "timeout") -> None:
    """Check a number of seconds to wait. None means no limit."""
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and least_s <= value <= WAIT_S_MAX:  # NaN is not, either
        return
    raise InvalidRequest(f"{name}={value!r}", hint=f"pass seconds, from {least_s:g} to {WAIT_S_MAX:g}, or None")


def _text(name: str, value: object, hint: str) -> str:
    if isinstance(value, str):
        return value
    raise InvalidRequest(f"{name}={value!r:.300} is {_kind(value)}, not str", hint=hint)


def _kind(value: object) -> str:
    return type(value).__name__

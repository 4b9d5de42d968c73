"""The argument and the result of a checker's handler. Values only."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from tinymq.base.value import value
from tinymq.client.common.rows import Headers, rows_of
from tinymq.client.common.values import as_datetime
from tinymq.format.batch import BatchLimits, decode_batch
from tinymq.proto import tinymq_pb2 as pb

Verdict = Literal["commit", "rollback", "unknown"]
"""What a handler returns: the outcome of the sender's own transaction, as far as it is known."""


@value
class HalfCheck:
    """A half message whose outcome is asked for.

    def check(half):
        print(half.producer_group, half.topic, half.partition, half.begun_at, half.number)
        order = orders.find(half.context)
        return "commit" if order.paid else "rollback" if order.failed else "unknown"
    """

    producer_group: str
    name: str  # as `tinymq half list` shows it
    topic: str  # or its id in hex, if it was deleted
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_us: int  # the sender's, since 1970 UTC
    context: bytes  # what the sender passed to `half_message`
    begun_at: datetime
    number: int  # how many checks were answered before, all of them with "unknown"


def parse_check(message: pb.HalfMessageCheck, group: str, name: str, topic: str, limits: BatchLimits) -> HalfCheck:
    """The check that a coordinator sends. Raises InvalidBatch, CorruptData."""
    key, content, headers, timestamp_us = rows_of(decode_batch(message.batch, limits))[0]
    return HalfCheck(
        producer_group=group,
        name=name,
        topic=topic,
        partition=message.partition,
        key=key,
        value=content,
        headers=headers,
        timestamp_us=timestamp_us,
        context=message.context,
        begun_at=as_datetime(message.begun_us),
        number=message.number,
    )

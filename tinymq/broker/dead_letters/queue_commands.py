"""Commands of queue groups that dead letters need, for a partition that is led here."""

from __future__ import annotations

import struct

from tinymq.base.errors import QuotaExceeded, UnknownGroup, WrongKind
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.messages import command
from tinymq.proto import partition_pb2 as pb

_SPAN = struct.Struct("<QQ")


def queue_ref(partition: Partition, name: str) -> pb.QueueRef:
    """The queue group of that name, as its partition knows it at this moment. Raises UnknownGroup, WrongKind."""
    group, cursor = partition.state.queue_groups.by_name.get(name), partition.state.cursors.get(name)
    if cursor is None:
        raise UnknownGroup(f"{partition} has no cursor of a group {name[:300]!r}")
    if group is None:
        raise WrongKind(f"{name[:300]!r} is not a queue group")
    return pb.QueueRef(
        group=name,
        group_id=cursor.group_id,
        generation=group.generation,
        history=partition.state.epoch_cache.newest_term,
    )


async def propose(partition: Partition, wanted: pb.Command, timeout_s: float) -> list[tuple[int, int]]:
    """Carry out one command, and return the ranges of offsets that it refused. Raises the command's error, and as
    `command`."""
    (outcome,) = await command(partition, [wanted], timeout_s)
    if outcome.error is not None:
        raise outcome.error
    return list(outcome.refused)


async def settle(partition: Partition, name: str, start: int, end: int, timeout_s: float) -> None:
    """Settle the records from `start` up to `end`.

    Raises QuotaExceeded if some of them are being buried, or if the group has no room for another settled range.
    """
    acked = pb.SettleRecords(queue=queue_ref(partition, name), acked=_SPAN.pack(start, end))
    refused = await propose(partition, pb.Command(settle=acked), timeout_s)
    if refused:
        message = f"{partition}: group {name!r} cannot settle the records from {refused[0][0]} on now"
        raise QuotaExceeded(
            message, hint="one of them is being buried, or the group's state is full", retry_after_ms=1000
        )

"""Changes of a group of either kind, beside its consumers."""

from __future__ import annotations

from typing import Any

from tinymq.base.errors import DeadlineExceeded, TinymqError
from tinymq.base.types import Offset
from tinymq.client import AsyncClient
from tinymq_chaos.workloads.context import CALL_S, Context, recording


async def seek(
    context: Context, client: AsyncClient, process: str, topic: str, place: dict[str, Any], partition: int
) -> None:
    """Move a group back in one partition."""
    try:
        cursors = await client.admin.group_lag(place["group"], timeout=CALL_S)
        starts = await client.admin.offsets(topic, timeout=CALL_S)
        at = next(each.position for each in cursors if each.partition == partition)
    except (TinymqError, StopIteration):
        return
    target = context.rng.randint(min(at, starts[partition].log_start), at)
    args = {"partition": partition, "offset": target}
    with recording(context, process, "group_seek", within_s=3 * CALL_S, **place, **args) as call:
        await client.admin.seek_group(place["group"], Offset(target), partitions=[partition], timeout=2 * CALL_S)
        call.ok()


async def delete(context: Context, client: AsyncClient, process: str, place: dict[str, Any]) -> None:
    """Delete a group. Its next consumer makes it again."""
    with recording(context, process, "group_delete", within_s=2 * CALL_S, **place) as call:
        try:
            await client.admin.delete_group(place["group"], timeout=CALL_S)
            call.ok()
        except DeadlineExceeded as error:  # it is still being deleted
            call.unknown(error.code)

"""The assignments of a stream group's members, and the places of the group's cursors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinymq.client import AsyncClient
from tinymq_chaos.workloads.context import CALL_S, Context, begin, pause, recording

Tell = Callable[[Sequence[Any]], None]


def callbacks(context: Context, process: str, place: dict[str, Any]) -> dict[str, Any]:
    """Return the callbacks of a consumer, which record what they are told. `place` has the topic and the group."""

    def told(kind: str) -> Tell:
        def tell(partitions: Sequence[Any]) -> None:
            begin(context, process, kind, **place).ok([each.partition for each in partitions])

        return tell

    return {"on_assigned": told("assigned"), "on_revoked": told("revoked"), "on_lost": told("lost_partitions")}


async def follow_cursors(context: Context, client: AsyncClient, place: dict[str, Any]) -> None:
    """Look at the cursors of a group now and then."""
    while not context.stop.is_set():
        await look_at_cursors(context, client, f"{context.name} looks", place)
        await pause(context, 0.2, 2.0)


async def look_at_cursors(context: Context, client: AsyncClient, process: str, place: dict[str, Any]) -> bool:
    """Look at the cursors of a group. Return whether they are known, and all of them at the end of their partitions."""
    with recording(context, process, "group_lag", 2 * CALL_S, **place) as call:
        found = await client.admin.group_lag(place["group"])
        call.ok([[each.partition, each.position] for each in found])
        return not any(each.lag for each in found)
    return False

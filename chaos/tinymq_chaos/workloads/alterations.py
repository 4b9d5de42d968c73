"""Topics whose settings are altered during writes and reads. A checker knows which value is in force when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tinymq.client import AsyncClient
from tinymq_chaos.workloads.capacity import KEPT, Company, load, make_room
from tinymq_chaos.workloads.context import CALL_S, Context, pause, recording
from tinymq_chaos.workloads.producers import lone

AGES_MS = ("1500", "4000", "none")
ROOMS = ("20", "60", "none")
FULL = ("6", "12", "none")


async def altered(context: Context) -> None:
    """Alter the retention time, the bound that drops the oldest records, and the bound that refuses writers."""
    await asyncio.gather(
        load(context, {"retention_ms": AGES_MS[1], "segment_ms": "1000"}, lone, altering("retention_ms", AGES_MS)),
        load(
            context, KEPT | {"max_records": ROOMS[1], "on_full": "drop_oldest"}, lone, altering("max_records", ROOMS)
        ),
        load(
            context, KEPT | {"max_records": FULL[1], "on_full": "reject"}, lone,
            altering("max_records", FULL), make_room,
        ),
    )  # fmt: skip


def altering(name: str, values: Sequence[str], *, twice: bool = False) -> Company:
    """Set one value after another, and sometimes read it. `twice`: sometimes alter it twice in a row."""

    async def alter(context: Context, client: AsyncClient, topic: str, key: str) -> None:
        process = f"{context.name} alters {name}"
        while not context.stop.is_set():
            await pause(context, 0.5, 2.5)
            await pause(context, 0.5, 2.5)
            for _ in range(2 if twice and context.rng.random() < 0.5 else 1):
                settings = {name: context.rng.choice(values)}
                with recording(context, process, "alter_topic", topic=key, settings=settings) as call:
                    await client.admin.alter_topic(topic, {name: _read(settings[name])}, timeout=CALL_S)
                    call.ok()
            with recording(context, process, "settings", topic=key) as call:
                found = (await client.admin.describe_topic(topic, timeout=CALL_S)).settings
                call.ok({known: found[known] for known in (name, "on_full", "segment_ms")})

    return alter


def _read(text: str) -> int | str | None:
    if text == "none":
        return None
    return int(text) if text.isdigit() else text

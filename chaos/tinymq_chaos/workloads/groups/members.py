"""Members of a stream group: they join, read, commit, take their time, leave, and stop without a word. Meanwhile
another client moves the group back, and deletes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from tinymq.base.errors import TinymqError
from tinymq_chaos.history import Outcome
from tinymq_chaos.workloads.clients.threaded_client import leave
from tinymq_chaos.workloads.context import CALL_S, Context, begin, fail, key_of, pause, recording
from tinymq_chaos.workloads.groups.changes import delete, seek
from tinymq_chaos.workloads.groups.observation import callbacks, follow_cursors, look_at_cursors
from tinymq_chaos.workloads.producers import NumberedProducer, lone
from tinymq_chaos.workloads.readers import drain

PARTITIONS = 4
MEMBERS = 3  # members at a time
STATIC = 1  # of them with an instance id
POLL_S = 0.5
CONSUMER: dict[str, Any] = {"auto_commit": False, "fetch_wait_ms": 200}


async def members(context: Context) -> None:
    """One group. Its members commit what they were handed out, and another client reads the group's cursors."""
    name = await context.topic(PARTITIONS)
    client = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, client, name)
    group = f"{context.name}-g"
    sender = NumberedProducer(context, f"{context.name}.a", name, key, PARTITIONS)
    members_at_work = [_run_member(context, number, name, key, group) for number in range(MEMBERS)]
    await asyncio.gather(
        lone(context, sender, client),
        follow_cursors(context, client, {"topic": key, "group": group}),
        _disturb(context, name, key, group),
        *members_at_work,
    )
    await look_at_cursors(context, client, f"{context.name} end", {"topic": key, "group": group})
    await drain(context, client, name, key, "leader")


async def _run_member(context: Context, number: int, topic: str, key: str, group: str) -> None:
    client = context.client(request_timeout_ms=CALL_S * 1000)
    life = 0
    while not context.stop.is_set():
        life += 1
        process = f"{context.name} {number}.{life}"
        place: dict[str, Any] = {"topic": key, "group": group}
        consumer = client.consumer(
            topic,
            group=group,
            instance_id=f"seat-{number}" if number < STATIC else None,
            **callbacks(context, process, place),
            **CONSUMER,
        )
        try:
            while not context.stop.is_set() and context.rng.random() > 0.04:
                if not await _turn(context, process, consumer, place):
                    break
        finally:
            with contextlib.suppress(TinymqError):
                # A static member that closes does not tell its group. Others leave, or are found silent.
                await (consumer.close() if context.rng.random() < 0.6 else leave(consumer))
        await pause(context, 0.0, 2.0)


async def _turn(context: Context, process: str, consumer: Any, place: dict[str, Any]) -> bool:
    """Read some records, handle them, and commit. False: the member ended."""
    try:
        found = await consumer.poll(timeout=POLL_S, max_records=context.rng.randint(1, 10))
    except TinymqError as error:
        fail(begin(context, process, "read", **place), error)
        return False
    begin(context, process, "handed_out", **place).ok([[each.partition, each.offset] for each in found])
    slow = context.rng.random() < 0.05
    await pause(context, 0.0, 4.0 if slow else 0.3)
    committed = consumer.committed()
    ends = {place.partition: offset for place, offset in consumer.position().items()}
    for message in found:
        if message.partition in ends:
            ends[message.partition] = max(ends[message.partition], message.offset + 1)
    moved = {each.partition: ends[each.partition] for each, at in committed.items() if ends.get(each.partition, 0) > at}
    with recording(context, process, "group_commit", **place, offsets=sorted(moved.items())) as call:
        await consumer.commit()
        call.ok(None)
    return call.outcome is not Outcome.PENDING


async def _disturb(context: Context, topic: str, key: str, group: str) -> None:
    """Move the group back, and delete it, now and then."""
    client = context.client(request_timeout_ms=CALL_S * 1000)
    process, place = f"{context.name} disturbs", {"topic": key, "group": group}
    while True:
        await pause(context, 0.5, 4.0)
        if context.stop.is_set():
            return
        what = context.rng.choices(("seek", "delete", "nothing"), (5, 2, 5))[0]
        if what == "seek":
            await seek(context, client, process, topic, place, context.rng.randrange(PARTITIONS))
        elif what == "delete":
            await delete(context, client, process, place)

"""Readers that write down every record they are shown, and read to the end when all is quiet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, cast

from tinymq.base.errors import OffsetOutOfRange, TinymqError
from tinymq.base.types import Offset
from tinymq.client import AsyncClient
from tinymq.client.admin.partition_offsets import find_place
from tinymq.client.common.config import Replica
from tinymq_chaos.records import name_of
from tinymq_chaos.workloads.clients.threaded_client import cluster_of
from tinymq_chaos.workloads.context import CALL_S, Context, pause, recording

POLL_S = 0.5
RECORDS_MAX = (500, 500, 500, 2)  # of one poll; the first is the client's default
STUCK_S = 10.0  # a drain that reads no record for so long has failed
DRAIN_S = 60.0  # the longest drain: the quota of a client makes one slow
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SETTINGS: dict[str, Any] = {"unreachable_ms_max": 5_000, "fetch_wait_ms": 200, "stale_ms_max": 1_000}


async def follow(context: Context, client: AsyncClient, topic: str, key: str, replica: str) -> None:
    """Tail a topic from its beginning.

    After an error, and now and then without one, another reader continues at this one's position, or starts over.
    """
    place: dict[int, int] = {}
    for number in count():
        if context.stop.is_set():
            return
        again = context.rng.random() < 0.8
        start: Any = {p: Offset(o) for p, o in place.items()} if again and place else "earliest"
        reader = client.reader(topic, start=start, replica=cast(Replica, replica), **SETTINGS)
        name = f"{context.name} {replica} {number}"
        try:
            if await _open(context, reader, name, key, replica):
                while not context.stop.is_set() and context.rng.random() > 0.04:
                    if not await _poll(context, reader, name, key, replica):
                        break
                    await pause(context, 0.0, 0.5)
                place = reader.position() or place
        finally:
            await reader.close()
        await pause(context, 0.0, 0.3)


async def drain(
    context: Context, client: AsyncClient, topic: str, key: str, replica: str, partitions: Sequence[int] | None = None
) -> None:
    """Read these partitions, or (None) all, from the beginning to the end that the leader knows, when all is quiet."""
    name = f"{context.name} {replica} end"
    with recording(context, name, "drain", DRAIN_S, reader=name, topic=key, replica=replica) as call:
        clock, place = context.clock, dict[int, int]()
        ends_s = clock.monotonic() + DRAIN_S
        until_s = clock.monotonic() + STUCK_S
        ends = await _ends(client, topic, partitions)
        start: dict[int, Any] = dict.fromkeys(ends, "earliest")
        while True:
            reader = client.reader(topic, [*ends], start=start, end=ends, replica=cast(Replica, replica), **SETTINGS)
            try:
                if await _open(context, reader, name, key, replica):
                    while not reader.at_end and await _poll(context, reader, name, key, replica):
                        if reader.position() != place:
                            place, until_s = reader.position(), min(clock.monotonic() + STUCK_S, ends_s)
                        elif clock.monotonic() > until_s:
                            call.failed("DeadlineExceeded")
                            return
                    if reader.at_end:
                        call.ok([[p, offset] for p, offset in reader.position().items()])
                        return
                start = await _later(reader, start, ends)
            finally:
                await reader.close()
            if clock.monotonic() > until_s:
                call.failed("DeadlineExceeded")
                return
            await clock.sleep(0.1)


async def _later(reader: Any, start: dict[int, Any], ends: dict[int, Offset]) -> dict[int, Any]:
    """Return where to begin after a failure: later, if one replica's log begins later than another's."""
    try:
        await reader.poll(timeout=0)
    except OffsetOutOfRange as error:
        first = int(error.detail["log_start"])
        at: dict[int, int] = reader.position()
        return {p: Offset(min(first, int(ends[p]))) if at[p] < first else place for p, place in start.items()}
    except TinymqError:
        pass
    return start


async def _ends(client: AsyncClient, topic: str, partitions: Sequence[int] | None) -> dict[int, Offset]:
    """Return the ends as leaders know them."""
    reader = client.reader(topic, partitions, start="latest", replica="leader")
    try:
        await reader.open()
        return {p: Offset(o) for p, o in reader.position().items()}
    finally:
        await reader.close()


async def _open(context: Context, reader: Any, name: str, key: str, replica: str) -> bool:
    with recording(context, name, "open", CALL_S, reader=name, topic=key, replica=replica) as call:
        await reader.open()
        call.ok([[p, offset] for p, offset in reader.position().items()])
        return True
    return False


async def _poll(context: Context, reader: Any, name: str, key: str, replica: str) -> bool:
    """Poll once; return False if the reader is at its end."""
    with recording(context, name, "poll", POLL_S, reader=name, topic=key, replica=replica) as call:
        most = context.rng.choice(RECORDS_MAX)
        call.ok(runs(await reader.poll(timeout=POLL_S, max_records=most)))
        if most < RECORDS_MAX[0]:  # records that it has fetched may wait: its position is below them
            with recording(context, name, "position", CALL_S, reader=name, topic=key) as asked:
                asked.ok([[p, offset] for p, offset in reader.position().items()])
        return True
    return False


def runs(messages: list[Any]) -> list[list[Any]]:
    """Return [partition, base offset, records] for records in a row."""
    found: list[list[Any]] = []
    due = (-1, -1)
    for message in messages:
        if (message.partition, message.offset) != due:
            found.append([message.partition, message.offset, []])
        found[-1][2].append(name_of(message))
        due = (message.partition, message.offset + 1)
    return found


async def look_up_times(context: Context, client: AsyncClient, topic: str, key: str) -> None:
    """Ask for the first record of some time, in each of the ways that a client has."""
    process = f"{context.name} times"
    while not context.stop.is_set():
        ago_us = context.rng.randrange(-1_000_000, 15_000_000)
        time_us = max(0, context.clock.wall_us() - ago_us)
        ask = context.rng.choice((_as_wire_answers, _as_admin_finds, _as_reader_begins))
        with recording(context, process, "find_time", topic=key, time_us=time_us) as call:
            call.ok(await ask(client, topic, EPOCH + timedelta(microseconds=time_us)))
        await pause(context, 0.3, 2.0)


Answers = list[list[Any]]
"""[partition, offset, its timestamp, log start, high watermark]; the last three are None if the client is not told."""


async def _as_wire_answers(client: AsyncClient, topic: str, time: datetime) -> Answers:
    found = await find_place(cluster_of(client), topic, time, CALL_S)
    return [[p, a.offset, a.timestamp_us, a.log_start, a.high_watermark] for p, a in found.items()]


async def _as_admin_finds(client: AsyncClient, topic: str, time: datetime) -> Answers:
    found = await client.admin.find_offsets(topic, time, timeout=CALL_S)
    return [[p, offset, None, None, None] for p, offset in found.items()]


async def _as_reader_begins(client: AsyncClient, topic: str, time: datetime) -> Answers:
    reader = client.reader(topic, start=time, **SETTINGS)
    try:
        await reader.open()
        return [[p, offset, None, None, None] for p, offset in reader.position().items()]
    finally:
        await reader.close()


async def look_at_ends(context: Context, client: AsyncClient, topic: str, key: str) -> None:
    """Ask any broker for the bounds of the log now and then."""
    process = f"{context.name} ends"
    while not context.stop.is_set():
        with recording(context, process, "offsets", topic=key) as call:
            found = await client.admin.offsets(topic, timeout=CALL_S)
            call.ok([[p, o.log_start, o.high_watermark] for p, o in found.items()])
        await pause(context, 0.3, 2.0)

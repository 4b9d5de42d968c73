"""A light load that shows pauses: one record after another to every partition, each with its answer before the next.

It shows what one client sees: all partitions share its connections. Nothing here does a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from tinymq.base.errors import OutcomeUnknown, TinymqError
from tinymq.client import AsyncClient
from tinymq_chaos.records import make_value, name_in

EVERY_S = 0.025  # between writes to a partition: the resolution of a pause; shorter ones keep a core busy
CALL_S = 30.0  # deadline of a call
LATE_S = 1.0  # by which a call may end after its deadline on a busy machine


@dataclass(frozen=True, slots=True)
class AcknowledgedWrite:
    """An acknowledged write."""

    record: str  # its name
    offset: int
    invoked_s: float
    at_s: float


@dataclass(slots=True)
class Writes:
    """The outcomes of the writes to one partition."""

    partition: int
    acks: list[AcknowledgedWrite] = field(default_factory=list)  # in order
    failed: list[str] = field(default_factory=list)  # codes
    unknown: list[str] = field(default_factory=list)
    late: int = 0  # calls that did not end by their deadline
    began_s: float = 0.0

    def pause(self, since_s: float, until_s: float) -> tuple[float, float]:
        """Return the longest time without an acknowledgement that touches [since_s, until_s], as (begin, end).

        A missing end counts as `until_s`.
        """
        at = [self.began_s, *(ack.at_s for ack in self.acks)]
        at.append(max(until_s, at[-1]))
        gaps = [(a, b) for a, b in pairwise(at) if b >= since_s and a <= until_s]
        return max(gaps, key=lambda gap: gap[1] - gap[0])

    def resumed(self, since_s: float) -> bool:
        """Return whether a write that began after `since_s` was acknowledged."""
        return bool(self.acks) and self.acks[-1].invoked_s > since_s


class Load:
    """Writers of every partition of one topic, and a reader of it."""

    def __init__(self, client: AsyncClient, topic: str, partitions: int, value_bytes: int = 100) -> None:
        self.client = client
        self.topic = topic
        self.partitions = [Writes(p) for p in range(partitions)]
        self.read_errors: list[str] = []
        self.read = 0  # records, by the reader
        self._bytes = value_bytes
        self._stop = asyncio.Event()

    @asynccontextmanager
    async def running(self, reading: bool = False) -> AsyncIterator[Load]:
        """Run the load until the block ends, and wait for its calls."""
        tasks = [asyncio.create_task(self._write(writes)) for writes in self.partitions]
        tasks += [asyncio.create_task(self._read())] if reading else []
        try:
            yield self
        finally:
            self._stop.set()
            await asyncio.wait(tasks, timeout=CALL_S + LATE_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _write(self, writes: Writes) -> None:
        clock = time.monotonic
        writes.began_s = clock()
        number = 0
        while not self._stop.is_set():
            number += 1
            name = f"{writes.partition}-{number}"
            began_s = clock()
            try:
                sent = await self.client.send(self.topic, make_value(name, self._bytes), partition=writes.partition)
            except OutcomeUnknown as error:
                writes.unknown.append(error.code)
            except TinymqError as error:
                writes.failed.append(error.code)
            else:
                writes.acks.append(AcknowledgedWrite(name, sent.offset, began_s, clock()))
            writes.late += clock() - began_s > CALL_S + LATE_S
            await asyncio.sleep(max(0.0, began_s + EVERY_S - clock()))

    async def _read(self) -> None:
        reader = self.client.reader(self.topic, replica="any")
        try:
            while not self._stop.is_set():
                try:
                    self.read += len(await reader.poll(timeout=0.2))
                except TinymqError as error:
                    self.read_errors.append(error.code)
        finally:
            await reader.close()

    @property
    def acknowledged(self) -> int:
        return sum(len(writes.acks) for writes in self.partitions)

    @property
    def errors(self) -> list[str]:
        return [code for writes in self.partitions for code in (*writes.failed, *writes.unknown)] + self.read_errors

    @property
    def late(self) -> int:
        return sum(writes.late for writes in self.partitions)

    async def missing(self) -> tuple[int, int]:
        """Read from the leaders; return (acknowledged records that are missing, records that are there twice)."""
        lost = twice = 0
        for writes in self.partitions:
            found = [name async for name in _names(self.client, self.topic, writes.partition)]
            twice += len(found) - len(set(found))
            lost += sum(ack.offset >= len(found) or found[ack.offset] != ack.record for ack in writes.acks)
        return lost, twice


async def _names(client: AsyncClient, topic: str, partition: int) -> AsyncIterator[str]:
    end = (await client.admin.offsets(topic))[partition].high_watermark
    reader = client.reader(topic, [partition], replica="leader")
    seen = 0
    with contextlib.suppress(StopAsyncIteration):
        while seen < end:
            for message in await reader.poll(timeout=CALL_S):
                seen += 1
                yield name_in(message.value)
    await reader.close()


async def until(holds: Callable[[], object], within_s: float, what: str, every_s: float = 0.02) -> None:
    """Wait for a condition. Raises TimeoutError with what did not happen."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(every_s)

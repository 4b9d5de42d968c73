"""How far a stream has come, for all to see: the position of a channel in each partition, as `groupId` names it.

Nothing is read back: a query goes on from its checkpoint. So what cannot be published is said in the log, and is
published with what follows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark_tinymq.offsets import Offsets, Partition
from tinymq.errors import InvalidConfig, TinymqError, UnknownChannel, UnknownTopic
from tinymq.types import Offset

if TYPE_CHECKING:
    from tinymq.client import AsyncClient, Client

LOG = logging.getLogger("pyspark_tinymq")

AT_ONCE_MAX = 64
TIMEOUT_S = 5.0
GAP_S = 1.0  # between two publications, unless the stream ends
CONSUMER = "spark"  # on record while a channel is made: a driver that died meanwhile stays so


class Progress:
    """Publishes for one query. For one thread."""

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._group = group
        self._published: dict[Partition, int] = {}
        self._published_s = -GAP_S

    def check(self, topics: Iterable[str]) -> None:
        """Raises InvalidConfig when somebody reads one of the channels: it would lose its place."""
        for topic in topics:
            try:
                channels = self._client.admin.list_channels(topic)
            except UnknownTopic:
                continue
            except TinymqError as error:
                LOG.warning("%s: whether somebody reads channel %s is not known: %s", topic, self._group, error)
                continue
            for channel in channels:
                if channel.channel == self._group and channel.consumer not in ("", CONSUMER):
                    where = f"{topic}/{channel.partition}"
                    raise InvalidConfig(
                        f"groupId={self._group!r}: {channel.consumer} reads {where} through that channel",
                        hint=f"another name; or, if it died: tinymq queue consumer unset {where} "
                        f"--channel {self._group}",
                    )

    def publish(self, offsets: Offsets, *, now: bool) -> None:
        """What lies below these offsets is done with. `now`: there may be no other time."""
        changed = {at: offset for at, offset in offsets.items() if self._published.get(at) != offset}
        if not changed or (not now and time.monotonic() - self._published_s < GAP_S):
            return
        self._published_s = time.monotonic()
        engine = self._client.engine()
        failures = engine.run(_publish_all(engine.client, self._group, changed))
        self._published |= {at: offset for at, offset in changed.items() if at not in failures}
        for at, error in list(failures.items())[:1]:
            LOG.warning("progress of %d partitions not published, such as %s: %s", len(failures), at, error)


async def _publish_all(client: AsyncClient, group: str, offsets: Offsets) -> dict[Partition, TinymqError]:
    """Why it did not go well, where it did not."""
    going = asyncio.Semaphore(AT_ONCE_MAX)
    failures: dict[Partition, TinymqError] = {}

    async def one(at: Partition, offset: int) -> None:
        async with going:
            try:
                await _publish(client, group, at, offset)
            except TinymqError as error:
                failures[at] = error

    await asyncio.gather(*(one(at, offset) for at, offset in offsets.items()))
    return failures


async def _publish(client: AsyncClient, group: str, at: Partition, offset: int) -> None:
    try:
        await client.admin.seek_channel(at.topic, at.partition, group, Offset(offset), timeout=TIMEOUT_S)
    except UnknownChannel:
        queue = client.queue(at.topic, at.partition, group, consumer=CONSUMER, start=Offset(offset))
        await queue.open()
        await queue.close()

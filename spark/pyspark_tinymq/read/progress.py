"""How far a stream has come, for all to see: the position of a channel in each partition, as `groupId` names it.

Nothing is read back: a query goes on from its checkpoint. So what cannot be published is said in the log, and is
published with what follows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Set
from typing import TYPE_CHECKING

from pyspark_tinymq.options.offsets import Offsets, Partition
from tinymq.base.errors import DeadlineExceeded, InvalidConfig, TinymqError, UnknownTopic
from tinymq.base.types import Offset

if TYPE_CHECKING:
    from tinymq.client import AsyncClient, Client

LOG = logging.getLogger("pyspark_tinymq")

AT_ONCE_MAX = 64
TIMEOUT_S = 5.0  # of a publication as a whole,
AGAIN_S = 0.5  # and of it for a partition that did not answer the last time
LEFT_S_MIN = 0.001  # with less nobody is asked
GAP_S = 1.0  # between two publications, unless the stream ends


class Progress:
    """Publishes for one query. For one thread."""

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._group = group
        self._published: dict[Partition, int] = {}
        self._published_s = -GAP_S
        self._failed: set[Partition] = set()  # the last time
        self._said = ""

    def check(self, topics: Iterable[str]) -> None:
        """Raises InvalidConfig when somebody reads one of the channels: it would lose its place. Who comes later keeps
        it: what he reads is not published."""
        for topic in topics:
            try:
                channels = self._client.admin.list_channels(topic)
            except UnknownTopic:
                continue
            except TinymqError as error:
                LOG.warning("%s: whether somebody reads channel %s is not known: %s", topic, self._group, error)
                continue
            for channel in channels:
                if channel.channel == self._group and channel.consumer:
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
        loop_thread = self._client.loop_thread
        failures = loop_thread.run(_publish_all(loop_thread.client, self._group, changed, self._failed))
        self._failed = set(failures)
        self._published |= {at: offset for at, offset in changed.items() if at not in failures}
        said = next((f"such as {at}: {error}" for at, error in sorted(failures.items())), "")
        if said and said != self._said:
            LOG.warning("progress of %d partitions not published, %s", len(failures), said)
        self._said = said


async def _publish_all(
    client: AsyncClient, group: str, offsets: Offsets, failed: Set[Partition]
) -> dict[Partition, TinymqError]:
    """Why it did not go well, where it did not. A channel that somebody reads is left alone. Partitions in `failed`
    come last, and are not waited for as long: who has no leader keeps the others, and the driver, waiting once."""
    deadline_s = time.monotonic() + TIMEOUT_S
    going = asyncio.Semaphore(AT_ONCE_MAX)
    failures: dict[Partition, TinymqError] = {}

    async def one(at: Partition) -> None:
        async with going:
            left_s = min(deadline_s - time.monotonic(), AGAIN_S if at in failed else TIMEOUT_S)
            try:
                if left_s < LEFT_S_MIN:
                    raise DeadlineExceeded(f"no time was left for it within {TIMEOUT_S:g} s")
                to = Offset(offsets[at])
                await client.admin.seek_channel(
                    at.topic, at.partition, group, to, unless_read=True, make=True, timeout=left_s
                )
            except TinymqError as error:
                failures[at] = error

    await asyncio.gather(*(one(at) for at in sorted(offsets, key=lambda at: at in failed)))
    return failures

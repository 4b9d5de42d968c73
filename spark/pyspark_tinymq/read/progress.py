"""Publishes how far a stream has read, as the position of the channel `groupId` in each partition.

The stream never reads these positions: a query continues from its checkpoint. A failure to publish is therefore only
logged, and the next publication makes up for it.
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
from tinymq.client.facade.client import loop_thread_of

if TYPE_CHECKING:
    from tinymq.client import Client
    from tinymq.client.facade.core.client_core import ClientCore

LOG = logging.getLogger("pyspark_tinymq")

AT_ONCE_MAX = 64
TIMEOUT_S = 5.0  # for a whole publication
AGAIN_S = 0.5  # within it, for a partition that did not answer the last time
LEFT_S_MIN = 0.001  # with less time left, no request is sent
GAP_S = 1.0  # between two publications, unless the stream ends


class Progress:
    """Publishes the progress of one query. Use it in one thread."""

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._group = group
        self._published: dict[Partition, int] = {}
        self._published_s = -GAP_S
        self._failed: set[Partition] = set()  # in the last publication
        self._last_warning = ""  # so that a lasting failure is logged once

    def check(self, topics: Iterable[str]) -> None:
        """Raise InvalidConfig if a consumer reads one of the channels, because it would lose its position.

        A consumer that comes later keeps its position: the stream publishes nothing for a channel that has a consumer.
        """
        for topic in topics:
            try:
                channels = self._client.admin.list_channels(topic)
            except UnknownTopic:
                continue
            except TinymqError as error:
                LOG.warning("%s: cannot tell whether channel %s has a consumer: %s", topic, self._group, error)
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
        """Publish that the records below these offsets are done. `now`: this may be the last call."""
        changed = {
            partition: offset for partition, offset in offsets.items() if self._published.get(partition) != offset
        }
        if not changed or (not now and time.monotonic() - self._published_s < GAP_S):
            return
        self._published_s = time.monotonic()
        loop_thread = loop_thread_of(self._client)
        failures = loop_thread.run(_publish_all(loop_thread.client, self._group, changed, self._failed))
        self._failed = set(failures)
        self._published |= {partition: offset for partition, offset in changed.items() if partition not in failures}
        warning = next((f"such as {partition}: {error}" for partition, error in sorted(failures.items())), "")
        if warning and warning != self._last_warning:
            LOG.warning("progress of %d partitions not published, %s", len(failures), warning)
        self._last_warning = warning


async def _publish_all(
    client: ClientCore, group: str, offsets: Offsets, failed: Set[Partition]
) -> dict[Partition, TinymqError]:
    """Publish these offsets, and return the errors by partition. A channel that has a consumer is left alone.

    Partitions in `failed` come last and get less time, so that a partition without a leader delays the others, and the
    driver, only once.
    """
    deadline_s = time.monotonic() + TIMEOUT_S
    going = asyncio.Semaphore(AT_ONCE_MAX)
    failures: dict[Partition, TinymqError] = {}

    async def one(partition: Partition) -> None:
        async with going:
            left_s = min(deadline_s - time.monotonic(), AGAIN_S if partition in failed else TIMEOUT_S)
            try:
                if left_s < LEFT_S_MIN:
                    raise DeadlineExceeded(f"no time was left for it within {TIMEOUT_S:g} s")
                to = Offset(offsets[partition])
                await client.admin.seek_channel(
                    partition.topic, partition.partition, group, to, unless_read=True, make=True, timeout=left_s
                )
            except TinymqError as error:
                failures[partition] = error

    await asyncio.gather(*(one(partition) for partition in sorted(offsets, key=lambda partition: partition in failed)))
    return failures

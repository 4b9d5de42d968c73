"""A hold on the records of a partition from an offset on: they stay, while it is renewed.

The lease is the partition's own time; it is renewed here after a third of it. A hold whose renewals stay away ends by
itself: nothing is kept for a client that died.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tinymq.client.cluster import Cluster
from tinymq.client.leader import ask_leader, topic_with
from tinymq.client.places import Known, read_place
from tinymq.client.ports import Method
from tinymq.errors import Closed, InvalidRequest, TinymqError
from tinymq.proto import tinymq_pb2 as pb
from tinymq.types import Offset

LOG = logging.getLogger("tinymq.client")

LEASE_S_MIN = 1.0
LEASE_S_MAX = 3600.0
RENEWALS_PER_LEASE = 3
HOLD_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class HoldDescription:
    """A hold on a partition, as its leader has it."""

    topic: str
    partition: int
    hold_id: bytes  # 16 bytes
    offset: int  # what lies from here on is kept
    left_s: float  # until its lease ends, unless it is renewed


async def hold_once(
    cluster: Cluster, topic: str, partition: int, hold_id: bytes, offset: int, lease_s: float, timeout_s: float
) -> pb.HoldReply:
    """Make or renew a hold; 0 seconds release it. Raises OffsetOutOfRange, QuotaExceeded, as `ask_leader`."""
    left = cluster.countdown(timeout_s)
    known = await topic_with(cluster, topic, partition, left())
    request = pb.HoldRequest(
        topic_id=known.topic_id, partition=partition, hold_id=hold_id, offset=offset, lease_ms=int(lease_s * 1000)
    )
    reply: pb.HoldReply = await ask_leader(cluster, known, partition, Method.HOLD, request, timeout_s=left())
    return reply


def read_offset(offset: Offset) -> int:
    """Raises InvalidRequest for what is no Offset."""
    place = read_place(offset)
    if not isinstance(place, Known):
        raise InvalidRequest(f"offset={offset!r} is no Offset", hint="pass tinymq.Offset(5)")
    return place.offset


def check_lease(lease: float) -> float:
    """In seconds. Raises InvalidRequest."""
    number = isinstance(lease, int | float) and not isinstance(lease, bool)
    if not number or not LEASE_S_MIN <= lease <= LEASE_S_MAX:
        raise InvalidRequest(f"lease={lease!r}", hint=f"seconds from {LEASE_S_MIN:g} to {LEASE_S_MAX:g}")
    return float(lease)


def check_hold_id(hold_id: bytes) -> bytes:
    """Raises InvalidRequest."""
    if not isinstance(hold_id, bytes) or len(hold_id) != HOLD_ID_BYTES:
        raise InvalidRequest(f"hold_id={hold_id!r:.100}", hint=f"pass {HOLD_ID_BYTES} bytes, as list_holds has them")
    return hold_id


class AsyncHold:
    """Made by admin.hold(). In its `async with` block everything from `offset` on is kept.

    Entering raises OffsetOutOfRange when `offset` is gone already, and QuotaExceeded when there are too many holds.
    Nothing raises when the hold is lost later, as the brokers cannot be reached for the whole lease: `check` does,
    and so do reads of what is gone.
    """

    def __init__(self, cluster: Cluster, topic: str, partition: int, offset: Offset, lease: float) -> None:
        """`lease` in seconds, 1 to 3600."""
        self.topic = topic
        self.partition = partition
        self.offset = read_offset(offset)
        self.lease_s = check_lease(lease)
        self.log_start = 0  # of the partition, when the hold was last renewed
        self._cluster = cluster
        self._hold_id = b""
        self._until_s = 0.0  # by our own clock: it is held for longer than that
        self._failure: TinymqError | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def acquire(self) -> None:
        """What `async with` does first."""
        if self._renewing is not None:
            raise InvalidRequest("it is held already", hint="make another hold")
        self._hold_id = self._cluster.rng.randbytes(HOLD_ID_BYTES)
        await self._hold(self.lease_s, self._cluster.config.request_timeout_ms / 1000)
        self._renewing = asyncio.create_task(self._renew())

    async def release(self) -> None:
        """What `async with` does at its end. Raises nothing: a hold that is not released ends with its lease."""
        renewing, self._renewing = self._renewing, None
        if renewing is None:
            return
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        self._until_s = 0.0
        try:
            await self._hold(0.0, self._cluster.attempt_s)
        except TinymqError as error:
            LOG.info("hold on %s/%d not released, its lease ends it: %s", self.topic, self.partition, error)

    def check(self) -> None:
        """Raises unless everything from `offset` on is certainly kept now."""
        if self._failure is not None:
            raise self._failure
        if self._cluster.clock.monotonic() >= self._until_s:
            raise Closed(f"{self.topic}/{self.partition} is not held (any more)", hint="make another hold")

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    async def _hold(self, lease_s: float, timeout_s: float) -> None:
        asked_s = self._cluster.clock.monotonic()
        reply = await hold_once(
            self._cluster, self.topic, self.partition, self._hold_id, self.offset, lease_s, timeout_s
        )
        self.log_start = reply.log_start
        self._until_s = asked_s + lease_s

    async def _renew(self) -> None:
        pause_s = self.lease_s / RENEWALS_PER_LEASE
        while True:
            await self._cluster.clock.sleep(pause_s)
            try:
                await self._hold(self.lease_s, pause_s)
            except TinymqError as error:
                LOG.warning("hold on %s/%d not renewed: %s", self.topic, self.partition, error)
                if not error.retriable and error.code != "OutcomeUnknown":
                    self._failure = error
                    return

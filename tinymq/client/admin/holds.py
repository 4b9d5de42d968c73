"""A hold on the records of a partition from an offset on: they stay, while it is renewed.

The lease is the partition's own time; it is renewed here after a third of it. A hold whose renewals stay away ends by
itself: nothing is kept for a client that died.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tinymq.base.errors import (
    Closed,
    CorruptData,
    DeadlineExceeded,
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
)
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leader_calls import ask_leader, passes, topic_with
from tinymq.client.cluster.lookups import topic_with as topics_with
from tinymq.client.cluster.routing import Topic
from tinymq.client.common.argument_checks import OFFSET_MAX, check_count, check_partition
from tinymq.client.common.start_positions import OffsetLike, read_offset
from tinymq.client.net.wire import read_error
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.bounds import REPEATED_MAX

LOG = logging.getLogger("tinymq.client")

LEASE_S_MIN = 1.0
LEASE_S_MAX = 3600.0
RENEWALS_PER_LEASE = 3
HOLD_ID_BYTES = 16
RANGES_MAX = REPEATED_MAX["HoldRequest.ranges"]
ENOUGH = 2 / 3  # of a lease: many holds are renewed often, by every plan of a stream, and written once in a while
ATTEMPT_S_EACH = 0.01  # more patience for a request, for each range: asked again, it would only cost more
TROUBLE_MAX = 5  # partitions whose trouble an error tells


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
) -> pb.HoldOutcome:
    """Make or renew a hold; 0 seconds release it. Raises OffsetOutOfRange, QuotaExceeded, as `ask_leader`."""
    left = cluster.countdown(timeout_s)
    known = await topic_with(cluster, topic, partition, left())
    request = _request(known, {partition: offset}, hold_id, lease_s)

    def refusal(reply: pb.HoldReply) -> TinymqError | None:
        if len(reply.outcomes) != 1:
            return CorruptData(f"an answer has {len(reply.outcomes)} outcomes for one question", hint="")
        return read_error(reply.outcomes[0].error) if reply.outcomes[0].HasField("error") else None

    reply = await ask_leader(cluster, known, partition, request, timeout_s=left(), refusal=refusal)
    outcome: pb.HoldOutcome = reply.outcomes[0]
    return outcome


async def hold_many(
    cluster: Cluster,
    topic: str,
    ranges: Mapping[int, int],
    hold_id: bytes,
    lease_s: float,
    timeout_s: float,
    *,
    enough: float = ENOUGH,
    partial: bool = False,
    light: bool = False,
) -> dict[int, int]:
    """Make, renew or release one hold in many partitions, by `ranges` (partition -> offset); their log starts.

    One request for each leader, which writes nothing where a hold there keeps as much for that part of the lease
    yet; what a leader could not do is asked for again until the deadline. Raises what was
    refused for good (detail: partition) once all others were answered: OffsetOutOfRange, QuotaExceeded; UnknownTopic,
    UnknownPartition; at the deadline DeadlineExceeded, or OutcomeUnknown if an attempt may have taken effect. With
    `partial` all but OffsetOutOfRange is said in the log instead, and those partitions are left out.
    """
    left = cluster.countdown(timeout_s)
    known = await topics_with(cluster, topic, ranges, left())
    found: dict[int, int] = {}
    refused: dict[int, TinymqError] = {}
    trouble: dict[str, str] = {}
    unclear = False
    async for attempt in cluster.attempts(left()):
        open_ones = [p for p in ranges if p not in found and p not in refused]
        asked = []
        for address, group in _by_leader(cluster, known, open_ones):
            request = _request(known, {p: ranges[p] for p in group}, hold_id, lease_s, enough, light)
            attempt_s = max(0.001, min(attempt.left_s, cluster.attempt_s + len(group) * ATTEMPT_S_EACH))
            asked.append(_hold_at(cluster, address, request, attempt_s))
        for answers in await asyncio.gather(*asked):
            for partition, answer in answers.items():
                if not isinstance(answer, TinymqError):
                    found[partition] = answer
                    continue
                trouble[f"{topic}/{partition}"] = answer.message
                unclear = unclear or isinstance(answer, OutcomeUnknown)
                moved = isinstance(answer, NotLeader) and cluster.learn(topic, partition, answer)
                full = isinstance(answer, QuotaExceeded)  # holds end when their leases do: that is no time to wait
                if full or (not moved and not await passes(cluster, known, partition, answer)):
                    answer.detail["partition"] = str(partition)
                    refused[partition] = answer
        if len(found) + len(refused) == len(ranges):
            break
    else:
        if not partial:
            raise _too_late(topic, timeout_s, trouble, unclear)
    gone = [error for error in refused.values() if not partial or isinstance(error, OffsetOutOfRange)]
    if gone:
        raise gone[0]
    if len(found) < len(ranges):
        why = {where: said for where, said in trouble.items() if int(where.rpartition("/")[2]) not in found}
        LOG.warning("%s: %d partitions not held: %s", topic, len(ranges) - len(found), _shown(why))
    return {partition: found[partition] for partition in ranges if partition in found}


def _by_leader(cluster: Cluster, topic: Topic, partitions: list[int]) -> list[tuple[str, list[int]]]:
    """Whom to ask for which, in requests of at most so many as a broker takes."""
    groups: dict[str, list[int]] = {}
    for partition in partitions:
        at = cluster.view.topics.get(topic.name, topic).partition(partition)
        address = cluster.view.address(at.leader) if at is not None else None
        if address is not None:
            groups.setdefault(address, []).append(partition)
    return [
        (address, group[first : first + RANGES_MAX])
        for address, group in groups.items()
        for first in range(0, len(group), RANGES_MAX)
    ]


async def _hold_at(
    cluster: Cluster, address: str, request: pb.HoldRequest, timeout_s: float
) -> dict[int, int | TinymqError]:
    """What one broker answers, by partition: the log start, or why there is no hold."""
    request.timeout_ms = max(1, int(timeout_s * 1000))
    try:
        reply = await cluster.ask_broker(address, request, timeout_s)
        if len(reply.outcomes) != len(request.ranges):
            raise CorruptData(f"{address}: {len(reply.outcomes)} outcomes for {len(request.ranges)} ranges", hint="")
    except TinymqError as error:
        return {asked.partition: error for asked in request.ranges}
    return {
        asked.partition: read_error(outcome.error) if outcome.HasField("error") else int(outcome.log_start)
        for asked, outcome in zip(request.ranges, reply.outcomes, strict=True)
    }


def _request(
    topic: Topic, ranges: Mapping[int, int], hold_id: bytes, lease_s: float, enough: float = 0.0, light: bool = False
) -> pb.HoldRequest:
    """`enough`: a hold there is with such a part of its lease left is left as it is."""
    return pb.HoldRequest(
        enough_ms=int(lease_s * enough * 1000),
        light=light,
        topic_id=topic.topic_id,
        hold_id=hold_id,
        lease_ms=int(lease_s * 1000),
        ranges=[pb.HoldRange(partition=partition, offset=offset) for partition, offset in ranges.items()],
    )


def _too_late(topic: str, timeout_s: float, trouble: Mapping[str, str], unclear: bool) -> TinymqError:
    why = _shown(trouble)
    if unclear:
        return OutcomeUnknown(f"no hold of all of {topic} within {timeout_s:.3g} s, perhaps of some: {why}")
    return DeadlineExceeded(f"no hold of all of {topic} within {timeout_s:.3g} s: {why}")


def _shown(trouble: Mapping[str, str]) -> str:
    shown = [f"{where}: {why}" for where, why in list(trouble.items())[:TROUBLE_MAX]]
    return "; ".join(shown) + ("; ..." if len(trouble) > TROUBLE_MAX else "") or "no leader is known"


def read_ranges(ranges: object) -> dict[int, int]:
    """Offsets by partition. Raises InvalidRequest."""
    hint = "pass offsets by partition, such as {0: 17, 1: 0}"
    if not isinstance(ranges, Mapping) or not ranges:
        raise InvalidRequest(f"ranges={ranges!r:.300}", hint=hint)
    return {
        check_partition(partition): check_count(f"the offset of partition {partition}", offset, 0, OFFSET_MAX)
        for partition, offset in ranges.items()
    }


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

    offset: int
    """The first offset that is kept."""
    log_start: int
    """The first offset of the partition, when the hold was last renewed."""

    def __init__(self, cluster: Cluster, topic: str, partition: int, offset: OffsetLike, lease: float) -> None:
        """`lease` in seconds, 1 to 3600."""
        self.topic = topic
        self.partition = partition
        self.offset = read_offset(offset)
        self.lease_s = check_lease(lease)
        self.log_start = 0
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
        """Release the hold at the end of `async with`. Errors of brokers are not raised, because an unreleased hold
        ends with its lease."""
        self._cluster.check_loop()
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

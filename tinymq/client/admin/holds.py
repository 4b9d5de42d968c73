"""Holds: they keep the records of a partition from an offset on, as long as a client renews them.

The partition measures the lease by its own clock. The client renews a hold after a third of its lease. A hold that is
not renewed ends by itself, so nothing is kept for a client that died.
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
from tinymq.client.common.traces import trimming, untraced
from tinymq.client.net.wire import read_error
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.bounds import REPEATED_MAX

LOG = logging.getLogger("tinymq.client")

LEASE_S_MIN = 1.0
LEASE_S_MAX = 3600.0
RENEWALS_PER_LEASE = 3
HOLD_ID_BYTES = 16
RANGES_MAX = REPEATED_MAX["HoldRequest.ranges"]
# The part of a lease that makes a renewal unnecessary. A stream renews many holds with every plan, but each of them is
# written only now and then.
ENOUGH = 2 / 3
ATTEMPT_S_EACH = 0.01  # added to an attempt's time for each range: a repeated request would cost more than the wait
TROUBLE_MAX = 5  # the number of partitions whose errors a message quotes


@dataclass(frozen=True, slots=True)
class HoldTerms:
    """The terms of a hold: whose it is, and for how long."""

    hold_id: bytes  # HOLD_ID_BYTES
    seconds: float  # 0 releases the hold
    enough: float = 0.0  # a hold that has this part of its lease left, 0 to 1, stays as it is
    light: bool = False  # the leader keeps it in memory alone


@dataclass(frozen=True, slots=True)
class HoldDescription:
    """A hold on a partition, as the partition's leader describes it.

    for hold in mq.admin.list_holds("orders"):
        print(hold.partition, hold.offset, hold.left_s)
    """

    topic: str
    partition: int
    hold_id: bytes  # 16 bytes
    offset: int  # the first offset that is kept
    left_s: float  # until its lease ends, unless it is renewed


async def hold_once(
    cluster: Cluster, topic: str, partition: int, offset: int, lease: HoldTerms, timeout_s: float
) -> pb.HoldOutcome:
    """Make, renew or release one hold. Raises OffsetOutOfRange, QuotaExceeded, and as `ask_leader`."""
    left = cluster.countdown(timeout_s)
    known = await topic_with(cluster, topic, partition, left())
    request = _request(known, {partition: offset}, lease)

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
    lease: HoldTerms,
    timeout_s: float,
    *,
    partial: bool = False,
) -> dict[int, int]:
    """Make, renew or release one hold in many partitions, by `ranges` (partition -> offset); return the log starts.

    Each leader gets one request for its partitions. The ones that it could not hold are asked for again until the
    deadline. A refusal that no retry can change (detail: partition) is raised after all other partitions were answered:
    OffsetOutOfRange, QuotaExceeded, UnknownTopic, UnknownPartition. At the deadline this raises DeadlineExceeded, or
    OutcomeUnknown if an attempt may have taken effect. With `partial`, only OffsetOutOfRange is raised; other
    partitions that could not be held are logged and left out.
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
            request = _request(known, {p: ranges[p] for p in group}, lease)
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
                # The holds that fill the quota end with their leases, which is too long to wait for here.
                full = isinstance(answer, QuotaExceeded)
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
        why = {where: text for where, text in trouble.items() if int(where.rpartition("/")[2]) not in found}
        LOG.warning("%s: %d partitions not held: %s", topic, len(ranges) - len(found), _shown(why))
    return {partition: found[partition] for partition in ranges if partition in found}


def _by_leader(cluster: Cluster, topic: Topic, partitions: list[int]) -> list[tuple[str, list[int]]]:
    """Leaders' addresses with their partitions, in groups that fit into one request. Partitions without a known leader
    are left out."""
    groups: dict[str, list[int]] = {}
    for partition in partitions:
        placement = cluster.view.topics.get(topic.name, topic).partition(partition)
        address = cluster.view.address(placement.leader) if placement is not None else None
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
    """One broker's answer for each partition: the log start, or the error."""
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


def _request(topic: Topic, ranges: Mapping[int, int], lease: HoldTerms) -> pb.HoldRequest:
    return pb.HoldRequest(
        enough_ms=int(lease.seconds * lease.enough * 1000),
        light=lease.light,
        topic_id=topic.topic_id,
        hold_id=lease.hold_id,
        lease_ms=int(lease.seconds * 1000),
        ranges=[pb.HoldRange(partition=partition, offset=offset) for partition, offset in ranges.items()],
    )


def _too_late(topic: str, timeout_s: float, trouble: Mapping[str, str], unclear: bool) -> TinymqError:
    why = _shown(trouble)
    if unclear:
        return OutcomeUnknown(f"not all of {topic} is certainly held after {timeout_s:.3g} s: {why}")
    return DeadlineExceeded(f"not all of {topic} is held after {timeout_s:.3g} s: {why}")


def _shown(trouble: Mapping[str, str]) -> str:
    shown = [f"{where}: {why}" for where, why in list(trouble.items())[:TROUBLE_MAX]]
    return "; ".join(shown) + ("; ..." if len(trouble) > TROUBLE_MAX else "") or "no leader is known"


def read_ranges(ranges: object) -> dict[int, int]:
    """Check offsets by partition. Raises InvalidRequest."""
    hint = "pass offsets by partition, such as {0: 17, 1: 0}"
    if not isinstance(ranges, Mapping) or not ranges:
        raise InvalidRequest(f"ranges={ranges!r:.300}", hint=hint)
    return {
        check_partition(partition): check_count(f"the offset of partition {partition}", offset, 0, OFFSET_MAX)
        for partition, offset in ranges.items()
    }


def check_lease(lease: float) -> float:
    """Check a lease in seconds. Raises InvalidRequest."""
    number = isinstance(lease, int | float) and not isinstance(lease, bool)
    if not number or not LEASE_S_MIN <= lease <= LEASE_S_MAX:
        raise InvalidRequest(f"lease={lease!r}", hint=f"seconds from {LEASE_S_MIN:g} to {LEASE_S_MAX:g}")
    return float(lease)


def check_hold_id(hold_id: bytes) -> bytes:
    """Check the id of a hold. Raises InvalidRequest."""
    if not isinstance(hold_id, bytes) or len(hold_id) != HOLD_ID_BYTES:
        raise InvalidRequest(f"hold_id={hold_id!r:.100}", hint=f"pass {HOLD_ID_BYTES} bytes, as list_holds has them")
    return hold_id


class AsyncHold:
    """Keeps the records from `offset` on while its `async with` block runs. Made by admin.hold().

        async with mq.admin.hold("orders", 0, 17) as hold:
            ...  # read from offset 17 on
            hold.check()

    Entering raises OffsetOutOfRange when the record at `offset` is already removed, and QuotaExceeded when there are
    too many holds. The client renews the hold. When it cannot reach the brokers for a whole lease, the hold is lost.
    Nothing raises at that moment: `check` does, and so do reads of records that are removed.

    Single steps:

        hold = mq.admin.hold("orders", 0, 0, lease=60.0)
        await hold.acquire()
        print(hold.offset, hold.log_start)
        await hold.release()
    """

    offset: int
    """The first offset that is kept."""
    log_start: int
    """The first offset of the partition, when the hold was last renewed."""

    def __init__(self, cluster: Cluster, topic: str, partition: int, offset: OffsetLike, lease: float) -> None:
        """`lease` in seconds, 1 to 3600."""
        self._topic = topic
        self._partition = partition
        self.offset = read_offset(offset)
        self._lease_s = check_lease(lease)
        self.log_start = 0
        self._cluster = cluster
        self._hold_id = b""
        self._until_s = 0.0  # by our own clock: the records are kept at least until then
        self._failure: TinymqError | None = None
        self._renewing: asyncio.Task[None] | None = None

    @trimming
    async def acquire(self) -> None:
        """Make the hold, and renew it from now on. `async with` does this first.

        Raises OffsetOutOfRange, QuotaExceeded.
        """
        if self._renewing is not None:
            raise InvalidRequest("it is held already", hint="make another hold")
        self._hold_id = self._cluster.rng.randbytes(HOLD_ID_BYTES)
        await self._hold(self._lease_s, self._cluster.config.request_timeout_ms / 1000)
        self._renewing = asyncio.create_task(self._renew())

    async def release(self) -> None:
        """Release the hold; `async with` does this at its end.

        Errors of brokers are not raised, because an unreleased hold ends with its lease.
        """
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
            LOG.info("hold on %s/%d not released, its lease ends it: %s", self._topic, self._partition, error)

    def check(self) -> None:
        """Raise an error unless the records from `offset` on are certainly kept now. Raises Closed, or the error that
        ended the hold."""
        if self._failure is not None:
            raise untraced(self._failure)
        if self._cluster.clock.monotonic() >= self._until_s:
            raise Closed(f"{self._topic}/{self._partition} is not held, or not held any more", hint="make another hold")

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    async def _hold(self, lease_s: float, timeout_s: float) -> None:
        asked_s = self._cluster.clock.monotonic()
        lease = HoldTerms(self._hold_id, lease_s)
        reply = await hold_once(self._cluster, self._topic, self._partition, self.offset, lease, timeout_s)
        self.log_start = reply.log_start
        self._until_s = asked_s + lease_s

    async def _renew(self) -> None:
        pause_s = self._lease_s / RENEWALS_PER_LEASE
        while True:
            await self._cluster.clock.sleep(pause_s)
            try:
                await self._hold(self._lease_s, pause_s)
            except TinymqError as error:
                LOG.warning("hold on %s/%d not renewed: %s", self._topic, self._partition, error)
                if not error.retriable and error.code != "OutcomeUnknown":
                    self._failure = error
                    return

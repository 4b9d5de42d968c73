"""Requests of the driver to the cluster: which partitions exist, where they begin and end, which offset a time has, and
the holds on planned records.

Every answer describes a moment during the call. If a leader is unreachable, another replica answers for it.
"""

from __future__ import annotations

import logging
import math
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from pyspark_tinymq.options.offsets import EARLIEST, EARLIEST_TEXT, LATEST, Offsets, Partition, Place, first_few
from pyspark_tinymq.options.settings import Source, Times
from pyspark_tinymq.plan import hold_ledger
from pyspark_tinymq.plan.hold_ledger import by_topic
from pyspark_tinymq.plan.plan import Bounds, check_explicit
from pyspark_tinymq.session.replicas import Replica
from tinymq.base.config import parse_address
from tinymq.base.errors import InvalidRequest, OffsetOutOfRange, TinymqError, UnknownPartition, UnknownTopic

if TYPE_CHECKING:
    from tinymq.client import Client

LOG = logging.getLogger("pyspark_tinymq")

SIZES_S = 10.0  # how long a mean size stays valid
PATIENCE_S, AGAIN_S = 5.0, 1.0  # how long to wait for a partition without a replica: the first time, and later
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999: no record is later


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """The leader and the replicas of a partition."""

    leader: int  # 0: unknown
    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class Topics:
    """The partitions to read, their replicas, and the ids of their topics."""

    partitions: Mapping[Partition, PartitionReplicas]
    ids: Mapping[str, str]


class Lookup:
    """Sends the requests of one source. Use it in one thread."""

    def __init__(self, client: Client, source: Source) -> None:
        self._client = client
        self._source = source
        self._sized: dict[Partition, tuple[float, float]] = {}  # (mean size of a record, 0: unknown; when it was asked)
        self._silent: set[str] = set()  # topics with a partition for which nobody answered the last request

    def topics(self, *, missing: bool = False, where: bool = True) -> Topics:
        """Return the partitions that exist now. With `where=False` they have no replicas, which costs fewer requests.

        Raises UnknownTopic or UnknownPartition if the options name one that does not exist, unless `missing` is set.
        """
        source, admin = self._source, self._client.admin
        topics = []
        if source.pattern:
            matches = re.compile(source.pattern).fullmatch
            topics = [topic for topic in admin.list_topics() if matches(topic.name)]
        else:
            for name in dict.fromkeys((*source.topics, *(partition.topic for partition in source.assigned))):
                try:
                    topics.append(admin.describe_topic(name))
                except UnknownTopic:
                    if not missing:
                        raise
        brokers = {each.broker_id: each for each in admin.brokers()} if topics and where else {}
        homes = {number: Replica(number, parse_address(each.address)[0], each.rack) for number, each in brokers.items()}
        partitions = {
            Partition(topic.name, partition.partition): PartitionReplicas(
                partition.leader, tuple(homes[broker] for broker in partition.replicas if broker in homes)
            )
            for topic in topics
            for partition in topic.partitions
        }
        if source.assigned:
            unknown = [partition for partition in source.assigned if partition not in partitions]
            if unknown and not missing:
                raise UnknownPartition(f"there is no {first_few(unknown)}", hint="see: tinymq topic describe NAME")
            partitions = {partition: partitions[partition] for partition in source.assigned if partition in partitions}
        return Topics(partitions, {topic.name: topic.topic_id.hex() for topic in topics})

    def bounds(self, partitions: Iterable[Partition], *, partial: bool = False) -> dict[Partition, Bounds]:
        """Return where the partitions begin and end, without those that no longer exist.

        With `partial`, partitions for which no replica answers within some seconds are left out, too. Later calls wait
        less for their topics.
        """
        bounds: dict[Partition, Bounds] = {}
        for topic, numbers in _by_topic(partitions).items():
            patience_s = (AGAIN_S if topic in self._silent else PATIENCE_S) if partial else None
            try:
                answers = self._client.admin.offsets(topic, partial=partial, timeout=patience_s)
            except UnknownTopic:
                continue
            for number in numbers:
                if (answer := answers.get(number)) is not None:
                    bounds[Partition(topic, number)] = Bounds(answer.log_start, answer.high_watermark)
            silent = [Partition(topic, number) for number in numbers if number not in answers]
            if silent and topic not in self._silent:
                LOG.warning(
                    "no replica answers for %s: its new records are read once a replica does", first_few(silent)
                )
            (self._silent.add if silent else self._silent.discard)(topic)
        return bounds

    def place(self, place: Place | Times, bounds: Mapping[Partition, Bounds], option: str) -> dict[Partition, int]:
        """Return the offset of `place` in each partition of `bounds`.

        Raises UnknownPartition if explicit offsets do not name exactly these partitions, and InvalidRequest if a
        partition has no record as late as a time and the place does not accept the end instead.
        """
        if isinstance(place, Times):
            return self._times(place, bounds, option)
        if isinstance(place, str):
            return {partition: b.first if place == EARLIEST_TEXT else b.end for partition, b in bounds.items()}
        check_explicit(place, bounds, option)
        sentinels = {EARLIEST: lambda b: b.first, LATEST: lambda b: b.end}
        return {
            partition: sentinels[offset](bounds[partition]) if offset < 0 else offset
            for partition, offset in place.items()
        }

    def _times(self, times: Times, bounds: Mapping[Partition, Bounds], option: str) -> dict[Partition, int]:
        each = dict.fromkeys(bounds, times.each) if isinstance(times.each, int) else times.each
        if not isinstance(times.each, int):
            check_explicit(each, bounds, f"{option}ByTimestamp")
        topics: dict[Partition, int] = {}
        for topic, numbers in _by_topic(bounds).items():
            asked: dict[int, Any] = dict.fromkeys(self._client.admin.offsets(topic), "latest")
            asked |= {number: _time(each[Partition(topic, number)]) for number in numbers}
            answers = self._client.admin.find_offsets(topic, cast(Any, asked))
            topics |= {Partition(topic, number): answers[number] for number in numbers}
        late = [partition for partition, bound in self.bounds(bounds).items() if topics[partition] >= bound.end]
        if late and not times.or_latest:
            raise InvalidRequest(
                f"{first_few(late)}: no record is as late as {_time(each[min(late)]).isoformat()}",
                hint="an earlier time, or startingOffsetsByTimestampStrategy=latest, which begins at the end",
            )
        return topics

    def record_bytes(self, partitions: Iterable[Partition]) -> dict[Partition, float]:
        """Return the mean stored size of each partition's records, which is at most SIZES_S old.

        Partitions for which nobody answered are left out.
        """
        now_s, requested = monotonic(), list(partitions)
        asked = [
            partition for partition in requested if now_s - self._sized.get(partition, (0.0, -math.inf))[1] >= SIZES_S
        ]
        for topic, numbers in _by_topic(asked).items():
            try:
                answers = self._client.admin.kept_sizes(topic, numbers, timeout=AGAIN_S)
            except TinymqError as error:
                LOG.warning("%s: the size of its records is unknown: %s", topic, error)
                answers = {}
            for number in numbers:
                kept = answers.get(number)
                size = kept.bytes / kept.records if kept is not None and kept.records else 0.0
                self._sized[Partition(topic, number)] = (size, now_s)
        return {partition: size for partition in requested if (size := self._sized[partition][0]) > 0}

    def hold(self, starts: Offsets, hold_id: bytes) -> dict[Partition, int]:
        """Hold the records from these offsets on, and return the offset at which each partition then begins. The hold
        is light, unless the option holdMs asks for a binding one. A call with the same id renews the hold, and moves
        it. Partitions that cannot be held are left out, and the log names them, because a hold only makes losses rarer.

        Raises OffsetOutOfRange for records that are gone already.
        """
        begins: dict[Partition, int] = {}
        if not self._source.hold_s:
            return begins
        for topic, offsets in by_topic(starts.items()).items():
            try:
                held = self._client.admin.hold_many(
                    topic,
                    offsets,
                    hold_id=hold_id,
                    lease=self._source.hold_s,
                    enough=0,
                    partial=True,
                    light=not self._source.binding,
                    timeout=hold_ledger.HOLD_TIMEOUT_S,
                )
            except OffsetOutOfRange:
                raise
            except TinymqError as error:
                LOG.warning("%s: not held while it is read: %s", topic, error)
                continue
            begins |= {Partition(topic, number): first for number, first in held.items()}
        return begins

    def release(self, held: Offsets, hold_id: bytes) -> None:
        """Release these holds. Raises nothing: a hold that is not released ends with its lease."""
        for topic, offsets in by_topic(held.items()).items():
            try:
                self._client.admin.hold_many(
                    topic, offsets, hold_id=hold_id, lease=0, partial=True, timeout=hold_ledger.HOLD_TIMEOUT_S
                )
            except TinymqError as error:
                LOG.info("%s: holds not released, their leases end them: %s", topic, error)


def new_scan_id(source: Source) -> str:
    """Return the id under which brokers count the records that are read: the option's, or a new one."""
    return source.scan_id or f"spark-{uuid.uuid4().hex[:12]}"


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition.partition)
    return topics


def _time(time_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(time_ms, _TIME_MS_MAX))

"""Fetch one partition: choose a replica, act on its answer, and change to another replica when it does not serve.

The next fetch is in flight while the records of the last one are unpacked. The fetcher leaves a replica that is
unreachable, silent, behind or damaged, or that sends no records although another replica has more. It tries such a
replica again after a pause that grows. It fails when no replica has served the partition for unreachable_ms_max.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from tinymq.base.errors import (
    BrokerUnreachable,
    CorruptData,
    NotLeader,
    OffsetOutOfRange,
    QuotaExceeded,
    TinymqError,
    UnknownPartition,
    UnknownTopic,
)
from tinymq.base.retry import Backoff
from tinymq.client.cluster import routing
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Partition, Topic
from tinymq.client.common.config import ReaderConfig
from tinymq.client.common.start_positions import END
from tinymq.client.consume.avoided_replicas import AvoidedReplicas
from tinymq.client.consume.fetch_policy import FetchPolicy
from tinymq.client.consume.records import Chunk, next_offset_after, read_chunks
from tinymq.client.net.ports import Fetched
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

BACKOFF = Backoff(0.02, 0.5)  # between two rounds in which no replica served
RECONSIDERED_S = 1.0  # pause between two checks whether another replica is better than the one that serves


@dataclass(slots=True)
class FetchPosition:
    """The position in one partition. Only the partition's fetcher writes it."""

    partition: int
    offset: int  # the next one to fetch
    end: int | None  # stop before this offset; None: the reader follows for ever
    end_seen: int  # the high watermark when the reader was opened
    epoch: int = 0  # the newest leader epoch in any replica's answer
    skipped: int = 0  # offsets that were removed before they were fetched
    # The recovery term of the last answer. Brokers compare it with their own to find out whether records were lost.
    # None: there was no answer yet, so any record at `offset` is right.
    history: int | None = 0
    served: dict[int, int] = field(default_factory=dict)  # bytes of answers that were used, by broker

    @property
    def done(self) -> bool:
        """Was everything below `end` fetched?"""
        return self.end is not None and self.offset >= self.end

    def skip_to(self, log_start: int) -> None:
        """Skip the offsets below `log_start`, because their records were removed."""
        upto = log_start if self.end is None else min(log_start, self.end)
        self.skipped += upto - self.offset
        self.offset = upto


@dataclass(slots=True)
class PartitionFetcher:
    """Fetches from `cursor` on and gives each chunk to `deliver`, as long as `has_room` is set."""

    cluster: Cluster
    config: ReaderConfig
    policy: FetchPolicy
    topic: Topic
    cursor: FetchPosition
    deliver: Callable[[Chunk], None]
    has_room: asyncio.Event  # set while the application's buffer has room for more chunks
    turn: int  # rotates among equally good replicas; rises when no replica served
    _avoided: AvoidedReplicas = field(default_factory=AvoidedReplicas)
    _refusals: dict[str, TinymqError] = field(default_factory=dict)  # last error by address; cleared when served
    _served_s: float = 0.0  # monotonic time when a replica last answered without an error; so are the next two
    _chosen_s: float = 0.0  # when the replicas were last ordered
    _quiet_s: float = 0.0  # when records last came, or the replicas were last compared
    _pauses: int = 0  # number of pauses since a replica last served
    _empty: int = 0  # answers in a row without a record

    async def run(self) -> None:
        """Fetch until the cursor's end. Raises the error that stops this partition."""
        now_s = self.cluster.clock.monotonic()
        self._served_s = self._quiet_s = now_s
        # At most one fetch is in flight. `_use` begins the next one at the same broker before it unpacks the records of
        # the last one. Only this loop chooses another broker, when no fetch is in flight.
        ahead: asyncio.Task[Fetched] | None = None
        broker: int | None = None
        try:
            while not self.cursor.done:
                if ahead is None:
                    await self.has_room.wait()
                    broker = self._avoided.doubted or self._choose()
                    if broker is None:
                        await self._wait_for_another("no replica's address is known")
                        continue
                    ahead = self._begin(broker, self.cursor.offset)
                assert broker is not None, "a fetch is in flight to a broker"
                fetching, ahead = ahead, None
                try:
                    fetched = await fetching
                    ahead = await self._use(broker, fetched)
                except TinymqError as error:
                    await self._failed(broker, error)
        finally:
            if ahead is not None:
                ahead.cancel()

    # ---- the choice of a replica ---------------------------------------------------------------------

    def _at(self) -> Partition:
        number = self.cursor.partition
        view = self.cluster.view.topics.get(self.topic.name)
        now = view.partition(number) if view is not None and view.topic_id == self.topic.topic_id else None
        placement = now or self.topic.partition(number)  # a view without the partition may only be old
        assert placement is not None, "a fetcher begins with a partition that exists"
        return placement

    def _choose(self) -> int | None:
        """Return the replica to ask now; None if no address of a replica is known."""
        now_s = self._chosen_s = self.cluster.clock.monotonic()

        def cost(broker: int) -> tuple[float, float]:
            avoided_s, latency_s = self.cluster.cost(broker)
            return (max(avoided_s, self._avoided.left_s(broker, now_s)), latency_s)

        order = self.policy.order(self._at(), cost, self.turn)
        return order[0] if order else None

    def _stays(self, broker: int) -> bool:
        """Is `broker` still the best replica?

        The fetcher compares only every RECONSIDERED_S, or as often as its policy says. The comparison is needed because
        a better replica that failed earlier may serve again.
        """
        recent = self.cluster.clock.monotonic() - self._chosen_s < RECONSIDERED_S
        if recent and not self.policy.reconsiders(self._at(), broker):
            return True
        return self._choose() == broker

    # ---- fetches -------------------------------------------------------------------------------------

    def _begin(self, broker: int, offset: int) -> asyncio.Task[Fetched]:
        """Begin a fetch. Its error is never reported as unretrieved, because a fetcher that stops ignores it."""
        fetching = asyncio.create_task(self._fetch(broker, offset))
        fetching.add_done_callback(lambda done: done.cancelled() or done.exception())
        return fetching

    async def _fetch(self, broker: int, offset: int) -> Fetched:
        address = self.cluster.view.address(broker)
        if address is None:
            raise BrokerUnreachable(f"broker {broker} has no known address")
        wait_ms = self.policy.wait_ms(self._empty)
        request = self._request(offset, int(wait_ms))
        asked_s = self.cluster.clock.monotonic()
        stream = self.cluster.connections.fetch(address)
        fetched = await stream.fetch(request, wait_ms / 1000 + self.cluster.attempt_s)
        self.policy.answered(address, fetched, self.cluster.clock.monotonic() - asked_s)
        return fetched

    def _request(self, offset: int, wait_ms: int) -> pb.FetchRequest:
        request = pb.FetchRequest(
            topic_id=self.topic.topic_id,
            partition=self.cursor.partition,
            offset=offset,
            max_bytes=self.config.fetch_bytes_max,
            min_bytes=self.config.fetch_min_bytes,
            max_wait_ms=wait_ms,
            leader_epoch=self.cursor.epoch,
            leader_only=self.config.replica == "leader",
            history=self.cursor.history,
            verify=self._avoided.doubted is not None,
        )
        self.policy.complete(request)
        return request

    # ---- answers -------------------------------------------------------------------------------------

    async def _use(self, broker: int, fetched: Fetched) -> asyncio.Task[Fetched] | None:
        """Use an answer. Returns the next fetch if it has begun already."""
        cursor = self.cursor
        if fetched.leader_epoch >= cursor.epoch:
            cursor.epoch = fetched.leader_epoch
            view, epoch = self.cluster.view, fetched.leader_epoch
            self.cluster.update(routing.learn_leader(view, self.topic.name, cursor.partition, fetched.leader, epoch))
        if fetched.error is not None:
            raise fetched.error
        cursor.history = fetched.history
        now_s = self.cluster.clock.monotonic()
        after = next_offset_after(fetched.frames)
        start, cursor_end = cursor.offset, cursor.end
        if after is None:
            await self._use_empty(broker, fetched)
            return None
        self._empty = 0
        if after <= start:
            raise CorruptData(f"broker {broker} answered what lies before offset {start}")
        chunks = read_chunks(cursor.partition, fetched.frames, start, cursor_end, self.cluster.config.limits)
        ahead: asyncio.Task[Fetched] | None = None
        if (cursor_end is None or after < cursor_end) and self.has_room.is_set() and self._stays(broker):
            ahead = self._begin(broker, after)
        try:
            if ahead is not None:
                await asyncio.sleep(0)  # the request leaves before the unpacking, which does not yield, begins
            # `read_chunks` verifies frame by frame. The cursor follows each chunk, so that damage in a later frame
            # loses none of the earlier ones, and another replica continues exactly behind them.
            for chunk in chunks:
                self.deliver(chunk)
                cursor.offset = chunk.next_offset
        except BaseException:
            if ahead is not None:
                ahead.cancel()
            raise
        cursor.offset = max(cursor.offset, after)  # entries without records lie behind the last chunk
        cursor.served[broker] = cursor.served.get(broker, 0) + len(fetched.frames)
        self._succeeded(now_s)
        self._quiet_s = now_s
        return ahead

    async def _use_empty(self, broker: int, fetched: Fetched) -> None:
        """Use an answer without records: this replica has no more of them for now."""
        if not self.policy.counts_as_served(broker, self.cursor.offset, fetched):
            return
        now_s = self.cluster.clock.monotonic()
        self._empty += 1
        self._succeeded(now_s)
        self.cursor.offset = max(self.cursor.offset, fetched.next_offset)
        if now_s - self._quiet_s >= self.config.stale_ms_max / 1000:
            self._quiet_s = now_s
            await self._compare(broker)

    def _succeeded(self, now_s: float) -> None:
        self._avoided.doubted = None
        self._served_s = now_s
        self._pauses = 0
        self._refusals.clear()

    async def _failed(self, broker: int, error: TinymqError) -> None:
        """Go on with another replica, because `broker` did not serve. Raises an error that every replica would give."""
        offset = self.cursor.offset
        if self.policy.asks_again(broker, offset, error):
            self._avoided.doubted = None
            return
        address = self.cluster.view.address(broker) or f"broker {broker}"
        self._refusals[address] = error
        if self._avoided.doubts(broker, error):
            return
        if isinstance(error, QuotaExceeded):  # the broker serves, but too many fetches wait there already
            self._served_s = self.cluster.clock.monotonic()
        if isinstance(error, NotLeader):
            if self.cluster.learn(self.topic.name, self.cursor.partition, error):
                return
        elif isinstance(error, OffsetOutOfRange) and self._skips(error):
            return
        elif isinstance(error, UnknownTopic | UnknownPartition):
            # A broker that lags may not have heard of a new partition. Only the registry can tell that it does not
            # exist.
            if not await _may_exist(self.cluster, self.topic, self.cursor.partition):
                raise error
        elif self.policy.is_final(error, offset):
            raise error
        elif not isinstance(error, BrokerUnreachable):
            LOG.info("%s/%d: leaving broker %d: %s", self.topic.name, self.cursor.partition, broker, error.message)
        self._avoided.avoid(broker, self.cluster.clock.monotonic())
        await self._wait_for_another(error.message)

    def _skips(self, error: OffsetOutOfRange) -> bool:
        """Skip to the log start, if retention passed the cursor and the configuration allows it.

        Records that were lost are never skipped: new records have the offsets that the application has seen.
        """
        if "history_start" in error.detail:
            return False
        log_start = error.detail.get("log_start", "")
        if self.config.on_trimmed != "skip" or not log_start.isdigit() or int(log_start) <= self.cursor.offset:
            return False
        self.cursor.skip_to(int(log_start))
        return True

    async def _wait_for_another(self, reason: str) -> None:
        """Pause, unless a replica that was not asked yet can be asked at once. Raises when the time is up."""
        now_s = self.cluster.clock.monotonic()
        if now_s - self._served_s >= self.config.unreachable_ms_max / 1000:
            where = f"{self.topic.name}/{self.cursor.partition}"
            reasons = {a: error.message.removeprefix(f"{a}: ") for a, error in self._refusals.items()}
            tried = self.cluster.trouble(reasons) or reason
            text = f"{where}: no replica served it for {now_s - self._served_s:.1f} s: {tried}"
            raise self.policy.failure(text, list(self._refusals.values()))
        self.turn += 1
        self.cluster.refresh_soon()
        if not self._is_untried(self._choose(), now_s):
            self._pauses += 1
            await self.cluster.clock.sleep(BACKOFF.pause_s(self._pauses))

    def _is_untried(self, broker: int | None, now_s: float) -> bool:
        """Can this replica be asked at once, because it did not fail lately?"""
        if broker is None or self.config.replica == "leader":
            return False
        return not self._avoided.left_s(broker, now_s)

    async def _compare(self, broker: int) -> None:
        """Check whether another replica has more records than `broker`, which has sent none for a while."""
        placement = self._at()
        if broker == placement.leader:
            self._avoided.clear()
            return
        for other in sorted((b for b in placement.replicas if b != broker), key=lambda b: b != placement.leader):
            end = await _end_of(self.cluster, self.topic, self.cursor.partition, other)
            if end is not None and end > self.cursor.offset:
                LOG.info("%s/%d: broker %d is behind, leaving it", self.topic.name, self.cursor.partition, broker)
                self._avoided.avoid(broker, self.cluster.clock.monotonic())
                return
            if end is not None and other == placement.leader:
                self._avoided.clear()
                return


async def _may_exist(cluster: Cluster, topic: Topic, partition: int) -> bool:
    """May the partition exist? False only if the registry says that it was deleted."""
    try:
        return await cluster.still_there(topic.name, topic.topic_id, cluster.attempt_s, partition)
    except TinymqError as unanswered:
        LOG.debug("topic %s not looked up: %s", topic.name, unanswered)
        return True


async def _end_of(cluster: Cluster, topic: Topic, partition: int, broker: int) -> int | None:
    """Return the end of the records that a broker's replica shows. None: it did not answer."""
    address = cluster.view.address(broker)
    if address is None:
        return None
    query = pb.OffsetQuery(partition=partition, timestamp_us=END)
    request = pb.ListOffsetsRequest(topic_id=topic.topic_id, queries=[query])
    try:
        reply = await cluster.ask_broker(address, request, cluster.attempt_s)
    except TinymqError as error:
        LOG.debug("broker %d did not tell its end: %s", broker, error)
        return None
    return max((int(answer.high_watermark) for answer in reply.answers), default=0)

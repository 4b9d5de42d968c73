"""Following one partition: which replica to ask, what its answer means, when to leave it for another.

One fetch is on its way while the last one's records are unpacked. A replica is left when it is unreachable,
silent, behind, damaged, or quiet for long while another one has more; it is tried again after a growing while.
The partition fails when no replica has served it for unreachable_ms_max.
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
    OutcomeUnknown,
    QuotaExceeded,
    StorageError,
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
from tinymq.client.consume.records import Chunk, next_offset_after, read_chunks
from tinymq.client.net.ports import Fetched
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

IDLE_TIMES_MAX = 4  # as long as fetch_wait_ms, at most, waits who reads a partition where nothing comes
BACKOFF = Backoff(0.02, 0.5)  # between two rounds in which no replica served
RECONSIDERED_S = 1.0
AVOIDED = Backoff(0.2, 10.0)  # how long a replica is left alone, by its failures


@dataclass(slots=True)
class Cursor:
    """How far one partition is read."""

    partition: int
    offset: int  # the next to fetch
    end: int | None  # where to stop; None: never
    end_seen: int  # the high watermark at opening
    epoch: int = 0  # the newest leader epoch that any replica told
    skipped: int = 0  # offsets that were gone before they were fetched
    history: int | None = 0  # of the answer that the offset comes from; None: of none
    served: dict[int, int] = field(default_factory=dict)  # bytes of answers that were taken, by broker

    @property
    def done(self) -> bool:
        return self.end is not None and self.offset >= self.end

    def skip_to(self, log_start: int) -> None:
        """What lies below is gone."""
        upto = log_start if self.end is None else min(log_start, self.end)
        self.skipped += upto - self.offset
        self.offset = upto


class AvoidedReplicas:
    """Replicas that a partition is not read from for a while, each for longer the more often it failed; and the one
    that is read from under doubt."""

    def __init__(self) -> None:
        self.doubted: int | None = None
        self._until_s: dict[int, float] = {}
        self._times: dict[int, int] = {}

    def avoid(self, broker: int, now_s: float) -> None:
        times = self._times[broker] = self._times.get(broker, 0) + 1
        self._until_s[broker] = now_s + AVOIDED.pause_s(times)

    def left_s(self, broker: int, now_s: float) -> float:
        """For how much longer; 0: it may be asked."""
        return max(0.0, self._until_s.get(broker, 0.0) - now_s)

    def doubts(self, broker: int, error: TinymqError) -> bool:
        """Is that damage, which it may have sent without having looked at it? Then it is asked once more, to look."""
        fresh = isinstance(error, CorruptData) and self.doubted is None
        self.doubted = broker if fresh else None
        if fresh:
            LOG.info("broker %d sent damage, and is asked to verify it: %s", broker, error.message)
        return fresh

    def clear(self) -> None:
        self._until_s.clear()
        self._times.clear()


@dataclass(slots=True)
class PartitionFetcher:
    """Fetches what `cursor` wants and hands it to `deliver`, as long as there is `has_room`."""

    cluster: Cluster
    config: ReaderConfig
    topic: Topic
    cursor: Cursor
    deliver: Callable[[Chunk], None]
    has_room: asyncio.Event  # set while the application's buffer takes more
    turn: int
    _avoided: AvoidedReplicas = field(default_factory=AvoidedReplicas)
    _refusals: dict[str, TinymqError] = field(default_factory=dict)  # the last of each address, since one served
    _served_s: float = 0.0  # when a replica last answered without an error
    _chosen_s: float = 0.0  # when it was last asked which replica is the best
    _quiet_s: float = 0.0  # when records last came, or others were last asked whether there are more
    _pauses: int = 0  # since a replica last served
    _empty: int = 0  # answers of the leader without a record, in a row

    async def run(self) -> None:
        """Until the cursor's end. Raises what stops this partition."""
        now_s = self.cluster.clock.monotonic()
        self._served_s = self._quiet_s = now_s
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
                assert broker is not None, "somebody was asked"
                fetching, ahead = ahead, None
                try:
                    fetched = await fetching
                    ahead = await self._use(broker, fetched)
                except TinymqError as error:
                    await self._failed(broker, error)
        finally:
            if ahead is not None:
                ahead.cancel()

    def _at(self) -> Partition:
        number = self.cursor.partition
        view = self.cluster.view.topics.get(self.topic.name)
        now = view.partition(number) if view is not None and view.topic_id == self.topic.topic_id else None
        at = now or self.topic.partition(number)
        assert at is not None, "a follower begins with a partition that is there"
        return at

    def _choose(self) -> int | None:
        """The replica to ask now."""
        at = self._at()
        view = self.cluster.view
        if self.config.replica == "leader":
            return at.leader if at.leader in view.brokers else None
        now_s = self._chosen_s = self.cluster.clock.monotonic()

        def cost(broker: int) -> tuple[float, float]:
            aside_s, latency_s = self.cluster.cost(broker)
            return (max(aside_s, self._avoided.left_s(broker, now_s)), latency_s)

        order = self._order(at, cost)
        return order[0] if order else None

    def _stays(self, broker: int) -> bool:
        """Is it still the one to ask? Looked at now and then: one that was left may be back."""
        recent = self.cluster.clock.monotonic() - self._chosen_s < RECONSIDERED_S
        return recent or self._choose() == broker

    def _order(self, at: Partition, cost: routing.Cost) -> list[int]:
        """Whom to ask, best first."""
        view, rack = self.cluster.view, self.cluster.config.rack
        return routing.read_order(view, at, self.config.replica, rack=rack, cost=cost, turn=self.turn)

    def _begin(self, broker: int, offset: int) -> asyncio.Task[Fetched]:
        """A fetch on its way. Whoever stops in the meantime does not ask what became of it: it never complains."""
        fetching = asyncio.create_task(self._fetch(broker, offset))
        fetching.add_done_callback(lambda done: done.cancelled() or done.exception())
        return fetching

    async def _fetch(self, broker: int, offset: int) -> Fetched:
        address = self.cluster.view.address(broker)
        if address is None:
            raise BrokerUnreachable(f"broker {broker} has no known address")
        wait_ms = self._wait_ms()
        request = self._request(offset, int(wait_ms))
        return await self.cluster.connections.fetch(address).fetch(request, wait_ms / 1000 + self.cluster.attempt_s)

    def _request(self, offset: int, wait_ms: int) -> pb.FetchRequest:
        return pb.FetchRequest(
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

    def _wait_ms(self) -> float:
        """How long an empty fetch may stay open: longer at a partition where nothing comes, for many readers that wait
        keep their client and brokers busy with asking again. Followers are compared with others, now and then."""
        wait_ms, config = self.config.fetch_wait_ms, self.config
        if config.replica != "leader":
            return wait_ms
        most_ms = min(IDLE_TIMES_MAX * wait_ms, self.cluster.attempt_s * 1000, config.unreachable_ms_max / 4)
        return max(wait_ms, min(wait_ms * 2.0 ** min(self._empty, 10), most_ms))

    async def _use(self, broker: int, fetched: Fetched) -> asyncio.Task[Fetched] | None:
        """Take an answer: (the next fetch, begun already, when records came)."""
        cursor = self.cursor
        if fetched.leader_epoch >= cursor.epoch:
            cursor.epoch = fetched.leader_epoch
            view = self.cluster.view
            learned = routing.learn_leader(
                view, self.topic.name, cursor.partition, fetched.leader, fetched.leader_epoch
            )
            self.cluster.update(learned)
        if fetched.error is not None:
            raise fetched.error
        cursor.history = fetched.history
        now_s = self.cluster.clock.monotonic()
        after = next_offset_after(fetched.frames)
        start, cursor_end = cursor.offset, cursor.end
        if after is None:
            await self._nothing_came(broker, fetched)
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
                await asyncio.sleep(0)  # the request leaves before the unpacking begins
            for chunk in chunks:
                self.deliver(chunk)
                cursor.offset = chunk.next_offset
        except BaseException:
            if ahead is not None:
                ahead.cancel()
            raise
        cursor.offset = max(cursor.offset, after)
        cursor.served[broker] = cursor.served.get(broker, 0) + len(fetched.frames)
        self._succeeded(now_s)
        self._quiet_s = now_s
        return ahead

    async def _nothing_came(self, broker: int, fetched: Fetched) -> None:
        """There is nothing more for now, as far as this replica knows."""
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
        """`broker` did not serve: go on with another one, or raise what is for good."""
        address = self.cluster.view.address(broker) or f"broker {broker}"
        self._refusals[address] = error
        if self._avoided.doubts(broker, error):
            return
        if isinstance(error, QuotaExceeded):  # the broker serves, without a new record or room for a wait
            self._served_s = self.cluster.clock.monotonic()
        if isinstance(error, NotLeader):
            if self.cluster.learn(self.topic.name, self.cursor.partition, error):
                return
        elif isinstance(error, OffsetOutOfRange) and self._skips(error):
            return
        elif isinstance(error, UnknownTopic | UnknownPartition):
            if not await _may_be_there(self.cluster, self.topic, self.cursor.partition):
                raise error
        elif self._is_for_good(error):
            raise error
        elif not isinstance(error, BrokerUnreachable):
            LOG.info("%s/%d: leaving broker %d: %s", self.topic.name, self.cursor.partition, broker, error.message)
        self._avoided.avoid(broker, self.cluster.clock.monotonic())
        await self._wait_for_another(error.message)

    def _is_for_good(self, error: TinymqError) -> bool:
        """Would no replica answer otherwise, however long it is asked?"""
        return not error.retriable and not isinstance(error, StorageError | OutcomeUnknown)

    def _skips(self, error: OffsetOutOfRange) -> bool:
        """Go on at the log start, if that has passed us by and we may. Not when records were lost: others come under
        offsets that the application has had."""
        if "history_start" in error.detail:
            return False
        log_start = error.detail.get("log_start", "")
        if self.config.on_trimmed != "skip" or not log_start.isdigit() or int(log_start) <= self.cursor.offset:
            return False
        self.cursor.skip_to(int(log_start))
        return True

    async def _wait_for_another(self, reason: str) -> None:
        now_s = self.cluster.clock.monotonic()
        if now_s - self._served_s >= self.config.unreachable_ms_max / 1000:
            where = f"{self.topic.name}/{self.cursor.partition}"
            said = {a: error.message.removeprefix(f"{a}: ") for a, error in self._refusals.items()}
            tried = self.cluster.trouble(said) or reason
            raise self._failure(f"{where}: no replica served it for {now_s - self._served_s:.1f} s: {tried}")
        self.turn += 1
        self.cluster.refresh_soon()
        if not self._is_fresh(self._choose(), now_s):
            self._pauses += 1
            await self.cluster.clock.sleep(BACKOFF.pause_s(self._pauses))

    def _failure(self, text: str) -> TinymqError:
        """None serves. Damage is worth knowing of, wherever it is."""
        damaged = any(isinstance(error, CorruptData) for error in self._refusals.values())
        return CorruptData(text) if damaged else BrokerUnreachable(text)

    def _is_fresh(self, broker: int | None, now_s: float) -> bool:
        """May this one be asked at once, or would that only be the same question again?"""
        if broker is None or self.config.replica == "leader":
            return False
        return not self._avoided.left_s(broker, now_s)

    async def _compare(self, broker: int) -> None:
        """Nothing came for long: has another replica more? Then this one is stale."""
        at = self._at()
        if broker == at.leader:
            self._avoided.clear()
            return
        for other in sorted((b for b in at.replicas if b != broker), key=lambda b: b != at.leader):
            end = await _end_of(self.cluster, self.topic, self.cursor.partition, other)
            if end is not None and end > self.cursor.offset:
                LOG.info("%s/%d: broker %d is behind, leaving it", self.topic.name, self.cursor.partition, broker)
                self._avoided.avoid(broker, self.cluster.clock.monotonic())
                return
            if end is not None and other == at.leader:
                self._avoided.clear()
                return


async def _may_be_there(cluster: Cluster, topic: Topic, partition: int) -> bool:
    """False: the registry says that it is gone."""
    try:
        return await cluster.still_there(topic.name, topic.topic_id, cluster.attempt_s, partition)
    except TinymqError as unanswered:
        LOG.debug("topic %s not looked up: %s", topic.name, unanswered)
        return True


async def _end_of(cluster: Cluster, topic: Topic, partition: int, broker: int) -> int | None:
    """Up to where a broker's replica shows records. None: it does not say."""
    address = cluster.view.address(broker)
    if address is None:
        return None
    query = pb.OffsetQuery(partition=partition, timestamp_us=END)
    request = pb.ListOffsetsRequest(topic_id=topic.topic_id, queries=[query])
    try:
        reply = await cluster.ask_broker(address, request, cluster.attempt_s)
    except TinymqError as error:
        LOG.debug("broker %d not asked for its end: %s", broker, error)
        return None
    return max((int(answer.high_watermark) for answer in reply.answers), default=0)

"""AsyncConsumer: reads topics as a member of a stream group, or all partitions of them without a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import length_hint
from types import TracebackType
from typing import Self

from tinymq.base.errors import Closed, InvalidRequest, NotFound, TinymqError
from tinymq.client.cluster.background_tasks import Background
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.offsets import list_offsets
from tinymq.client.common import forks
from tinymq.client.common.argument_checks import check_channel, check_consumer, check_count, check_wait
from tinymq.client.common.config import ConsumerConfig, reader_config
from tinymq.client.common.start_positions import END, KnownOffset, Place, read_place
from tinymq.client.common.traces import trimming, untraced
from tinymq.client.consume.records import Message
from tinymq.client.group.assigned_buffer import AssignedBuffer
from tinymq.client.group.fetched_records import TopicPartition
from tinymq.client.group.group_reading import GroupReading
from tinymq.client.group.member_session import MemberSession
from tinymq.client.group.partition_tasks import PartitionTasks
from tinymq.client.group.plain_reading import PlainReading
from tinymq.client.group.transactional_reading import TransactionalReading

LOG = logging.getLogger("tinymq.client")

NOT_OWNING_S = 0.2  # between two looks whether the member may hand out records again
LEAVING_IN_ERROR_S = 2.0

Callback = Callable[[list[TopicPartition]], object]


class ConsumerCore:
    """Reads topics as a member of a group. Made by AsyncClient.consumer(); joined by the first use.

    A record is committed when the next one is asked for, or when the `async with` block ends cleanly. Commits are sent
    every commit_interval_ms. Use it in `async with`.

        async with mq.consumer("orders", group="billing") as consumer:
            async for message in consumer:
                handle(message)
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        wake: Callable[[Callable[[], None]], None],
        topics: str | Sequence[str],
        *,
        group: str | None,
        instance_id: str | None,
        start: Place,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
        on_lost: Callback | None,
    ) -> None:
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self.group = None if group is None else check_channel(group)
        self._instance_id = None if instance_id is None else check_consumer(instance_id)
        if not self.topics or (instance_id is not None and group is None):
            raise InvalidRequest("a consumer needs a topic, and an instance_id needs a group")
        self._start = start
        read_place(start)
        self._cluster = cluster
        self._config = config
        self._timeout_s = cluster.config.request_timeout_ms / 1000
        self._callbacks = {"assigned": on_assigned, "revoked": on_revoked, "lost": on_lost}
        self._buffer = AssignedBuffer(lambda size: wake(lambda: self.tasks.freed(size)))
        self.tasks = PartitionTasks(cluster, reader_config(config), self._buffer, self._partition_failed)
        self._membership: MemberSession | None = None
        self._reading: GroupReading | None = None  # with a group
        self._transactional: TransactionalReading | None = None  # as above
        self._background = Background(self._fail)
        self._opening = asyncio.Lock()
        self._opened = False
        self._closed = False
        self._failure: Exception | None = None
        self._at_most_once = config.processing == "at_most_once"
        self._waiting: Iterator[Message] = iter(())  # committed already, and not handed out: at most once
        forks.in_child(self, ConsumerCore._forked)

    def _forked(self) -> None:
        self._buffer, self._waiting = AssignedBuffer(lambda _: None), iter(())  # these records are the parent's

    # ---- messages ---------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """The next message. Waits for it without a limit. Messages that were handed out before count as done."""
        while True:
            for message in self.at_hand:
                return message
            if not self.more():
                await self.arrival(None)

    async def poll(self, timeout: float | None = None, max_records: int = 500) -> list[Message]:
        """Take up to `max_records` messages: at once if some wait, else as soon as one arrives.

        Returns [] after `timeout` seconds. Without a timeout it waits until one message arrives. The messages of the
        poll before are done.
        """
        check_wait(timeout)
        check_count("max_records", max_records, 1)
        while not (found := self.take(max_records)):
            if not await self.arrival(timeout):
                return self.take(max_records)
        return found

    @property
    def at_hand(self) -> Iterable[Message]:
        """The messages to take now, one by one. Drawing one says that those before are done. For the thread that
        takes."""
        if self._at_most_once:
            return self._waiting
        membership = self._membership
        return self._buffer.at_hand if membership is None or membership.alive else ()

    def more(self) -> bool:
        """Fill `at_hand`. False: call `arrival`. For the thread that takes."""
        if self._at_most_once:
            return length_hint(self._waiting) > 0
        return self._may_hand_out and self._buffer.more()

    def batch(self) -> Iterator[Message]:
        """The messages that `more` has found. The iterator ends early if the member's session ends."""
        membership = self._membership
        if self._at_most_once or membership is None:
            return iter(self.at_hand)
        return membership.while_alive(self._buffer.at_hand)

    def take(self, count: int) -> list[Message]:
        """Take up to `count` messages. Those that were taken before are done. For the thread that takes."""
        if self._at_most_once:
            return list(islice(self._waiting, count))
        return self._buffer.next_messages(count) if self._may_hand_out else []

    @property
    def _may_hand_out(self) -> bool:
        membership, transactional = self._membership, self._transactional
        if transactional is not None and transactional.rolled_back:
            return False
        return membership is None or membership.alive

    @trimming
    async def arrival(self, timeout_s: float | None) -> bool:
        """Wait until a message waits. Messages that were handed out before count as done. False: the time is up. Raises
        the error that stopped the consumer."""
        await self.open()
        buffer = self._buffer
        buffer.done()
        if self._reading is not None:
            await self._reading.give_up(buffer.leaving)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._check()
                    if self._transactional is not None:
                        await self._transactional.go_back()
                    owns = self._may_hand_out
                    if owns and not buffer.empty and await self._commit_first():
                        return True
                    self.tasks.arrived.clear()
                    if buffer.empty or not owns:
                        await self._arrived(NOT_OWNING_S if not owns else None)
        except TimeoutError:
            return False

    async def _arrived(self, timeout_s: float | None) -> None:
        waiting = asyncio.ensure_future(self.tasks.arrived.wait())
        try:
            await asyncio.wait([waiting], timeout=timeout_s)
        finally:
            waiting.cancel()

    async def _commit_first(self) -> bool:
        """At most once: commit messages before they are handed out. Returns whether a message waits."""
        if not self._at_most_once:
            return True
        found = self._buffer.next_messages(self._config.commit_records_max)
        self._buffer.done()
        if self._reading is not None:
            await self._reading.commit_done(self._timeout_s, strict=True)
        still = self._reading.cursors if self._reading is not None else None
        kept = [m for m in found if still is None or (m.topic, m.partition) in still]
        self._waiting = iter(kept)
        return bool(kept)

    # ---- the group's cursors ----------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit now everything that was handed out, the newest messages included.

        Returns when a majority has it on disk. Raises Fenced (a partition is another member's by now), and errors of
        the partitions' leaders.
        """
        await self.open()
        self._buffer.done()
        if self._reading is not None:
            await self._reading.commit_done(self._timeout_s, strict=True)

    async def transactional(self, cluster: Cluster) -> TransactionalReading:
        """The reading whose offsets a transaction of this cluster commits. Raises InvalidRequest, and as `open`."""
        if cluster is not self._cluster:
            raise InvalidRequest("the consumer is of another client", hint="use one client for both")
        if self.group is None or self._config.auto_commit or self._at_most_once:
            raise InvalidRequest(
                "a transaction commits the offsets of this consumer, and something else does, too, or it has no group",
                hint="make it with group=..., auto_commit=False, and processing='at_least_once'",
            )
        await self.open()
        assert self._transactional is not None, "a consumer with a group has joined it"
        return self._transactional

    async def seek(self, topic: str, partition: int, to: Place) -> int:
        """Go on from `to`: an Offset, "earliest", "latest" or a datetime in a partition that this consumer reads.

        With a group, the group's cursor moves. Returns the position. Raises InvalidRequest, OffsetOutOfRange, Fenced.
        """
        await self.open()
        place, target = TopicPartition(topic, partition), read_place(to)
        found = await self._cluster.topic(topic, self._timeout_s)
        if self._reading is not None:
            offset = await self._reading.seek(place, target)
        elif place not in self._buffer.positions():
            raise InvalidRequest(f"{topic}/{partition} is not read by this consumer", hint="see assignment()")
        elif isinstance(target, KnownOffset):
            offset = target.offset
        else:
            asked = {partition: target.timestamp_us}
            answers = await list_offsets(self._cluster, found, asked, timeout_s=self._timeout_s, leader_only=True)
            offset = int(answers[partition].offset)
        self._buffer.done()
        self.tasks.start(place, found, offset)
        return offset

    def pause(self, partitions: Sequence[tuple[str, int]] | None = None) -> None:
        """Hand out no records of these partitions, of all if not given, until `resume`. They stay this member's.

        It holds in the middle of an iteration, too.
        """
        self._buffer.pause(self._places(partitions))

    def resume(self, partitions: Sequence[tuple[str, int]] | None = None) -> None:
        """Hand out records of paused partitions again."""
        self._buffer.pause(self._places(partitions), resume=True)
        self.tasks.arrived.set()

    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return sorted(self._buffer.positions())

    def position(self) -> dict[TopicPartition, int]:
        """The offset behind the last record that is done, by partition."""
        return self._buffer.positions()

    def committed(self) -> dict[TopicPartition, int]:
        """The group's committed offset of each partition that this consumer reads; empty without a group."""
        cursors = self._reading.cursors if self._reading is not None else {}
        return {place: cursor.committed for place, cursor in cursors.items()}

    async def lag(self) -> dict[TopicPartition, int]:
        """How many records each partition has behind `position`."""
        await self.open()
        lags = {}
        for place, position in self._buffer.positions().items():
            topic = await self._cluster.topic(place.topic, self._timeout_s)
            asked = {place.partition: END}
            answers = await list_offsets(self._cluster, topic, asked, timeout_s=self._timeout_s, leader_only=True)
            lags[place] = max(0, int(answers[place.partition].high_watermark) - position)
        return lags

    # ---- joining and leaving ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Join the group, which is made if there is none. The first use and `async with` do this.

        Raises UnknownTopic, WrongKind (a queue group, or a channel, has the name), AlreadyExists (the group reads other
        topics).
        """
        self._cluster.check_loop()
        self._check()
        async with self._opening:
            if self._opened:
                return
            if self.group is None:
                plain = PlainReading(self._cluster, self.tasks, self.topics, self._start, self._tell)
                await plain.look()
                self._background.spawn(plain.follow())
            else:
                self._reading = await GroupReading.join(
                    self._cluster,
                    self.tasks,
                    self.group,
                    self.topics,
                    self._start,
                    commit_interval_s=self._config.commit_interval_ms / 1000,
                    auto_commit=self._config.auto_commit,
                    instance_id=self._instance_id,
                    tell=self._tell,
                    background=self._background,
                    failed=self._fail,
                )
                self._transactional = TransactionalReading(self._reading, self._buffer, self._timeout_s)
                self._membership = self._reading.membership
            self._opened = True

    @property
    def closed(self) -> bool:
        """Was it closed?"""
        return self._closed

    async def close(self, *, leave: bool = False) -> None:
        """Commit what was handed out, and leave the group, so that other members go on at once.

        A member with an instance id does not leave: its partitions wait for its return, unless `leave` is set.
        """
        if not self._closed:
            self._buffer.done()
            await self._end(self._timeout_s, leave=leave)

    async def leave(self) -> None:
        """Close without a commit of what was handed out last: it is delivered again."""
        await self._end(LEAVING_IN_ERROR_S, leave=False)

    async def _end(self, timeout_s: float, *, leave: bool) -> None:
        self._cluster.check_loop()
        if self._closed:
            return
        self._closed = True
        self._buffer.interrupt()  # an iteration over fetched messages is told that the consumer is closed
        await self._background.close()
        try:
            if self._reading is not None and self._failure is None and self._config.auto_commit:
                await self._reading.commit_done(timeout_s)
        finally:
            await self.tasks.close()
            if self._reading is not None:
                self._reading.closed()
            if self._membership is not None:
                await self._membership.leave(stay=self._instance_id is not None and not leave)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.leave()
        except TinymqError as another:
            error.add_note(f"and {another}")

    # ---- of its parts -----------------------------------------------------------------------------------------

    def _partition_failed(self, place: TopicPartition, error: Exception) -> None:
        if isinstance(error, NotFound) and self._reading is not None:
            self._reading.partition_gone(place)
        else:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.tasks.arrived.set()

    def _places(self, partitions: Sequence[tuple[str, int]] | None) -> list[TopicPartition]:
        return self.assignment() if partitions is None else [TopicPartition(*each) for each in partitions]

    def _check(self) -> None:
        if self._closed:
            raise Closed("the consumer is closed")
        if self._failure is not None:
            raise untraced(self._failure)

    def _tell(self, what: str, places: Sequence[TopicPartition]) -> None:
        callback = self._callbacks[what]
        if callback is not None and places:
            try:
                callback(list(places))
            except Exception:
                LOG.exception("the callback on_%s of group %s failed", what, self.group)

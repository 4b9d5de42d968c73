"""The delayed records of a topic that are not delivered yet, asked of the partitions' leaders page by page."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime

from tinymq.base.errors import NotFound, OutcomeUnknown, TinymqError, UnknownPartition
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leader_calls import ask_leader, topic_with
from tinymq.client.cluster.routing import Topic
from tinymq.client.common.argument_checks import OFFSET_MAX, check_count, check_partition, check_topic
from tinymq.client.common.traces import trimming
from tinymq.client.common.values import as_datetime
from tinymq.proto import tinymq_pb2 as pb

PAGE_MAX = 1000  # records of one answer


@dataclass(frozen=True, slots=True)
class ScheduledDescription:
    """A delayed record that is not delivered yet.

    for scheduled in mq.admin.scheduled("orders"):
        print(scheduled.partition, scheduled.schedule_id, scheduled.deliver_at)
    """

    topic: str
    partition: int
    schedule_id: int
    deliver_at: datetime
    stored_at: datetime  # when it was sent, by the clock of the partition's leader
    bytes: int  # as its producer sent it, with its framing
    records: int = 1  # more than 1 if a client of another kind has delayed a whole batch


class AsyncSchedule:
    """The delayed records of a topic that are not delivered yet. Made by admin.scheduled(). Iterate over it.

        async for scheduled in mq.admin.scheduled("orders"):
            print(scheduled.partition, scheduled.schedule_id, scheduled.deliver_at)

    By partition, and in each by schedule id, which is the order in which they were sent. Each leader is asked for its
    next 1,000 when the iteration gets there, so a record that ends meanwhile may be left out. Single steps:

        schedule = mq.admin.scheduled("orders", partition=0)
        while page := await schedule.page():
            print(schedule.topic, schedule.partition, len(page))
    """

    topic: str
    """The name of the topic."""
    partition: int | None
    """The one partition that is asked; None: all."""

    def __init__(self, cluster: Cluster, topic: str, partition: int | None, timeout_s: float) -> None:
        self.topic = check_topic(topic)
        self.partition = None if partition is None else check_partition(partition)
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._known: Topic | None = None
        self._left: deque[int] = deque()  # partitions with further pages
        self._after = 0  # the last schedule id that the first of them has shown
        self._page: deque[ScheduledDescription] = deque()

    @trimming
    async def page(self) -> list[ScheduledDescription]:
        """Return the next page: up to 1,000 records of one partition. It is empty at the end.

        Raises UnknownTopic, UnknownPartition, DeadlineExceeded. After an error, the next call asks for the same page.
        """
        left = self._cluster.countdown(self._timeout_s)
        if self._known is None:
            self._known = await self._topic(left())
            self._left.extend(self._known.numbers if self.partition is None else (self.partition,))
        while self._left:
            partition = self._left[0]
            request = pb.ListScheduledRequest(
                topic_id=self._known.topic_id, partition=partition, after=self._after, limit=PAGE_MAX
            )
            try:
                ask = ask_leader(self._cluster, self._known, partition, request, timeout_s=left(), changes=False)
                reply = await ask
            except UnknownPartition:  # it was deleted meanwhile
                if self.partition is not None:
                    raise
                reply = pb.ListScheduledReply()
            if reply.more and reply.batches:
                self._after = reply.batches[-1].schedule_id
            else:
                self._left.popleft()
                self._after = 0
            if reply.batches:
                return [_described(self.topic, partition, batch) for batch in reply.batches]
        return []

    async def _topic(self, timeout_s: float) -> Topic:
        if self.partition is None:
            return await self._cluster.topic(self.topic, timeout_s)
        return await topic_with(self._cluster, self.topic, self.partition, timeout_s)

    def __aiter__(self) -> AsyncSchedule:
        return self

    async def __anext__(self) -> ScheduledDescription:
        if not self._page:
            self._page.extend(await self.page())
        if not self._page:
            raise StopAsyncIteration
        return self._page.popleft()


async def cancel(cluster: Cluster, topic: str, partition: int, schedule_id: int, timeout_s: float) -> bool:
    """Cancel a delayed record. See AsyncClient.cancel."""
    check_count("schedule_id", schedule_id, 1, most=OFFSET_MAX)
    left = cluster.countdown(timeout_s)
    known = await topic_with(cluster, check_topic(topic), check_partition(partition), left())
    request = pb.CancelScheduledRequest(topic_id=known.topic_id, partition=partition, schedule_id=schedule_id)
    ended = NotFound(f"{topic}/{partition}: {schedule_id} is not scheduled")

    def refusal(reply: pb.CancelScheduledReply) -> TinymqError | None:
        return None if reply.canceled else ended

    try:
        await ask_leader(cluster, known, partition, request, timeout_s=left(), refusal=refusal)
    except NotFound as error:
        if error is not ended:
            raise
        if "unclear" in error.detail:  # a partition remembers that a delayed record has ended, and not how
            raise OutcomeUnknown(
                f"{error.message}: an attempt of this call whose answer was lost has canceled it, or it was delivered",
                hint="look for its value in the topic",
            ) from None
        return False
    return True


def _described(topic: str, partition: int, batch: pb.ScheduledBatch) -> ScheduledDescription:
    return ScheduledDescription(
        topic=topic,
        partition=partition,
        schedule_id=batch.schedule_id,
        deliver_at=as_datetime(batch.deliver_at_us),
        stored_at=as_datetime(batch.staged_at_us),
        bytes=batch.bytes,
        records=batch.records,
    )

"""Dead letters and the stories of records, asked of the partitions' leaders."""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.base.errors import InvalidRequest
from tinymq.base.types import transaction_name
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leader_calls import ask_leader, topic_with
from tinymq.client.common.argument_checks import OFFSET_MAX, check_count, check_partition, check_topic
from tinymq.proto import tinymq_pb2 as pb

RUN_BYTES = 16
STORIES_MAX = 1000  # records of one question


@dataclass(frozen=True, slots=True)
class GroupStory:
    """The history of a record in one group. Texts of workers may have any characters.

    for group in mq.admin.why("emails", partition=0, offset=0).groups:
        print(group.group, group.state, group.deliveries, group.failure)
    """

    group: str
    kind: str  # channel, stream, queue
    # read, unread; of a queue group: free, leased, waiting, given up, burying, buried, settled; staged: a transaction
    # that is not over has its ack
    state: str
    position: int  # of the group's cursor
    deliveries: int = 0  # that failed
    returns: int = 0  # deliveries that ended unstarted, because the worker died
    wait_ms: int = 0  # until it may be delivered again
    worker: str = ""  # that holds it
    lease_left_ms: int = 0
    started: bool = False
    failure: str = ""  # the reason of the last failure, if the leader remembers it
    failed_by: str = ""  # that worker
    dead_topic: str = ""  # where it is buried, or goes
    dead_partition: int = 0
    dead_offset: int | None = None  # None: not there yet
    reason: str = ""  # why it was given up
    blocked: str = ""  # why its burial does not go on
    transaction: str = ""  # that has its ack, as `tinymq transaction` names it


@dataclass(frozen=True, slots=True)
class RecordStory:
    """The history of a record in each group and channel of its partition.

    story = mq.admin.why("emails", partition=0, offset=0)
    print(story.removed, [group.group for group in story.groups])
    """

    topic: str
    partition: int
    offset: int
    removed: bool  # whether the record is below the log start
    groups: tuple[GroupStory, ...]  # by name


@dataclass(frozen=True, slots=True)
class Redriven:
    """Where a dead letter went.

    for letter in mq.reader("emails.dlq", end="latest"):
        redriven = mq.admin.redrive(letter.topic, letter.partition, letter.offset)
        print(redriven.topic, redriven.offset)
    """

    topic: str
    partition: int
    offset: int | None  # None: an earlier call has sent it back, or purged it, and nothing was done
    settled_before: bool


class DeadLetterCalls:
    """The part of the admin that is about dead letters."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def why(self, name: str, partition: int, offset: int, count: int, timeout_s: float) -> list[RecordStory]:
        """The stories of `count` records from an offset on, as far as there are records."""
        if not 0 < count <= STORIES_MAX:
            raise InvalidRequest(f"the stories of {count} records", hint=f"ask for 1 to {STORIES_MAX}")
        left = self._cluster.countdown(timeout_s)
        topic = await topic_with(self._cluster, check_topic(name), check_partition(partition), left())
        request = pb.ExplainRecordRequest(
            topic_id=topic.topic_id,
            partition=partition,
            offset=check_count("offset", offset, 0, OFFSET_MAX),
            count=count,
        )
        reply = await ask_leader(self._cluster, topic, partition, request, timeout_s=left(), changes=False)
        groups: dict[int, list[GroupStory]] = {}
        for story in reply.stories:
            groups.setdefault(story.offset, []).append(_story(story))
        return [
            RecordStory(name, partition, at, at < reply.log_start, tuple(groups.get(at, ())))
            for at in range(offset, min(offset + count, reply.high_watermark))
        ]

    async def redrive(self, name: str, partition: int, offset: int, run: bytes, timeout_s: float) -> Redriven:
        """Send one dead letter back. The same `run` again sends it once."""
        if run and len(run) != RUN_BYTES:
            raise InvalidRequest(f"a run of {len(run)} bytes", hint=f"a run is {RUN_BYTES} random bytes")
        left = self._cluster.countdown(timeout_s)
        topic = await topic_with(self._cluster, check_topic(name), check_partition(partition), left())
        request = pb.RedriveRecordRequest(
            topic_id=topic.topic_id,
            partition=partition,
            offset=check_count("offset", offset, 0, OFFSET_MAX),
            run=run or self._cluster.rng.randbytes(RUN_BYTES),
        )
        reply = await ask_leader(self._cluster, topic, partition, request, timeout_s=left())
        offset_there = None if reply.settled_before else int(reply.offset)
        return Redriven(reply.topic, reply.partition, offset_there, reply.settled_before)

    async def purge(self, name: str, partition: int, before: int, timeout_s: float) -> int:
        """Settle all dead letters of a partition below an offset. Returns how many were not settled before."""
        left = self._cluster.countdown(timeout_s)
        topic = await topic_with(self._cluster, check_topic(name), check_partition(partition), left())
        request = pb.PurgeRecordsRequest(
            topic_id=topic.topic_id, partition=partition, before=check_count("before", before, 0, OFFSET_MAX)
        )
        reply = await ask_leader(self._cluster, topic, partition, request, timeout_s=left())
        return int(reply.count)


def _story(story: pb.GroupStory) -> GroupStory:
    ref = story.transaction.producer_id, story.transaction.epoch, story.transaction.number
    return GroupStory(
        group=story.group,
        kind=story.kind,
        state=story.state,
        position=story.position,
        deliveries=story.deliveries,
        returns=story.returns,
        wait_ms=story.wait_ms,
        worker=story.worker,
        lease_left_ms=story.lease_left_ms,
        started=story.started,
        failure=story.failure,
        failed_by=story.failed_by,
        dead_topic=story.dead_topic,
        dead_partition=story.dead_partition,
        dead_offset=story.dead_offset if story.HasField("dead_offset") else None,
        reason=story.reason,
        blocked=story.blocked,
        transaction=transaction_name(*ref) if story.HasField("transaction") else "",
    )

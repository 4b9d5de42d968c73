"""The history of a record in each group: the answer to `tinymq why`, from replicated state and the leader's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tinymq.base.errors import TinymqError
from tinymq.base.types import GroupId, TopicId
from tinymq.broker.dead_letters.burials import Burials
from tinymq.broker.dead_letters.copy_ids import burial_id
from tinymq.broker.dead_letters.courier import Courier
from tinymq.broker.dead_letters.letter import REASON, by_name, unpack_headers
from tinymq.broker.groups.dead_letter_topic import dead_letter_topic
from tinymq.broker.groups.group_list import GroupList
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.broker import Broker
from tinymq.broker.state.cursor import Cursor, CursorKind
from tinymq.broker.state.queue_group import REJECTED
from tinymq.broker.state.staged import TransactionId

UNREAD, READ = "unread", "read"  # of channels and stream groups: by the cursor alone
FREE, LEASED, WAITING, STAGED = "free", "leased", "waiting", "staged"
GIVEN_UP, BURYING, BURIED, SETTLED = "given up", "burying", "buried", "settled"


@dataclass(frozen=True, slots=True)
class RecordMemory:
    """The state of a record in the memory of a queue group's leader."""

    worker: str = ""  # the worker that holds the record; "": none does
    lease_left_ms: int = 0
    started: bool = False
    reason: str = ""  # why the last delivery failed
    failed_by: str = ""  # the worker of that delivery


@dataclass(frozen=True, slots=True)
class GroupStory:
    """The history of one record in one group."""

    group: str
    kind: str  # channel, stream, queue
    state: str
    position: int  # of the group's cursor
    deliveries: int = 0  # how many deliveries failed
    returns: int = 0  # deliveries that ended unstarted, because the worker died
    wait_ms: int = 0  # until the record may be delivered again
    memory: RecordMemory = RecordMemory()
    dead_topic: str = ""  # the topic where the record is buried, or is being buried
    dead_partition: int = 0
    dead_offset: int | None = None
    reason: str = ""  # why the group gave the record up
    blocked: str = ""  # why the burial makes no progress
    transaction: TransactionId | None = None  # that has the ack of the record, and is not over


Remember = Callable[[Partition, str, int], RecordMemory | None]
"""What the leader remembers of a group's record; None: nothing."""


class Stories:
    """The stories of records in the partitions that one broker leads."""

    def __init__(self, broker: Broker, groups: GroupList, burials: Burials, courier: Courier) -> None:
        self.remember: Remember = lambda partition, group, offset: None
        self._broker = broker
        self._groups = groups
        self._burials = burials
        self._courier = courier

    async def tell(self, partition: Partition, offset: int, group: str = "") -> list[GroupStory]:
        """The story of a record in one group, or in all groups sorted by name if `group` is "".

        The caller has called `prove_leading` before.
        """
        cursors = sorted(partition.state.cursors.items())
        return [await self._of(partition, offset, name, cursor) for name, cursor in cursors if group in ("", name)]

    async def _of(self, partition: Partition, offset: int, name: str, cursor: Cursor) -> GroupStory:
        kind = CursorKind(cursor.kind)
        state = READ if offset < cursor.position else UNREAD
        story = GroupStory(name, kind.name.lower(), state, cursor.position)
        if kind is not CursorKind.QUEUE:
            return story
        group = partition.state.queue_groups.by_name[name]
        burial = group.burials.get(offset)
        staged = group.staged.get(offset)
        if staged is not None:
            return replace(story, state=STAGED, transaction=staged)
        if burial is not None:
            reason = by_name(unpack_headers(burial.headers)).get(REASON, b"").decode("utf-8", "replace")
            topic = self._broker.registry.get_topic_by_id(TopicId(burial.topic_id))
            return replace(
                story,
                state=BURYING,
                dead_topic=topic.name if topic is not None else burial.topic_id.hex(),
                dead_partition=burial.partition,
                reason=reason,
                blocked=self._burials.blocked(partition.group.id, name),
            )
        if group.is_settled(offset, cursor.position):
            return await self._settled(partition, offset, replace(story, state=SETTLED), cursor)
        # From here on the record is open, and only this leader's memory knows its lease.
        failure = group.failures.get(offset)
        memory = self.remember(partition, name, offset) or RecordMemory()
        story = replace(story, state=LEASED if memory.worker else FREE, memory=memory)
        if failure is not None:
            wait_ms = max(0, failure.not_before_us - partition.group.append_time_now_us()) // 1000
            story = replace(story, deliveries=failure.deliveries & ~REJECTED, returns=failure.returns, wait_ms=wait_ms)
            if wait_ms and not memory.worker:
                story = replace(story, state=WAITING)
        if self._burials.is_given_up(partition.group.id, name, offset):
            story = replace(story, state=GIVEN_UP, blocked=self._burials.blocked(partition.group.id, name))
        return story

    async def _settled(self, partition: Partition, offset: int, story: GroupStory, cursor: Cursor) -> GroupStory:
        """The story of a settled record: the dead letters may remember a copy of it."""
        place = partition.group.id
        group, source = self._groups.get(story.group), self._broker.registry.get_topic_by_id(place.topic_id)
        name = dead_letter_topic(group, source.name) if group is not None and source is not None else None
        topic = self._broker.registry.get_topic(name) if name is not None else None
        if topic is None or not topic.queues:
            return story
        copy_id = burial_id(
            place.topic_id, place.partition, offset, history=partition.state.epoch_cache.newest_term,
            group_id=cursor.group_id, generation=cursor.generation,
        )  # fmt: skip
        to: GroupId = topic.queues[place.partition % len(topic.queues)].group
        try:
            found = await self._courier.look(to, copy_id)
        except TinymqError:
            return story
        if found.offset is None:
            return story
        return replace(
            story, state=BURIED, dead_topic=topic.name, dead_partition=to.partition, dead_offset=found.offset
        )

"""Sends dead letters back to their source topics, and settles them.

Each topic of dead letters has a queue group with the topic's own name. `redrive` and `purge` settle dead letters in
that group. Because it is an ordinary queue group, retention=acknowledged removes dead letters that were sent back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tinymq.base.errors import InvalidRequest, UnknownTopic
from tinymq.base.group_config import GroupKind
from tinymq.broker.dead_letters.copy_ids import RUN_BYTES, redrive_id
from tinymq.broker.dead_letters.courier import NO_SEARCH, Courier
from tinymq.broker.dead_letters.letter import REDRIVE_GROUP, REDRIVEN_FROM, origin, strip
from tinymq.broker.dead_letters.queue_commands import settle
from tinymq.broker.groups.definition import GroupDefinition
from tinymq.broker.groups.groups import Groups
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.messages import pack_record, prove_leading, read_record
from tinymq.registry.state.values import TopicRecord

GROUP_S = 10.0
COMMAND_S = 5.0


class Redriven(NamedTuple):
    """Where a dead letter went."""

    topic: str
    partition: int
    offset: int  # in the source; meaningless if `settled_before`
    settled_before: bool  # an earlier call sent the dead letter back or purged it; this call did nothing


class Redrive:
    """Redrives the dead letters in the partitions that one broker leads."""

    def __init__(self, broker: Broker, groups: Groups, courier: Courier) -> None:
        self._broker = broker
        self._groups = groups
        self._courier = courier

    async def redrive(
        self, partition: Partition, offset: int, run: bytes, *, permit: Callable[[str], None] = lambda source: None
    ) -> Redriven:
        """Send one dead letter back to its source, for the group that gave it up, and settle it.

        `run` has RUN_BYTES and names the request: calls with the same `run` write the record to the source once.
        `permit` raises if the caller may not write to the source topic. It is needed because the topic's name comes
        from a header, which anyone who may write dead letters can set. Returns when the record is committed in the
        source and the dead letter is settled. Raises InvalidRequest if the record is no dead letter, or was lost before
        it was copied; UnknownTopic if the source is gone, OffsetOutOfRange, NotLeader, NotReady, OutcomeUnknown.
        """
        if len(run) != RUN_BYTES:
            raise InvalidRequest(f"a run has {RUN_BYTES} bytes, not {len(run)}")
        name = await self._own_group(partition)
        await prove_leading(partition, COMMAND_S)
        record = await read_record(self._broker, partition, offset)
        came = origin(record.headers)
        permit(came.topic)
        if _is_settled(partition, name, offset):
            return Redriven(came.topic, came.partition, 0, True)
        if came.lost:
            hint = f"purge it; {came.topic}/{came.partition} had it at offset {came.offset}"
            raise InvalidRequest(
                "retention removed this record before it was copied: there is nothing to send", hint=hint
            )
        source = await self._find_source(came.topic)
        # Where the record's partition was deleted, another one of the topic takes the record.
        queue = source.queue(came.partition) or source.queues[came.partition % len(source.queues)]
        place = partition.group.id
        back = f"{self._name_of(partition)}/{place.partition}/{offset}".encode()
        headers = [*strip(record.headers), (REDRIVE_GROUP, came.group.encode()), (REDRIVEN_FROM, back)]
        payload = pack_record(record.key, record.value, headers, record.timestamp_us)
        # The source may remember the record's own message id. Under that id it would take the record for a duplicate
        # and not store it, so the record would be lost.
        copy_id = redrive_id(place.topic_id, place.partition, offset, run)
        copied = await self._courier.send(queue.group, copy_id, NO_SEARCH, payload)
        await settle(partition, name, offset, offset + 1, COMMAND_S)
        assert copied.offset is not None, "of a copy that is committed"
        return Redriven(source.name, queue.partition, copied.offset, False)

    async def _find_source(self, name: str) -> TopicRecord:
        """The topic that dead letters came from. Raises UnknownTopic, once the newest metadata does not have it."""
        source = self._broker.registry.get_topic(name)
        if source is None:
            await self._broker.refresh()
            source = self._broker.registry.get_topic(name)
        if source is None or not source.queues:
            raise UnknownTopic(f"the dead letter came from topic {name!r}, which is gone")
        return source

    async def purge(self, partition: Partition, start: int, end: int) -> int:
        """Settle the dead letters from `start` up to `end` without sending them back. Returns how many of them were
        not settled before."""
        name = await self._own_group(partition)
        await prove_leading(partition, COMMAND_S)
        start, end = max(start, partition.log_start), min(end, partition.high_watermark)
        count = _unsettled(partition, name, start, end)
        if count:
            await settle(partition, name, start, end, COMMAND_S)
        return count

    def _name_of(self, partition: Partition) -> str:
        topic = self._broker.registry.get_topic_by_id(partition.group.id.topic_id)
        if topic is None:
            raise UnknownTopic("the topic of the dead letters was deleted")
        return topic.name

    async def _own_group(self, partition: Partition) -> str:
        """The name of the topic's own group, which is made at first use."""
        name = self._name_of(partition)
        if name not in partition.state.queue_groups.by_name:
            wanted = GroupDefinition(name, GroupKind.QUEUE, (name,))
            await self._groups.create(wanted, GROUP_S, exist_ok=True)
        return name


def _unsettled(partition: Partition, name: str, start: int, end: int) -> int:
    """How many records from `start` up to `end` the group has not settled."""
    group = partition.state.queue_groups.by_name[name]
    start = max(start, partition.state.cursors[name].position)
    settled = sum(max(0, min(end, stop) - max(start, first)) for first, stop in group.settled)
    return max(0, end - start - settled)


def _is_settled(partition: Partition, name: str, offset: int) -> bool:
    group, cursor = partition.state.queue_groups.by_name[name], partition.state.cursors[name]
    return group.is_settled(offset, cursor.position)

"""Carries out burials: the leader of a queue group's partition has records copied to the dead letters.

    given up → (topic made, id chosen) → Bury committed → copy committed in the dead letters → Buried committed

Until Bury is committed, only the leader's memory knows that the record is given up. From then on, every leader goes on
with the burial, under the same id and with the same headers, until the copy is committed. A burial has no deadline. If
the topic of dead letters is full, has no leader or cannot be made, the leader tries again, and `blocked` says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

import structlog

from tinymq.base.clock import Clock
from tinymq.base.errors import (
    Fenced,
    InvalidConfig,
    NotLeader,
    NotReady,
    OffsetOutOfRange,
    TinymqError,
    TopicExists,
    UnknownGroup,
    WrongKind,
)
from tinymq.base.meter import Meter
from tinymq.base.types import GroupId, TopicId
from tinymq.broker.dead_letters.copy_ids import burial_id
from tinymq.broker.dead_letters.courier import Courier
from tinymq.broker.dead_letters.letter import DeadLetter, letter_headers, pack_headers
from tinymq.broker.dead_letters.letter_batch import letter_batch, lost_letter
from tinymq.broker.dead_letters.queue_commands import propose, queue_ref, settle
from tinymq.broker.duplicates.message_ids import CopyId
from tinymq.broker.groups.dead_letter_topic import (
    check_durability,
    dead_letter_config,
    dead_letter_topic,
    has_dead_letters,
)
from tinymq.broker.groups.group_list import GroupList
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.messages import read_record
from tinymq.broker.state.queue_group import BURIALS_MAX, Burial
from tinymq.broker.state.state import PartitionState
from tinymq.proto import partition_pb2 as pb
from tinymq.registry.state.values import TopicRecord

QUEUED_MAX = 1000  # records that are given up and not under burial yet, per partition and group
COPIES_MAX = 32  # copies that this broker sends at one time
COMMAND_S = 5.0
TOPIC_S = 10.0
RETRY_S = 0.1
RETRY_S_MAX = 5.0
LOOK_EVERY_S = 5.0

Key = tuple[GroupId, str]  # a partition, and a group in it

logger = structlog.get_logger("tinymq.broker")


class Fate(Enum):
    """The answer to `Burials.bury`: what becomes of a record that is given up."""

    BURYING = "burying"  # its burial is queued or under way
    WAITS = "waits"  # the record is itself a dead letter: it is not buried again, and waits for a redrive or a purge
    LATER = "later"  # QUEUED_MAX records are queued: call again


class Burials:
    """The burials in the partitions that one broker leads, from `start` to `stop`. All calls on the loop."""

    def __init__(self, broker: Broker, groups: GroupList, courier: Courier, clock: Clock, meter: Meter) -> None:
        self.buried = 0  # burials that ended since this process began
        self._meter = meter
        self._broker = broker
        self._groups = groups
        self._courier = courier
        self._clock = clock
        self._given_up: dict[Key, dict[int, DeadLetter]] = {}
        self._blocked: dict[Key, str] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._copies = asyncio.Semaphore(COPIES_MAX)
        self._looking: asyncio.Task[None] | None = None
        self.on_broken: Callable[[BaseException], None] = lambda error: None

    def start(self) -> asyncio.Task[None]:
        """Go on with the burials that earlier leaders began."""
        self._looking = asyncio.get_running_loop().create_task(self._look_at_all())
        return self._looking

    async def stop(self) -> None:
        tasks = [*self._tasks.values(), *([self._looking] if self._looking is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def group_changed(self, group: GroupId) -> None:
        """Note that the leader of a Raft group may have changed."""
        partition = self._broker.replica_host.get(group.topic_id, group.partition)
        if partition is not None and partition.leading:
            self._look(partition)

    # ---- what the leader of a queue group calls ---------------------------------------------------------------

    def bury(self, partition: Partition, group: str, record: DeadLetter) -> Fate:
        """Give a record up, because it failed too often or was rejected. Returns at once.

        A repeat changes nothing. If this leader is deposed before Bury is committed, the next leader has to call again.
        Once `partition.state` has the burial, settlements of the record by workers are refused.
        """
        key = (partition.group.id, group)
        source = self._source(partition)
        if source is not None and has_dead_letters(source.name, self._groups.all()):
            return Fate.WAITS
        queued = self._given_up.setdefault(key, {})
        if record.offset not in queued:
            if len(queued) >= QUEUED_MAX:
                return Fate.LATER
            queued[record.offset] = record
        self._work_on(key)
        return Fate.BURYING

    def is_given_up(self, group_id: GroupId, group: str, offset: int) -> bool:
        """Whether a record is given up and not under burial yet. Such a record must not be granted."""
        return offset in self._given_up.get((group_id, group), ())

    def given_up(self, group_id: GroupId, group: str) -> int:
        """How many records are given up and not under burial yet."""
        return len(self._given_up.get((group_id, group), ()))

    def blocked(self, group_id: GroupId, group: str) -> str:
        """Why the burials of a group in a partition make no progress; "" if they do, or if there are none."""
        return self._blocked.get((group_id, group), "")

    # ---- one group in one partition -------------------------------------------------------------------------------

    async def _look_at_all(self) -> None:
        while True:
            for partition in list(self._broker.replica_host.partitions.values()):
                if partition.leading and partition.state.queue_groups.by_name:
                    self._look(partition)
            await self._clock.sleep(LOOK_EVERY_S)

    def _look(self, partition: Partition) -> None:
        for name, group in partition.state.queue_groups.by_name.items():
            if group.burials:
                self._work_on((partition.group.id, name))

    def _work_on(self, key: Key) -> None:
        if key not in self._tasks:
            task = self._tasks[key] = asyncio.get_running_loop().create_task(self._work(key))
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_broken(error)

    async def _work(self, key: Key) -> None:
        """Bury until nothing is left, or until this broker does not lead the partition any more."""
        try:
            await self._bury_all(key)
        finally:
            # There is no `await` between the last look of `_bury_all` at the queue and this line. A record that is
            # given up later therefore starts a new task.
            del self._tasks[key]
            self._given_up.pop(key, None)
            self._blocked.pop(key, None)

    async def _bury_all(self, key: Key) -> None:
        place, name = key
        pause_s = RETRY_S
        while True:
            partition = self._broker.replica_host.get(place.topic_id, place.partition)
            if partition is None or not partition.leading:
                return
            errors = await self._begin(partition, name)
            burials = _burials(partition.state, name)
            errors += await asyncio.gather(*(self._carry(partition, name, at, burial) for at, burial in burials))
            failed = [error for error in errors if error]
            if failed:
                if self._blocked.get(key) != failed[0]:
                    logger.warning("burial_blocked", partition=partition.name, group=name, reason=failed[0])
                self._blocked[key] = failed[0]
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)
                continue
            pause_s = RETRY_S
            self._blocked.pop(key, None)
            if not self._given_up.get(key) and not _burials(partition.state, name):
                return

    async def _begin(self, partition: Partition, name: str) -> list[str]:
        """Commit a Bury for each queued record. Returns the errors; the records that failed stay in the queue."""
        queued = self._given_up.get((partition.group.id, name), {})
        errors = []
        for offset in sorted(queued)[:BURIALS_MAX]:
            group = partition.state.queue_groups.by_name.get(name)
            if group is None:
                queued.clear()
                break
            if len(group.burials) >= BURIALS_MAX:
                break  # `_carry` makes room
            try:
                await self._bury(partition, name, queued[offset])
            except (Fenced, UnknownGroup, WrongKind):
                pass  # the group was moved or deleted meanwhile, so the record is not given up any more
            except TinymqError as error:
                errors.append(error.message)
                break  # the others would most likely fail for the same reason
            queued.pop(offset, None)
        return errors

    async def _bury(self, partition: Partition, name: str, record: DeadLetter) -> None:
        group, source = self._groups.get(name), self._source(partition)
        cursor = partition.state.cursors.get(name)
        if group is None or source is None or cursor is None:
            raise UnknownGroup(f"group {name!r} is not known here")
        ref = queue_ref(partition, name)
        wanted = dead_letter_topic(group, source.name)
        if wanted is None:
            logger.warning(
                "record_dropped", partition=partition.name, group=name, offset=record.offset,
                deliveries=record.deliveries, reason=record.reason,
            )  # fmt: skip
            await settle(partition, name, record.offset, record.offset + 1, COMMAND_S)
            return
        place = partition.group.id
        copy_id = burial_id(
            place.topic_id, place.partition, record.offset,
            history=ref.history, group_id=ref.group_id, generation=ref.generation,
        )  # fmt: skip
        to = self._choose(await self._dead_letters(source, wanted), place)
        bury = pb.BuryRecord(
            queue=ref,
            offset=record.offset,
            message_id=copy_id.digest,
            topic_id=to.topic_id,
            partition=to.partition,
            end=await self._end_of(to),
            headers=pack_headers(letter_headers(record, source.name, place.partition, name)),
        )
        # Ignore refused offsets: such a record is settled already, or under another burial.
        await propose(partition, pb.Command(bury=bury), COMMAND_S)

    async def _carry(self, partition: Partition, name: str, offset: int, burial: Burial) -> str:
        """Carry one burial to its end. Returns why that failed, or "" if nothing is left to do here."""
        try:
            async with self._copies:
                await self._carry_once(partition, name, offset, burial)
        except (UnknownGroup, WrongKind, NotLeader) as error:
            # Either the group is gone, with its burials, or this broker does not lead the partition any more: the loop
            # of `_bury_all` notices both. NotLeader may also come from the dead letters: that is an error to report.
            return error.message if isinstance(error, NotLeader) and partition.leading else ""
        except TinymqError as error:
            return error.message
        return ""

    async def _carry_once(self, partition: Partition, name: str, offset: int, burial: Burial) -> None:
        to = GroupId(TopicId(burial.topic_id), burial.partition)
        if not self._is_there(to):
            await self._broker.refresh()  # only the registry's leader can say that a topic is gone
        if not self._is_there(to):
            await self._bury_again(partition, name, offset, burial)
            return
        payload = await self._letter(partition, offset, burial)
        await self._courier.send(to, CopyId(burial.message_id), burial.end, payload)
        end = pb.EndBurial(queue=queue_ref(partition, name), message_id=burial.message_id)
        await propose(partition, pb.Command(buried=end), COMMAND_S)
        logger.info("record_buried", partition=partition.name, group=name, offset=offset, to=str(to))
        self.buried += 1
        self._meter.buried(name)

    async def _bury_again(self, partition: Partition, name: str, offset: int, burial: Burial) -> None:
        """Redirect a burial whose topic was deleted to the topic that takes the dead letters now. The id stays."""
        group, source = self._groups.get(name), self._source(partition)
        if group is None or source is None:
            raise UnknownGroup(f"group {name!r} is not known here")
        wanted = dead_letter_topic(group, source.name)
        if wanted is None:
            raise InvalidConfig(f"group {name!r} has no dead letters any more, and a record on its way there")
        to = self._choose(await self._dead_letters(source, wanted), partition.group.id)
        bury = pb.BuryRecord(
            queue=queue_ref(partition, name), offset=offset, message_id=burial.message_id, topic_id=to.topic_id,
            partition=to.partition, end=await self._end_of(to), headers=burial.headers,
        )  # fmt: skip
        await propose(partition, pb.Command(bury=bury), COMMAND_S)

    async def _letter(self, partition: Partition, offset: int, burial: Burial) -> bytes:
        """The copy of a record, as a batch."""
        try:
            record = await read_record(self._broker, partition, offset)
        except OffsetOutOfRange:  # retention removed it meanwhile
            return lost_letter(burial.headers, partition.group.append_time_now_us())
        return letter_batch(record, burial.headers, self._broker.limits)

    # ---- the topic of the dead letters ----------------------------------------------------------------------------

    async def _dead_letters(self, source: TopicRecord, name: str) -> TopicRecord:
        """Find the topic `name`, or make it. Raises InvalidConfig if it is less durable than `source`, and as
        `create_topic`."""
        registry = self._broker.registry
        if registry.get_topic(name) is None:
            await self._broker.refresh()
        if registry.get_topic(name) is None:
            try:
                await self._broker.create_topic(
                    name, len(source.queues), source.replication_factor, TOPIC_S,
                    config=dead_letter_config(source.config),
                )  # fmt: skip
            except TopicExists:  # another leader has made it
                await self._broker.refresh()
        found = registry.get_topic(name)
        if found is None or not found.queues:
            raise NotReady(f"topic {name!r} was deleted while it was made")
        check_durability(source, found)
        return found

    def _choose(self, topic: TopicRecord, source: GroupId) -> GroupId:
        """The partition for the dead letters of a source partition: always the same one, so that they stay in order."""
        return topic.queues[source.partition % len(topic.queues)].group

    async def _end_of(self, to: GroupId) -> int:
        """The end of the partition `to`: a copy that is sent later lies at or behind it. 0 if its leader does not
        answer, because a lower number is always safe."""
        try:
            return (await self._courier.look(to, CopyId(bytes(16)))).high_watermark
        except TinymqError:
            return 0

    def _is_there(self, to: GroupId) -> bool:
        topic = self._broker.registry.get_topic_by_id(to.topic_id)
        return topic is not None and topic.queue(to.partition) is not None

    def _source(self, partition: Partition) -> TopicRecord | None:
        return self._broker.registry.get_topic_by_id(partition.group.id.topic_id)


def _burials(state: PartitionState, name: str) -> list[tuple[int, Burial]]:
    group = state.queue_groups.by_name.get(name)
    return list(group.burials.items()) if group is not None else []

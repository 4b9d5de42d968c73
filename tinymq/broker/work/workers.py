"""The workers of queue groups on one broker: finds the GroupLeader of a group in a partition, or makes it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from tinymq.base.clock import Clock
from tinymq.base.errors import NotLeader, NotReady, UnknownGroup, WrongKind
from tinymq.base.meter import Meter
from tinymq.base.types import GroupId
from tinymq.broker.groups.group_list import GroupList
from tinymq.broker.groups.lease_values import QueueSettings
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.broker import Broker
from tinymq.broker.state.cursor import CursorKind
from tinymq.broker.work.attachment import Attachment, AttachRequest, WorkerPort
from tinymq.broker.work.granted_records import GrantedRecords
from tinymq.broker.work.group_leader import GroupLeader
from tinymq.broker.work.limits import GroupLimits

TICK_S = 0.2
LOOK_TICKS = 10  # ticks between two looks for groups whose workers have not come back to this leader


class Workers:
    """All GroupLeaders of one broker, from `start` to `stop`."""

    def __init__(self, broker: Broker, groups: GroupList, clock: Clock, rng: random.Random, meter: Meter) -> None:
        self.on_dead: Callable[[GroupLeader], None] = lambda leader: None
        """Called while a group has records to bury (`GroupLeader.dead`): after each commit, and with each tick."""
        self._broker = broker
        self._groups = groups
        self._clock = clock
        self._rng = rng
        self._meter = meter
        self._records = GrantedRecords(broker.unpack_queue, broker.limits)
        self._leaders: dict[tuple[GroupId, str], GroupLeader] = {}
        self._connections = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Call the leaders' `tick` regularly until `stop`."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for leader in self._leaders.values():
            leader.close(NotReady("this broker is stopping", hint="ask the new leader"))

    @property
    def leaders(self) -> Sequence[GroupLeader]:
        """The groups, in partitions that this broker leads, that have workers or records that workers may hold."""
        return [leader for leader in self._leaders.values() if not leader.over]

    def now_s(self) -> float:
        """The time of the clock that measures how long sessions are silent."""
        return self._clock.monotonic()

    def leased(self, group: GroupId, name: str) -> int:
        """How many records of a group are leased, or have a staged ack, in a partition that this broker leads.

        When this returns, the GroupLeader uses the group's settings as the registry here has them now.
        """
        leader = self.leader(group, name)
        if leader is not None:
            self._follow(leader)
        return leader.jobs.taken if leader is not None else 0

    def leader(self, group: GroupId, name: str) -> GroupLeader | None:
        """The GroupLeader of a group in a partition; None: the group has no workers there, or another broker leads."""
        found = self._leaders.get((group, name))
        return None if found is None or found.over else found

    def attach(self, port: WorkerPort, request: AttachRequest) -> tuple[GroupLeader, Attachment]:
        """Attach a worker to a partition.

        Raises NotLeader, NotReady, UnknownTopic, UnknownPartition, UnknownGroup, WrongKind, SessionEnded.
        """
        replica = self._broker.find(request.topic_id, request.partition)
        replica.check_leading()
        term = replica.group.term
        if term < request.term:
            raise NotLeader(f"{replica}: this broker leads in term {term}, and the worker knows {request.term}")
        leader = self.find(replica, request.group, request.group_id)
        self._connections += 1
        new = Attachment(
            number=request.number,
            port=port,
            session=request.session,
            connection=self._connections,
            credit_records=request.credit_records,
            credit_bytes=request.credit_bytes,
        )
        leader.attach(new, request.held)
        return leader, new

    def find(self, partition: Partition, name: str, group_id: int) -> GroupLeader:
        """The GroupLeader of a group in a partition that is led here, made if there is none.

        Raises NotReady, UnknownGroup, WrongKind.
        """
        cursor, group = partition.state.cursors.get(name), self._groups.get(name)
        if cursor is None or (cursor.kind == CursorKind.QUEUE and cursor.group_id < group_id):
            if group is not None and group.group_id == group_id:
                raise NotReady(f"{partition}: the cursor of group {name!r} is being made")
            raise UnknownGroup(f"{partition}: no group {name[:300]!r}")
        if cursor.kind != CursorKind.QUEUE:
            raise WrongKind(f"{name!r} is no queue group", hint="workers need a group of the kind queue")
        if cursor.group_id != group_id:
            raise UnknownGroup(f"group {name!r} was deleted, and made again")
        if group is None or group.group_id != group_id:
            raise NotReady(f"this broker does not know group {name!r} yet")
        key = partition.group.id, name
        leader = self._leaders.get(key)
        if leader is not None:
            leader.check()
            self._follow(leader)
        if leader is None or leader.over:
            leader = self._leaders[key] = GroupLeader(
                partition, name, group_id, QueueSettings.of(group.config()),
                records=self._records, clock=self._clock, rng=self._rng, meter=self._meter,
                on_dead=lambda led: self.on_dead(led),
            )  # fmt: skip
        self._follow(leader)
        return leader

    def _follow(self, leader: GroupLeader) -> None:
        """Give a GroupLeader the settings of its group's newest record, and its share by the number of partitions."""
        group, place = self._groups.get(leader.name), leader.partition.group.id
        if leader.over or group is None or group.group_id != leader.group_id:
            return
        if group.version != leader.version:
            leader.configure(group.version, QueueSettings.of(group.config()), GroupLimits.of(group))
        if leader.limits.is_divided:
            topics = [topic for topic in self._broker.registry.get_all_topics() if group.reads(topic.name)]
            places = sorted(queue.group for topic in topics for queue in topic.queues)
            leader.share.divide(leader.limits, places.index(place) if place in places else 0, len(places))

    async def _run(self) -> None:
        ticks = 0
        while True:
            await self._clock.sleep(TICK_S)
            ticks += 1
            for key, leader in list(self._leaders.items()):
                self._follow(leader)
                leader.tick()
                if leader.is_idle:
                    leader.close(NotReady("no worker is attached"))
                    del self._leaders[key]
            if ticks % LOOK_TICKS == 0:
                self._look()

    def _look(self) -> None:
        """Make the GroupLeaders of groups that have sessions, failed records or staged acks but no worker here.

        Without one, the sessions of dead workers would never end, and their records would never be free.
        """
        for partition in self._broker.replica_host.partitions.values():
            for name, state in partition.state.queue_groups.by_name.items() if partition.leading else ():
                cursor, group = partition.state.cursors[name], self._groups.get(name)
                known = group is not None and group.group_id == cursor.group_id
                if known and (state.sessions or state.failures or state.staged):
                    self.find(partition, name, cursor.group_id)

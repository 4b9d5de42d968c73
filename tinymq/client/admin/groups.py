"""Consumer groups: made, deleted and listed by any broker; their cursors, asked of the partitions' leaders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tinymq.base.errors import (
    Denied,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    TinymqError,
    UnknownGroup,
    UnknownTopic,
    WrongKind,
)
from tinymq.base.group_config import GroupKind, differing_settings, topic_matches
from tinymq.client.admin.broker_calls import BrokerCalls
from tinymq.client.admin.channels import LEADERS_AT_ONCE_MAX
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.coordinator_calls import CoordinatorCalls
from tinymq.client.cluster.routing import Topic
from tinymq.client.common.argument_checks import check_channel
from tinymq.client.common.start_positions import KnownOffset, Place, read_place
from tinymq.client.common.values import as_datetime
from tinymq.client.consume import cursors
from tinymq.client.consume.cursors import REQUEST_ID_BYTES, ChannelId, GroupRef
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

KIND_NUMBERS = {"stream": 1, "queue": 2}


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group, as the registry has it.

    for group in mq.admin.list_groups():
        print(group.name, group.kind, group.state, group.topics)
    """

    name: str
    kind: str  # "stream" or "queue"
    state: str  # "making", "ready" or "deleting"
    topics: tuple[str, ...]  # names, and patterns with * and ?
    settings: Mapping[str, str] = field(default_factory=dict)  # all, the defaults included
    group_id: int = 0  # a group that is made again under its name has a higher one
    paused: bool = False  # of a queue group: its workers get nothing


@dataclass(frozen=True, slots=True)
class GroupCursor:
    """The cursor of a group in one partition, as the partition's leader has it.

    print(sum(cursor.lag for cursor in mq.admin.group_lag("billing")))
    """

    topic: str
    partition: int
    position: int  # the offset of the next record to be read
    lag: int  # committed records that are not read or, of a queue group, not settled
    moved: datetime | None  # when the cursor last changed; None: never since it was made
    epoch: int  # of the newest member that read the partition; 0: there was none
    generation: int  # changes with every seek
    oldest_ms: int = 0  # since the first record that is not read, or not settled, was appended
    leased: int = 0  # records that workers have; this and all below are of queue groups
    waiting: int = 0  # records that failed and are not settled
    burying: int = 0  # records on their way to the dead letters
    workers: int = 0  # attached to the partition's leader
    blocked: tuple[GroupObstacle, ...] = ()
    staged: int = 0  # records whose acks wait for the end of a transaction


@dataclass(frozen=True, slots=True)
class GroupObstacle:
    """The reason why a queue group cannot go on in a partition.

    for cursor in mq.admin.group_lag("mailer"):
        for obstacle in cursor.blocked:
            print(cursor.partition, obstacle.by, obstacle.reason)
    """

    by: str  # "paused", "window_full", "key_blocked" or "burial_blocked"
    reason: str
    offset: int | None = None  # with "key_blocked": the record for which the others of its key wait
    key: bytes | None = None  # the key of that record, if it can be read


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a stream group, as the group's coordinator has it.

    for member in mq.admin.group_members("billing"):
        print(member.client_id, member.partitions)
    """

    member: str  # its instance id, or the id of its session
    client_id: str
    static: bool  # it has an instance id: its partitions wait for its return
    rack: str
    partitions: tuple[MemberPartition, ...]


@dataclass(frozen=True, slots=True)
class MemberPartition:
    """A partition that a member has."""

    topic: str  # "": the broker that answered does not know the topic any more
    partition: int
    epoch: int
    revoking: bool  # whether the coordinator has asked the member to let go


class GroupCalls:
    """The part of the admin that is about groups."""

    def __init__(self, cluster: Cluster, brokers: BrokerCalls) -> None:
        self._cluster = cluster
        self._brokers = brokers

    async def create(
        self,
        name: str,
        topics: Sequence[str],
        kind: str,
        start: Place,
        settings: Mapping[str, object],
        *,
        exist_ok: bool,
        timeout_s: float,
    ) -> GroupDescription:
        """Make a group, and wait until its cursor is in every partition.

        With `exist_ok`, a group that is there keeps its settings. The log warns of each setting that differs.
        """
        place = read_place(start)
        if isinstance(place, KnownOffset):
            raise InvalidRequest("a group begins at earliest, latest or a time", hint="to begin at an offset, seek")
        texts = {key: _text(value) for key, value in settings.items()}
        request = pb.CreateGroupRequest(
            name=check_channel(name),
            kind=kind,
            topics=topics,
            start_us=place.timestamp_us,
            settings=[pb.Setting(name=key, value=value) for key, value in texts.items()],
            exist_ok=exist_ok,
        )
        left = self._cluster.countdown(timeout_s)
        try:
            reply = await self._brokers.change(request, timeout_s, waits_for_leaders=True)
        except Denied:
            present = await self._readable(name, left()) if exist_ok else None
            if present is None or present.kind != kind:
                raise
            made = present
        else:
            made = _describe(reply.group)
        if made.kind == kind:
            _warn_of_differences(made, texts)
        return made

    async def _readable(self, name: str, timeout_s: float) -> GroupDescription | None:
        """A group that exists and that this client may read, though it may not make one. None: there is none."""
        try:
            reply = await self._cluster.ask(pb.ListGroupsRequest(name=name), timeout_s=timeout_s)
        except (NotFound, Denied):
            return None
        return _describe(reply.groups[0])

    async def alter(
        self,
        name: str,
        settings: Mapping[str, object],
        timeout_s: float,
        *,
        paused: bool | None = None,
        dry_run: bool = False,
    ) -> GroupDescription:
        """Change settings of a group, all of these or none; or pause it, or have it go on."""
        request = pb.AlterGroupRequest(
            name=check_channel(name),
            settings=[pb.Setting(name=key, value=_text(value)) for key, value in settings.items()],
            paused=paused,
            dry_run=dry_run,
        )
        return _describe((await self._brokers.change(request, timeout_s, waits_for_leaders=True)).group)

    async def purge(self, name: str, timeout_s: float, *, dry_run: bool) -> int:
        """Settle all records of a queue group up to the end. Returns how many were not settled just before."""
        left = self._cluster.countdown(timeout_s)
        group = await self.describe(name, left())
        if group.kind != "queue":
            raise WrongKind(f"{name!r} is a {group.kind} group", hint="a stream group seeks to the end instead")
        before = await self.cursors(name, left())
        if before and not dry_run:
            await self.seek(name, "latest", None, None, left())
        return sum(cursor.lag for cursor in before)

    async def delete(self, name: str, timeout_s: float) -> int:
        """Delete a group, and wait until no partition has its cursor. Returns the burials that ended with it."""
        request = pb.DeleteGroupRequest(name=check_channel(name))
        try:
            return int((await self._brokers.change(request, timeout_s, waits_for_leaders=True)).burials)
        except UnknownGroup as error:
            if "unclear" not in error.detail:  # otherwise an earlier attempt of this call may have deleted it
                raise
            return 0

    async def list_all(self, timeout_s: float) -> list[GroupDescription]:
        """All groups, by name."""
        reply = await self._cluster.ask(pb.ListGroupsRequest(), timeout_s=timeout_s)
        return [_describe(group) for group in reply.groups]

    async def describe(self, name: str, timeout_s: float) -> GroupDescription:
        """One group. Raises UnknownGroup."""
        reply = await self._cluster.ask(pb.ListGroupsRequest(name=check_channel(name)), timeout_s=timeout_s)
        return _describe(reply.groups[0])

    async def members(self, name: str, timeout_s: float) -> list[GroupMember]:
        """The members, by name. Raises UnknownGroup, WrongKind (of a queue group)."""
        left = self._cluster.countdown(timeout_s)
        group = await self.describe(name, left())
        if group.kind == "queue":
            hint = "tinymq group describe, and mq.admin.group_lag, count the workers of each partition"
            raise WrongKind(f"{name!r} is a queue group: it has workers, and no members", hint=hint)
        request = pb.ListMembersRequest(group=name, group_id=group.group_id)
        try:
            reply = await CoordinatorCalls(self._cluster, name).members(request, left())
        except UnknownTopic:  # that of the coordinators, which the first member of a cluster makes
            return []
        return [_member(member) for member in reply.members]

    async def cursors(self, name: str, timeout_s: float) -> list[GroupCursor]:
        """The group's cursors, by topic and partition."""
        left = self._cluster.countdown(timeout_s)
        group = await self.describe(name, left())
        listed = await self._cluster.ask(pb.MetadataRequest(all=True, fresh=True), timeout_s=left())
        names = [info.name for info in listed.topics if _reads(group, info.name)]
        asking = asyncio.Semaphore(LEADERS_AT_ONCE_MAX)

        async def ask(topic: Topic, number: int) -> list[GroupCursor]:
            async with asking:
                found = await cursors.list_channels(self._cluster, topic, number, left(), groups=True)
            return [
                _cursor(topic.name, number, info)
                for info in found.channels
                if info.channel == name and info.group_id == group.group_id
            ]

        topics = [await self._cluster.topic(topic, left()) for topic in sorted(names)]
        found = await asyncio.gather(*(ask(topic, number) for topic in topics for number in topic.numbers))
        return [cursor for some in found for cursor in some]

    async def seek(
        self, name: str, to: Place, topic: str | None, partitions: Sequence[int] | None, timeout_s: float
    ) -> list[GroupCursor]:
        """Move the group's cursors, and return them as they are afterwards. Members read on from there."""
        place = read_place(to)
        left = self._cluster.countdown(timeout_s)
        group = await self.describe(name, left())
        chosen = [
            cursor
            for cursor in await self.cursors(name, left())
            if topic in (None, cursor.topic) and (partitions is None or cursor.partition in partitions)
        ]
        if not chosen:
            raise UnknownTopic(f"group {name!r} has no cursor there")
        ref = GroupRef(KIND_NUMBERS[group.kind], group.group_id)
        moved: set[tuple[str, int]] = set()
        try:
            for cursor in chosen:
                at = ChannelId(await self._cluster.topic(cursor.topic, left()), cursor.partition, name, ref)
                seek = cursors.seeking(0, place, self._cluster.rng.randbytes(REQUEST_ID_BYTES))
                await cursors.change(self._cluster, at, seek, left())
                moved.add((cursor.topic, cursor.partition))
            return [c for c in await self.cursors(name, left()) if (c.topic, c.partition) in moved]
        except TinymqError as error:
            if not moved:
                raise
            raise OutcomeUnknown(f"{len(moved)} cursors of group {name!r} have moved: {error.message}") from error


def _reads(group: GroupDescription, topic: str) -> bool:
    return any(topic_matches(pattern, topic) for pattern in group.topics)


def _describe(info: pb.GroupInfo) -> GroupDescription:
    return GroupDescription(
        name=info.name,
        kind=info.kind,
        state=info.state,
        topics=tuple(info.topics),
        settings={setting.name: setting.value for setting in info.settings},
        group_id=info.group_id,
        paused=info.paused,
    )


def _warn_of_differences(group: GroupDescription, given: Mapping[str, str]) -> None:
    """Log each given setting that the group has with another value. A group that this call made has none."""
    for name, (wanted, present) in differing_settings(GroupKind(group.kind), given.items(), group.settings).items():
        values = f"{name}={present or repr('')}, not {wanted or repr('')} as this program says"
        change = f"tinymq group alter {group.name} --set {name}={wanted}"
        LOG.warning("group %s has %s; to change it: %s", group.name, values, change)


def _member(info: pb.GroupMember) -> GroupMember:
    owned = [MemberPartition(each.topic, each.partition, each.epoch, each.revoking) for each in info.owned]
    return GroupMember(
        member=info.member,
        client_id=info.client_id,
        static=info.static,
        rack=info.rack,
        partitions=tuple(sorted(owned, key=lambda each: (each.topic, each.partition))),
    )


def _cursor(topic: str, partition: int, info: pb.ChannelInfo) -> GroupCursor:
    return GroupCursor(
        topic=topic,
        partition=partition,
        position=info.position,
        lag=info.lag,
        moved=as_datetime(info.moved_us) if info.moved_us else None,
        epoch=info.epoch,
        generation=info.generation,
        oldest_ms=info.oldest_ms,
        leased=info.leased,
        waiting=info.waiting,
        burying=info.burying,
        workers=info.workers,
        blocked=tuple(map(_obstacle, info.blocked)),
        staged=info.staged,
    )


def _obstacle(info: pb.GroupObstacle) -> GroupObstacle:
    return GroupObstacle(
        by=info.by,
        reason=info.reason,
        offset=info.offset if info.HasField("offset") else None,
        key=info.key if info.HasField("key") else None,
    )


def _text(value: object) -> str:
    """A setting as it travels: [10_000, 60_000] as 10000,60000."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

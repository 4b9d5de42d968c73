"""service Groups: makes, deletes and lists consumer groups, at any broker."""

from __future__ import annotations

from collections.abc import Mapping

from tinymq.base.errors import InvalidConfig, InvalidRequest
from tinymq.base.group_config import SETTINGS, GroupKind
from tinymq.base.types import PartitionId, TopicId, check_consumer_name
from tinymq.broker.coordinator.rules import MemberHeartbeat
from tinymq.broker.groups.alteration import Alteration
from tinymq.broker.groups.definition import START_EARLIEST, GroupDefinition
from tinymq.broker.members.group_members import Member, Owned
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.rpc.common.access import DEAD_LETTERS, GROUP, GROUP_TOPICS, dead_letter_targets
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.caller import count_made, may_describe, require, require_targets, require_topic
from tinymq.rpc.common.rpc_method import unary

TIMEOUT_S = 10.0  # if the client gives none
TIMEOUT_S_MAX = 600.0
WAIT_S_MAX = 30.0  # for an assignment
SESSION_BYTES = 16
CLIENT_ID_CHARS_MAX = 249


class GroupsService(pb_grpc.GroupsServicer):
    """service Groups."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @unary(operation="create", resource=GROUP, also=(("read", GROUP_TOPICS),))
    async def CreateGroup(self, request: pb.CreateGroupRequest, context: Context) -> pb.CreateGroupReply:
        groups = self._serving.running_groups()
        wanted = GroupDefinition(
            name=request.name,
            kind=_kind(request.kind),
            topics=tuple(request.topics),
            start_us=request.start_us if request.HasField("start_us") else START_EARLIEST,
            settings=tuple((setting.name, setting.value) for setting in request.settings),
            command_id=request.command_id,
        )
        await count_made(self._serving, "group", request.name)
        made = await groups.create(wanted, _timeout_s(request.timeout_ms), exist_ok=request.exist_ok)
        return pb.CreateGroupReply(group=group_to_wire(made))

    @unary(operation="alter", resource=GROUP, also=(("write", DEAD_LETTERS),))
    async def AlterGroup(self, request: pb.AlterGroupRequest, context: Context) -> pb.AlterGroupReply:
        change = Alteration(
            settings=tuple((setting.name, setting.value) for setting in request.settings),
            paused=request.paused if request.HasField("paused") else None,
            command_id=request.command_id,
        )
        groups, timeout_s = self._serving.running_groups(), _timeout_s(request.timeout_ms)
        if ("dlq", "") in change.settings:  # the group's topics get dead letters of their own: see DEAD_LETTERS
            require_targets(dead_letter_targets("", (await groups.get(request.name)).topics))
        return pb.AlterGroupReply(
            group=group_to_wire(await groups.alter(request.name, change, timeout_s, dry_run=request.dry_run))
        )

    @unary(operation="delete", resource=GROUP)
    async def DeleteGroup(self, request: pb.DeleteGroupRequest, context: Context) -> pb.DeleteGroupReply:
        burials = await self._serving.running_groups().delete(request.name, _timeout_s(request.timeout_ms))
        return pb.DeleteGroupReply(burials=burials)

    @unary(operation="describe", resource=GROUP, filters=True)
    async def ListGroups(self, request: pb.ListGroupsRequest, context: Context) -> pb.ListGroupsReply:
        groups = self._serving.running_groups()
        if request.name:
            require("describe", "group", request.name)
            return pb.ListGroupsReply(groups=[group_to_wire(await groups.get(request.name))])
        await groups.refresh()
        shown = (group for group in groups.known.all() if may_describe("group", group.name))
        return pb.ListGroupsReply(groups=map(group_to_wire, shown))

    # ---- asked of the coordinator -----------------------------------------------------------------------------

    @unary(operation="read", resource=GROUP)
    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatReply:
        _check_session(request.member, request.session)
        beat = MemberHeartbeat(
            name=request.member,
            member=Member(
                request.session,
                request.client_id[:CLIENT_ID_CHARS_MAX],
                request.static,
                rack=request.rack[:CLIENT_ID_CHARS_MAX],
            ),
            number=request.number,
            owned={PartitionId(owned.topic_id, owned.partition): owned.epoch for owned in request.owned},
            taken=request.taken,
            fenced_at=request.fenced_at,
            joined=request.joined,
            leave=request.leave,
        )
        lost, term = await self._serving.coordinating().heartbeat(request.group, request.group_id, beat)
        return pb.HeartbeatReply(
            lost=[pb.OwnedPartition(topic_id=place.topic_id, partition=place.partition) for place in lost], term=term
        )

    @unary(operation="read", resource=GROUP)
    async def AwaitAssignment(self, request: pb.AwaitAssignmentRequest, context: Context) -> pb.AwaitAssignmentReply:
        _check_session(request.member, request.session)
        found = await self._serving.coordinating().assignment(
            request.group, request.group_id, request.member, request.session, request.digest,
            wait_s=min(request.wait_ms / 1000, WAIT_S_MAX),
        )  # fmt: skip
        if found is None:
            return pb.AwaitAssignmentReply()
        for topic_id in {place.topic_id for place in found.owned}:
            require_topic("read", topic_id)  # else the member would wait for records that it never gets
        owned = self._owned_to_wire(found.owned)
        return pb.AwaitAssignmentReply(member=True, owned=owned, digest=found.digest, term=found.term)

    @unary(operation="describe", resource=GROUP)
    async def ListMembers(self, request: pb.ListMembersRequest, context: Context) -> pb.ListMembersReply:
        state = await self._serving.coordinating().members(request.group, request.group_id)
        return pb.ListMembersReply(
            members=[
                pb.GroupMember(
                    member=name,
                    client_id=member.client_id,
                    static=member.static,
                    rack=member.rack,
                    owned=self._owned_to_wire(state.of(name)),
                )
                for name, member in sorted(state.members.items())
            ]
        )

    def _owned_to_wire(self, owned: Mapping[PartitionId, Owned]) -> list[pb.OwnedPartition]:
        registry = self._serving.running().registry
        found = []
        for place, at in sorted(owned.items()):
            topic = registry.get_topic_by_id(TopicId(place.topic_id))
            found.append(
                pb.OwnedPartition(
                    topic_id=place.topic_id,
                    partition=place.partition,
                    epoch=at.epoch,
                    revoking=at.revoking,
                    topic=topic.name if topic is not None and may_describe("topic", topic.name) else "",
                )
            )
        return found


def _check_session(member: str, session: bytes) -> None:
    check_consumer_name(member)
    if len(session) != SESSION_BYTES:
        raise InvalidRequest(f"a session of {len(session)} bytes", hint=f"a session is {SESSION_BYTES} random bytes")


def group_to_wire(group: GroupDefinition) -> pb.GroupInfo:
    declared, config = SETTINGS[group.kind], group.config()
    return pb.GroupInfo(
        name=group.name,
        kind=group.kind.value,
        group_id=group.group_id,
        state=group.phase.name.lower(),
        topics=[topic for topic in group.topics if may_describe("topic", topic)],
        settings=[pb.Setting(name=name, value=setting.text(config[name])) for name, (setting, _) in declared.items()],
        start_us=group.start_us,
        paused=group.paused,
    )


def _kind(text: str) -> GroupKind:
    try:
        return GroupKind(text)
    except ValueError:
        kinds = " or ".join(kind.value for kind in GroupKind)
        raise InvalidConfig(f"{text[:100]!r} is no kind of group", hint=f"a group's kind is {kinds}") from None


def _timeout_s(timeout_ms: int) -> float:
    return min(timeout_ms / 1000 or TIMEOUT_S, TIMEOUT_S_MAX)

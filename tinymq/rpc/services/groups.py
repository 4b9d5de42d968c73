"""service Groups: makes, deletes and lists consumer groups, at any broker."""

from __future__ import annotations

from tinymq.base.errors import InvalidConfig
from tinymq.base.group_config import SETTINGS, GroupKind
from tinymq.broker.groups.definition import START_EARLIEST, Group
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.rpc.common.access import GROUP
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.rpc_method import unary

TIMEOUT_S = 10.0  # if the client gives none
TIMEOUT_S_MAX = 600.0


class GroupsService(pb_grpc.GroupsServicer):
    """service Groups."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @unary(operation="create", resource=GROUP)
    async def CreateGroup(self, request: pb.CreateGroupRequest, context: Context) -> pb.CreateGroupReply:
        groups = self._serving.running_groups()
        wanted = Group(
            name=request.name,
            kind=_kind(request.kind),
            topics=tuple(request.topics),
            start_us=request.start_us if request.HasField("start_us") else START_EARLIEST,
            settings=tuple((setting.name, setting.value) for setting in request.settings),
            command_id=request.command_id,
        )
        made = await groups.create(wanted, _timeout_s(request.timeout_ms), exist_ok=request.exist_ok)
        return pb.CreateGroupReply(group=group_to_wire(made))

    @unary(operation="delete", resource=GROUP)
    async def DeleteGroup(self, request: pb.DeleteGroupRequest, context: Context) -> pb.DeleteGroupReply:
        await self._serving.running_groups().delete(request.name, _timeout_s(request.timeout_ms))
        return pb.DeleteGroupReply()

    @unary(operation="describe", resource=GROUP)
    async def ListGroups(self, request: pb.ListGroupsRequest, context: Context) -> pb.ListGroupsReply:
        groups = self._serving.running_groups()
        if request.name:
            return pb.ListGroupsReply(groups=[group_to_wire(await groups.get(request.name))])
        await groups.refresh()
        return pb.ListGroupsReply(groups=map(group_to_wire, groups.known.all()))


def group_to_wire(group: Group) -> pb.GroupInfo:
    declared, config = SETTINGS[group.kind], group.config()
    return pb.GroupInfo(
        name=group.name,
        kind=group.kind.value,
        group_id=group.group_id,
        state=group.phase.name.lower(),
        topics=group.topics,
        settings=[pb.Setting(name=name, value=setting.text(config[name])) for name, (setting, _) in declared.items()],
        start_us=group.start_us,
    )


def _kind(text: str) -> GroupKind:
    try:
        return GroupKind(text)
    except ValueError:
        kinds = " or ".join(kind.value for kind in GroupKind)
        raise InvalidConfig(f"{text[:100]!r} is no kind of group", hint=f"a group's kind is {kinds}") from None


def _timeout_s(timeout_ms: int) -> float:
    return min(timeout_ms / 1000 or TIMEOUT_S, TIMEOUT_S_MAX)

"""The state machine of one partition of `__coordinator`, replicated by a Raft group.

It has the members of stream groups, transactional ids, applications of Spark's sink, and half messages. `apply` changes
only the state and the pending answers. The state is small, so each snapshot replaces the log before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from tinymq.base.errors import CorruptData, NotLeader, OutcomeUnknown, TinymqError, VersionConflict
from tinymq.base.topic_config import TopicConfig
from tinymq.base.types import GroupId, PartitionId, Position
from tinymq.broker.members.group_members import Member, Members, MembersDelta, Owned, changed
from tinymq.broker.transactions.commands import COMMAND_VERSION, Command, pack_command
from tinymq.broker.transactions.half.half_commands import HalfCommand, pack_half_command
from tinymq.broker.transactions.half.half_message import HalfMessage
from tinymq.broker.transactions.rules import Refusal
from tinymq.broker.transactions.sink_application import SinkApplication
from tinymq.broker.transactions.sink_commands import SinkCommand
from tinymq.broker.transactions.transactional_id import TransactionalId
from tinymq.broker.transactions.transactional_ids import SinkApplied, TransactionalIds
from tinymq.format.entry import Entry, Kind, NewEntry
from tinymq.proto import group_pb2 as pb
from tinymq.raft import Membership

ENTRY_VERSION = 2  # of the entries with a change of a group


class CoordinatorLog(Protocol):
    """The part of a log that a coordinator uses (tinymq.log.Log)."""

    def remove_before(self, index: int) -> None: ...


class CoordinatorGroup(Protocol):
    """The part of a Raft group that a coordinator uses (tinymq.raft.Group)."""

    @property
    def id(self) -> GroupId: ...
    @property
    def leader(self) -> int | None: ...
    @property
    def term(self) -> int: ...
    @property
    def log(self) -> CoordinatorLog: ...
    @property
    def failure(self) -> TinymqError | None: ...
    @property
    def feature_level(self) -> int: ...
    @property
    def membership(self) -> Membership: ...
    def propose(self, new: NewEntry) -> Position: ...
    def append_time_now_us(self) -> int: ...
    async def read_index(self, timeout_s: float) -> int: ...


class CoordinatorReplica:
    """One replica. `on_change` (of a group), `on_decided` (on a transactional id), `on_sink_decided`, `on_half` (on a
    half message) and `on_role` are called on the loop, and must not raise."""

    def __init__(self, name: str, address_of: Callable[[int], str | None]) -> None:
        self.name = name
        self.leading = False  # whether this replica leads and has applied the first entry of its own term
        self.closed: TinymqError | None = None
        self.on_change: Callable[[CoordinatorReplica, str], None] = lambda replica, group: None
        self.on_decided: Callable[[CoordinatorReplica, str], None] = lambda replica, transactional_id: None
        self.on_sink_decided: Callable[[CoordinatorReplica, str], None] = lambda replica, application: None
        self.on_half: Callable[[CoordinatorReplica, HalfMessage], None] = lambda replica, half: None
        self.on_role: Callable[[CoordinatorReplica], None] = lambda replica: None
        self.transactional_ids = TransactionalIds()  # only `apply` and `load` change it
        self._address_of = address_of
        self._groups: dict[str, Members] = {}
        self._group: CoordinatorGroup | None = None
        self._pending: dict[int, tuple[int, asyncio.Future[Any]]] = {}  # (term, answer) by index of entry

    @property
    def groups(self) -> Mapping[str, Members]:
        """A view of the applied state, by group."""
        return MappingProxyType(self._groups)

    @property
    def group(self) -> CoordinatorGroup:
        assert self._group is not None, "used before it was attached"
        return self._group

    def attach(self, group: CoordinatorGroup) -> None:
        self._group = group

    def configure(self, config: TopicConfig) -> None:
        """Do nothing: the state depends on no setting of the topic."""

    def check_leading(self) -> None:
        """Raises NotLeader, or the error with which the replica was closed, unless this replica leads."""
        if self.closed is not None:
            raise self.closed
        if not self.leading:
            leader = self._group.leader if self._group is not None else None
            raise NotLeader(
                f"{self.name}: broker {leader} leads" if leader else f"{self.name}: no leader known",
                leader=leader,
                leader_address=self._address_of(leader) if leader else None,
                leader_epoch=self._group.term if self._group is not None else None,
            )

    async def commit(self, name: str, state: Members, change: MembersDelta, *, remove: bool = False) -> None:
        """Commit and apply a change that was decided on `state`.

        Raises NotLeader, OutcomeUnknown, and VersionConflict if the group has a newer revision: then nothing was done.
        """
        if not await self._propose(pack_change(name, state, change, remove=remove), ENTRY_VERSION):
            raise VersionConflict(f"group {name!r} was changed by another decision")

    async def decide(self, name: str, command: Command) -> TransactionalId | Refusal | None:
        """Commit and apply a command on a transactional id.

        Returns the state after it, None if no such id is left, or why the command changed nothing. Raises NotLeader,
        QuotaExceeded (too much is uncommitted), UnsupportedVersion, OutcomeUnknown.
        """
        result: TransactionalId | Refusal | None = await self._propose(pack_command(name, command), COMMAND_VERSION)
        return result

    async def decide_sink(self, name: str, command: SinkCommand) -> SinkApplication | Refusal | None:
        """As `decide`, for an application of Spark's sink."""
        result: SinkApplication | Refusal | None = await self._propose(pack_command(name, command), COMMAND_VERSION)
        return result

    async def decide_half(self, group: str, command: HalfCommand) -> HalfMessage | Refusal:
        """Commit and apply a command on a half message of a producer group.

        Returns the half message after it, or why the command changed nothing. Raises as `decide`.
        """
        result: HalfMessage | Refusal = await self._propose(pack_half_command(group, command), COMMAND_VERSION)
        return result

    async def _propose(self, payload: bytes, version: int) -> Any:
        """Append a command, and return its result once it is applied. Raises as `decide`."""
        self.check_leading()
        position = self.group.propose(NewEntry(Kind.COMMAND, payload, version=version))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[position.index] = position.term, answer
        return await answer

    # ---- StateMachine -------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        result: Any = None
        changed_group, decided = "", None
        if entry.header.kind == Kind.COMMAND and entry.header.version == COMMAND_VERSION:
            decided = self.transactional_ids.apply(entry.payload, entry.header.append_time_us)
            result = None if decided is None else decided.result
        elif entry.header.kind == Kind.COMMAND:
            changed_group, result = self._apply(entry.payload)
        term, answer = self._pending.pop(entry.index, (0, None))
        if answer is not None and not answer.done():
            if term == entry.term:
                answer.set_result(result)
            else:  # a new leader has put its own entry at this index
                answer.set_exception(OutcomeUnknown("another leader's entry took the change's place"))
        if changed_group and result:
            self.on_change(self, changed_group)
        if decided is not None and isinstance(decided.result, HalfMessage):
            self.on_half(self, decided.result)
        elif decided is not None and decided.name:
            on_decided = self.on_sink_decided if isinstance(decided, SinkApplied) else self.on_decided
            on_decided(self, decided.name)

    def _apply(self, payload: bytes) -> tuple[str, bool]:
        """(group, whether the change counts). Bytes that do not parse change nothing, on every replica."""
        try:
            said = pb.MembersChange.FromString(payload)
        except DecodeError:
            return "", False
        state = self._groups.get(said.group, Members(said.group_id))
        if state.group_id < said.group_id:
            state = Members(said.group_id)
        if state.group_id != said.group_id or state.revision != said.revision:
            return said.group, False
        if said.remove:
            self._groups.pop(said.group, None)
            return said.group, True
        self._groups[said.group] = changed(state, _parse_change(said))
        return said.group, True

    def lead(self, term: int) -> None:
        self.leading = True
        self.on_role(self)

    def follow(self) -> None:
        self.leading = False
        pending, self._pending = self._pending, {}
        for _, answer in pending.values():
            if not answer.done():
                answer.set_exception(OutcomeUnknown(f"{self.name}: the leader changed before the change was committed"))
        self.on_role(self)

    def look(self) -> None:
        """Do nothing: this replica has no watchers."""

    def close(self, error: TinymqError) -> None:
        self.closed = error
        self.follow()

    def dump(self) -> bytes:
        groups = [_pack_members(name, self._groups[name]) for name in sorted(self._groups)]
        stored = pb.CoordinatorState(groups=groups)
        self.transactional_ids.dump_into(stored)
        return stored.SerializeToString(deterministic=True)

    def load(self, state: bytes) -> None:
        try:
            stored = pb.CoordinatorState.FromString(state)
        except DecodeError:
            raise CorruptData("a coordinator's state does not parse") from None
        self.transactional_ids.load_from(stored)
        self._groups = {said.group: _parse_members(said) for said in stored.groups}
        for name in self._groups:
            self.on_change(self, name)

    def retain(self) -> None:
        """Remove the log before its newest durable snapshot. The retention timer calls this on every replica."""
        if self._group is not None and self.closed is None and self._group.failure is None:
            self._group.log.remove_before(1 << 62)


# ---- the bytes ----------------------------------------------------------------------------------------------


def pack_change(name: str, state: Members, change: MembersDelta, *, remove: bool) -> bytes:
    said = pb.MembersChange(
        group=name, group_id=state.group_id, revision=state.revision, remove=remove, counter=change.counter
    )
    for key, member in sorted(change.members.items()):
        if member is None:
            said.left.append(key)
        else:
            said.members.append(_pack_member(key, member))
    for place, owned in sorted(change.owned.items()):
        if owned is None:
            said.freed.add(topic_id=place.topic_id, partition=place.partition)
        else:
            said.owned.append(_pack_owned(place, owned))
    return said.SerializeToString(deterministic=True)


def _parse_change(said: pb.MembersChange) -> MembersDelta:
    members: dict[str, Member | None] = {m.name: _parse_member(m) for m in said.members}
    owned: dict[PartitionId, Owned | None] = {PartitionId(o.topic_id, o.partition): _parse_owned(o) for o in said.owned}
    return MembersDelta(
        members=members | dict.fromkeys(said.left),
        owned=owned | {PartitionId(place.topic_id, place.partition): None for place in said.freed},
        counter=said.counter,
    )


def _pack_members(name: str, state: Members) -> pb.MembersState:
    return pb.MembersState(
        group=name,
        group_id=state.group_id,
        revision=state.revision,
        counter=state.counter,
        members=[_pack_member(key, state.members[key]) for key in sorted(state.members)],
        owned=[_pack_owned(place, state.owned[place]) for place in sorted(state.owned)],
    )


def _parse_members(said: pb.MembersState) -> Members:
    return Members(
        group_id=said.group_id,
        revision=said.revision,
        counter=said.counter,
        members={m.name: _parse_member(m) for m in said.members},
        owned={PartitionId(o.topic_id, o.partition): _parse_owned(o) for o in said.owned},
    )


def _pack_member(name: str, member: Member) -> pb.MemberState:
    return pb.MemberState(
        name=name,
        session=member.session,
        client_id=member.client_id,
        static=member.static,
        replaced=member.replaced,
        rack=member.rack,
    )


def _parse_member(said: pb.MemberState) -> Member:
    return Member(said.session, said.client_id, said.static, tuple(said.replaced), said.rack)


def _pack_owned(place: PartitionId, owned: Owned) -> pb.OwnedState:
    return pb.OwnedState(
        topic_id=place.topic_id,
        partition=place.partition,
        member=owned.member,
        epoch=owned.epoch,
        revoking=owned.revoking,
    )


def _parse_owned(said: pb.OwnedState) -> Owned:
    return Owned(said.member, said.epoch, said.revoking)

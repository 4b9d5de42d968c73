"""The state machine of one partition of `__coordinator`: the members of its groups, replicated by a Raft group.

`apply` changes only the state and the pending changes. The state is small, so each snapshot replaces the log before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from google.protobuf.message import DecodeError

from tinymq.base.errors import CorruptData, NotLeader, OutcomeUnknown, TinymqError, VersionConflict
from tinymq.base.topic_config import TopicConfig
from tinymq.base.types import GroupId, Position
from tinymq.broker.members.group_members import Change, Member, Members, Owned, PartitionId, changed
from tinymq.format.entry import Entry, Kind, NewEntry
from tinymq.proto import group_pb2 as pb

ENTRY_VERSION = 2


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
    def propose(self, new: NewEntry) -> Position: ...
    async def read_index(self, timeout_s: float) -> int: ...


class CoordinatorReplica:
    """One replica. `on_change` and `on_role` are called on the loop, and must not raise."""

    def __init__(self, name: str, address_of: Callable[[int], str | None]) -> None:
        self.name = name
        self.leading = False  # whether this replica leads and has applied the first entry of its own term
        self.closed: TinymqError | None = None
        self.on_change: Callable[[CoordinatorReplica, str], None] = lambda replica, group: None
        self.on_role: Callable[[CoordinatorReplica], None] = lambda replica: None
        self._address_of = address_of
        self._groups: dict[str, Members] = {}
        self._group: CoordinatorGroup | None = None
        self._pending: dict[int, tuple[int, asyncio.Future[bool]]] = {}  # (term, answer) by index of entry

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

    async def commit(self, name: str, state: Members, change: Change, *, remove: bool = False) -> None:
        """Commit and apply a change that was decided on `state`.

        Raises NotLeader, OutcomeUnknown, and VersionConflict if the group has a newer revision: then nothing was done.
        """
        self.check_leading()
        payload = pack_change(name, state, change, remove=remove)
        position = self.group.propose(NewEntry(Kind.COMMAND, payload, version=ENTRY_VERSION))
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pending[position.index] = position.term, answer
        if not await answer:
            raise VersionConflict(f"group {name!r} was changed by another decision")

    # ---- StateMachine -------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        done = False
        name = ""
        if entry.header.kind == Kind.COMMAND:
            name, done = self._apply(entry.payload)
        term, answer = self._pending.pop(entry.index, (0, None))
        if answer is not None and not answer.done():
            if term == entry.term:
                answer.set_result(done)
            else:  # a new leader has put its own entry at this index
                answer.set_exception(OutcomeUnknown("another leader's entry took the change's place"))
        if done:
            self.on_change(self, name)

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
        return pb.CoordinatorState(groups=groups).SerializeToString(deterministic=True)

    def load(self, state: bytes) -> None:
        try:
            stored = pb.CoordinatorState.FromString(state)
        except DecodeError:
            raise CorruptData("a coordinator's state does not parse") from None
        self._groups = {said.group: _parse_members(said) for said in stored.groups}
        for name in self._groups:
            self.on_change(self, name)

    def retain(self) -> None:
        """Remove the log before its newest durable snapshot. The retention timer calls this on every replica."""
        if self._group is not None and self.closed is None and self._group.failure is None:
            self._group.log.remove_before(1 << 62)


# ---- the bytes ----------------------------------------------------------------------------------------------


def pack_change(name: str, state: Members, change: Change, *, remove: bool) -> bytes:
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


def _parse_change(said: pb.MembersChange) -> Change:
    members: dict[str, Member | None] = {m.name: _parse_member(m) for m in said.members}
    owned: dict[PartitionId, Owned | None] = {PartitionId(o.topic_id, o.partition): _parse_owned(o) for o in said.owned}
    return Change(
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

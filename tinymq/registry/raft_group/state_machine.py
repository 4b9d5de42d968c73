"""The registry's state machine on its Raft group: applies commands, and answers those that this leader proposed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from google.protobuf.message import DecodeError

from tinymq.base.errors import CorruptData, InvalidRequest, NotLeader, OutcomeUnknown
from tinymq.base.types import Position
from tinymq.format.entry import Entry, Kind, NewEntry
from tinymq.format.feature_level import check, entry_version
from tinymq.proto import registry_pb2 as pb
from tinymq.raft.rules.membership import parse_membership
from tinymq.registry.state.commands import level_of
from tinymq.registry.state.effects import Effect, Reloaded
from tinymq.registry.state.state import RegistryState, begin_recovery_epoch


class CommandGroup(Protocol):
    """The part of a Raft group that the registry uses (tinymq.raft.Group)."""

    @property
    def leader(self) -> int | None: ...
    @property
    def term(self) -> int: ...
    def propose(self, new: NewEntry, *, raises_level: bool) -> Position: ...
    async def read_index(self, timeout_s: float) -> int: ...


class RegistryMachine:
    """A state machine for the Raft host. `apply` changes only the state and pending replies."""

    def __init__(self) -> None:
        self.state = RegistryState()
        self.leading = False
        self.on_applied: Callable[[Sequence[Effect]], None] | None = None
        self.on_role: Callable[[bool], None] | None = None
        self._group: CommandGroup | None = None
        self._pending: dict[int, tuple[int, asyncio.Future[pb.Reply]]] = {}  # (term, reply) by index; of this leader

    def attach(self, group: CommandGroup) -> None:
        self._group = group

    def append(self, payload: bytes, *, raises_level: bool = False) -> Position:
        """Append a packed command without waiting for its reply. Raises NotLeader, QuotaExceeded; InvalidRequest and
        UnsupportedVersion for a command that some broker may not understand.

        `raises_level`: the command raises the feature level, and this broker has checked, as the leader, that every
        member knows the new one. A leader never relies on another broker's check.
        """
        group = self._leading_group()
        try:
            command = pb.Command.FromString(payload)
        except DecodeError:
            raise InvalidRequest("not a command of the registry") from None
        needed = level_of(command)
        if not raises_level:
            check(f"the command {command.WhichOneof('command')}", needed, self.state.feature_level)
        version = entry_version(Kind.COMMAND, needed)
        return group.propose(NewEntry(Kind.COMMAND, payload, version=version), raises_level=raises_level)

    async def read_index(self, timeout_s: float) -> int:
        """Return once the state has every change that any leader acknowledged before this call.

        A majority confirms that no other leader exists (hazard 13). Raises NotLeader, DeadlineExceeded.
        """
        return await self._leading_group().read_index(timeout_s)

    def _leading_group(self) -> CommandGroup:
        group = self._group
        if group is None or not self.leading:
            raise NotLeader(
                "this broker does not lead the metadata group",
                leader=group.leader if group else None,
                leader_epoch=group.term if group else None,
            )
        return group

    def propose(self, payload: bytes, *, raises_level: bool = False) -> asyncio.Future[pb.Reply]:
        """Append a packed command. The future ends with its reply once applied, or OutcomeUnknown. Raises as append."""
        position = self.append(payload, raises_level=raises_level)
        reply: asyncio.Future[pb.Reply] = asyncio.get_running_loop().create_future()
        self._pending[position.index] = (position.term, reply)
        return reply

    def apply(self, entry: Entry) -> None:
        """Apply a committed entry of any kind; entries come in order. Never raises."""
        reply: pb.Reply | None = None
        effects: Sequence[Effect] = ()
        if entry.header.kind == Kind.COMMAND:
            _, reply, effects = self.state.apply_bytes(entry.payload)
        recovered = entry.header.kind == Kind.CONFIG and self._begin_recovery_epoch(entry.payload)
        term, answer = self._pending.pop(entry.index, (0, None))
        if answer is not None and not answer.done():
            # A new leader may have put its own entry at this index. The reply is then not that of our command.
            if term == entry.term and reply is not None:
                answer.set_result(reply)
            else:
                answer.set_exception(OutcomeUnknown("another leader's entry took the command's place"))
        if (reply is not None or recovered) and self.on_applied is not None:
            self.on_applied(effects)

    def _begin_recovery_epoch(self, config: bytes) -> bool:
        """Note a committed CONFIG entry. After a recovery, no number that a lost command gave out is given again."""
        try:
            return begin_recovery_epoch(self.state, parse_membership(config).recovery_epoch)
        except CorruptData:  # a committed entry that no build could read means nothing, on every replica
            return False

    def lead(self, term: int) -> None:
        self.leading = True
        if self.on_role is not None:
            self.on_role(True)

    def follow(self) -> None:
        self.leading = False
        pending, self._pending = self._pending, {}
        for _, reply in pending.values():
            if not reply.done():
                reply.set_exception(OutcomeUnknown("the metadata leader changed before the command was committed"))
        if self.on_role is not None:
            self.on_role(False)

    def dump(self) -> bytes:
        return self.state.dump()

    def load(self, state: bytes) -> None:
        """Replace the state by a snapshot. Raises CorruptData, and then nothing has changed."""
        self.state.load(state)
        if self.on_applied is not None:
            self.on_applied([Reloaded()])

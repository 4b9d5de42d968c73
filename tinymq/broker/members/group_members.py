"""The replicated state of one stream group: its members, which of them owns which partition, and the newest epoch.

Values only. A `MembersDelta` leads from one revision of the state to the next. The coordinator decides it by rules.py,
and every replica of its partition applies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tinymq.base.types import PartitionId

COUNTER_BITS = 32  # an epoch is the group's id << 32 | a counter


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer of the group. Its name is its instance id if it has one, otherwise the id of its session."""

    session: bytes  # id of the consumer's present session; each epoch is given to one session only
    client_id: str = ""
    static: bool = False  # whether it has an instance id, so that its partitions wait for its return
    replaced: tuple[bytes, ...] = ()  # earlier sessions of this instance id, oldest first; all of them are fenced
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Owned:
    """The owner of a partition."""

    member: str
    epoch: int
    revoking: bool = False  # whether the coordinator has asked the owner to let go


@dataclass(frozen=True, slots=True)
class Members:
    """The replicated state of one group."""

    group_id: int = 0  # the registry's version when the group was made
    revision: int = 0  # number of changes so far
    counter: int = 0  # lower 32 bits of the newest epoch; never falls within one group id
    members: Mapping[str, Member] = field(default_factory=dict)
    owned: Mapping[PartitionId, Owned] = field(default_factory=dict)  # a partition that is not here is free

    @property
    def epoch(self) -> int:
        """The newest epoch."""
        return self.group_id << COUNTER_BITS | self.counter

    def of(self, member: str) -> dict[PartitionId, Owned]:
        """The partitions of one member."""
        return {place: owned for place, owned in self.owned.items() if owned.member == member}


@dataclass(frozen=True, slots=True)
class MembersDelta:
    """A step from one revision to the next. A value None in `members` or `owned` removes the entry."""

    members: Mapping[str, Member | None] = field(default_factory=dict)
    owned: Mapping[PartitionId, Owned | None] = field(default_factory=dict)
    counter: int = 0  # 0: no change

    def __bool__(self) -> bool:
        return bool(self.members or self.owned or self.counter)


def changed(state: Members, change: MembersDelta) -> Members:
    """The next revision."""
    members = {**state.members, **change.members}
    owned = {**state.owned, **change.owned}
    return replace(
        state,
        revision=state.revision + 1,
        counter=max(state.counter, change.counter),
        members={name: member for name, member in members.items() if member is not None},
        owned={place: at for place, at in owned.items() if at is not None},
    )

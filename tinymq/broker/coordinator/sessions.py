"""The newest heartbeats of a group's members: in the coordinator's memory only, and lost with its leadership.

Nothing is lost for good, because each heartbeat repeats all of it. Pure, except for the futures of waiting members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tinymq.base.errors import QuotaExceeded
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator.rules import MemberHeartbeat
from tinymq.broker.members.group_members import Members

MEMBERS_MAX = 1000  # of one group


@dataclass(slots=True)
class LastHeartbeat:
    """The newest heartbeat of a member."""

    heard_s: float
    session: bytes = b""
    number: int = 0


@dataclass(slots=True)
class GroupSessions:
    """The sessions of one group, since this broker leads its coordinator."""

    since_s: float  # monotonic time at which this broker began to lead; members in the state count as heard then
    sessions: dict[str, LastHeartbeat] = field(default_factory=dict)
    asked_s: dict[PartitionId, tuple[int, float]] = field(default_factory=dict)  # (epoch, since when)
    deciding: asyncio.Lock = field(default_factory=asyncio.Lock)
    due: bool = True  # the assignment may differ from its target: look at the group
    # Calls of members that wait for a change, in their order: a set of futures would be in the order of addresses.
    waiting: dict[asyncio.Future[None], None] = field(default_factory=dict)

    def hear(self, beat: MemberHeartbeat, state: Members, now_s: float) -> bool:
        """Note a heartbeat. Returns False, and ignores it, if a later one of the same session came before it.

        Raises QuotaExceeded if the group has no place for another member.
        """
        before = self.sessions.get(beat.name)
        if before is None and beat.name not in state.members and len(self.sessions) >= MEMBERS_MAX:
            raise QuotaExceeded(f"the group has {MEMBERS_MAX} members")
        if before is not None and before.session == beat.member.session and beat.number < before.number:
            return False
        self.sessions[beat.name] = LastHeartbeat(now_s, beat.member.session, beat.number)
        return True

    def silences(self, now_s: float) -> Callable[[str], float]:
        """How long each member has been silent, in seconds."""

        def silent_s(member: str) -> float:
            session = self.sessions.get(member)
            return now_s - (session.heard_s if session is not None else self.since_s)

        return silent_s

    def late(self, state: Members, now_s: float, revoke_s: float) -> dict[PartitionId, int]:
        """The partitions, with epochs, whose owners were asked to let go `revoke_s` ago."""
        asked = {place: at.epoch for place, at in state.owned.items() if at.revoking}
        self.asked_s = {
            place: before if (before := self.asked_s.get(place, (0, 0.0)))[0] == epoch else (epoch, now_s)
            for place, epoch in asked.items()
        }
        return {place: epoch for place, (epoch, since_s) in self.asked_s.items() if now_s - since_s >= revoke_s}

    def forget(self, members: Mapping[str, object], now_s: float, rejoin_s: float) -> None:
        """Forget members that left or never joined, once none of their heartbeats can still be under way."""
        for name in [n for n, s in self.sessions.items() if n not in members and now_s - s.heard_s >= 2 * rejoin_s]:
            del self.sessions[name]

    def wake(self) -> None:
        """Wake all calls that wait for a change."""
        waiting, self.waiting = self.waiting, {}
        for each in waiting:
            if not each.done():
                each.set_result(None)

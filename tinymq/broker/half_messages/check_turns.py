"""Which half messages are being checked, and which members of producer groups wait for one: in a leader's memory.

A failover loses all of it, and nothing with it: members ask again, and a check that was under way is due again. Pure,
except for the futures of members that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from itertools import islice

from tinymq.base.errors import QuotaExceeded
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.half.half_message import CHECK_EVERY_US, HalfMessage, is_due

ANSWER_S = CHECK_EVERY_US / 1e6  # for a member to answer; then another one is asked
SEEN_S = 60.0  # after its newest call, a member does not count any more
MEMBERS_MAX = 1000  # of one producer group
GROUPS_MAX = 10_000  # with members


class CheckTurns:
    """One object per replica that leads."""

    def __init__(self) -> None:
        self._until_s: dict[TransactionId, float] = {}  # monotonic time before which no member is asked (again)
        self._members: dict[str, dict[bytes, float]] = {}  # by group: time of each member's newest call
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}  # in the order in which they came

    # ---- members

    def see(self, group: str, member: bytes, now_s: float) -> None:
        """Note a call of a member. Raises QuotaExceeded if the group, or this broker, has no place for another one."""
        members = self._members.get(group, {})
        if member not in members and (len(members) >= MEMBERS_MAX or len(self._members) >= GROUPS_MAX):
            raise QuotaExceeded(f"the producer group {group!r} has {len(members)} checkers", hint="stop some of them")
        self._members.setdefault(group, members)[member] = now_s

    def members(self, group: str, now_s: float) -> int:
        """How many members wait for checks, or did shortly ago."""
        return sum(now_s - seen_s < SEEN_S for seen_s in self._members.get(group, {}).values())

    def forget(self, halves: Container[TransactionId], now_s: float) -> None:
        """Forget members that are gone, and the turns of half messages that are over."""
        self._until_s = {each: until_s for each, until_s in self._until_s.items() if each in halves}
        for group, members in list(self._members.items()):
            left = {member: seen_s for member, seen_s in members.items() if now_s - seen_s < SEEN_S}
            if left:
                self._members[group] = left
            else:
                del self._members[group]

    # ---- turns

    def take(self, halves: Iterable[HalfMessage], now_us: int, now_s: float, most: int) -> list[HalfMessage]:
        """Give the caller up to `most` half messages that are due and that no other member is checking."""
        taken = list(islice((half for half in halves if self.is_free(half, now_us, now_s)), most))
        for half in taken:
            self._until_s[half.transaction] = now_s + ANSWER_S
        return taken

    def is_free(self, half: HalfMessage, now_us: int, now_s: float) -> bool:
        """Whether some member can be asked about a half message now."""
        return is_due(half, now_us) and self._until_s.get(half.transaction, now_s) <= now_s

    def pause(self, transaction: TransactionId, until_s: float) -> None:
        """Ask nobody about a half message before this time: it could not be shown to a member."""
        self._until_s[transaction] = until_s

    def end(self, transaction: TransactionId) -> None:
        """A check was answered."""
        self._until_s.pop(transaction, None)

    # ---- waiting

    def wait(self, group: str) -> asyncio.Future[None]:
        """A future that ends when the group may have something to check."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, {})[waiting] = None
        return waiting

    def stop_waiting(self, group: str, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(group, {})
        waiting.pop(future, None)
        if not waiting:
            self._waiting.pop(group, None)

    @property
    def awaited(self) -> list[str]:
        """The groups with members that wait now."""
        return list(self._waiting)

    def wake(self, group: str) -> None:
        for each in self._waiting.pop(group, ()):
            if not each.done():
                each.set_result(None)

    def wake_all(self) -> None:
        """This broker's part has changed."""
        for group in self.awaited:
            self.wake(group)

"""The rules of a member of a stream group, as a value without I/O: which partitions it owns, until when, and its
heartbeats.

Each rule closes a way to hand a partition's records out twice, or to stop reading a partition (docs/groups.md):

- The member owns nothing once `rejoin_ms` has passed since it *sent* the last heartbeat that was answered. Partitions
  that it lost so stay lost: a late answer extends the time, and gives nothing back.
- Each heartbeat has a rising number and the full list of what the member owns.
- A heartbeat names the newest epoch that was taken or dropped. Assignments do not arrive as answers to heartbeats.
- An assignment of an epoch that was taken or dropped before is not taken again.
- An assignment of a coordinator that was replaced changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tinymq.client.group.fetched_records import TopicPartition


class Ownership(NamedTuple):
    """The proof that a member owns a partition."""

    topic_id: bytes
    epoch: int


class Assigned(NamedTuple):
    """A partition of an assignment."""

    place: TopicPartition  # its topic is "" if the broker that answered does not know the topic yet
    grant: Ownership
    revoking: bool  # the member is asked to let go


class Beat(NamedTuple):
    """A heartbeat to be sent."""

    number: int
    sent_s: float
    owned: dict[TopicPartition, Ownership]
    taken: int
    fenced_at: int
    joined: bool


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """The effects of an assignment: partitions to drop, to let go, and to read."""

    lost: Sequence[TopicPartition] = ()
    revoke: Sequence[tuple[TopicPartition, Ownership]] = ()
    take: Sequence[tuple[TopicPartition, Ownership]] = ()
    ignored: bool = False  # it comes from a coordinator that was replaced: ask again


class MemberState:
    """One session of a member. Times are in seconds of the member's own monotonic clock."""

    def __init__(self, rejoin_s: float) -> None:
        self.owned: dict[TopicPartition, Ownership] = {}
        self.digest = 0  # of the newest assignment
        self._rejoin_s = rejoin_s
        self._until_s = 0.0
        self._number = 0
        self._taken = 0
        self._fenced_at = 0
        self._joined = False
        self._term = 0  # the highest of a coordinator that answered
        self._revoking: set[TopicPartition] = set()

    @property
    def until_s(self) -> float:
        """The member owns nothing from then on."""
        return self._until_s

    def alive(self, now_s: float) -> bool:
        """Whether the member may hand out records now. Callable from any thread."""
        return now_s < self._until_s

    def expired(self, now_s: float) -> list[TopicPartition]:
        """Drop everything if the time is over; return what was dropped."""
        return [] if self.alive(now_s) else self.drop(list(self.owned))

    def drop(self, places: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Give up these partitions; return those that were owned."""
        dropped = [place for place in places if self.owned.pop(place, None) is not None]
        self._revoking.difference_update(dropped)
        return dropped

    def let_go(self, place: TopicPartition, grant: Ownership, *, fenced_at: int = 0) -> None:
        """Give up a partition that is owned by this grant. It stays if it was assigned again meanwhile.

        `fenced_at`: the epoch that its cursor has, if that is above the member's.
        """
        if self.owned.get(place) == grant:
            self.drop([place])
        self._fenced_at = max(self._fenced_at, fenced_at)

    def end(self) -> None:
        """Own nothing from now on."""
        self._until_s = 0.0
        self.drop(list(self.owned))

    # ---- heartbeats -------------------------------------------------------------------------------------------

    def beat(self, now_s: float) -> Beat:
        """The heartbeat to send now."""
        self._number += 1
        return Beat(self._number, now_s, dict(self.owned), self._taken, self._fenced_at, self._joined)

    def answered(
        self, beat: Beat, lost: Collection[tuple[bytes, int]], term: int, now_s: float
    ) -> list[TopicPartition]:
        """Take a heartbeat's answer. `lost`: (topic id, partition) of its list that are not the member's.

        Returns the partitions that the member no longer owns.
        """
        # First drop everything if the time was over before the answer came: the coordinator may have assigned the
        # partitions to other members meanwhile. Only then extend the time.
        dropped = self.expired(now_s)
        self._joined = True
        self._term = max(self._term, term)
        self._until_s = max(self._until_s, beat.sent_s + self._rejoin_s)
        # A partition that was assigned again since the list was sent is not the one that the answer is about.
        gone = [
            place
            for place, grant in beat.owned.items()
            if (grant.topic_id, place.partition) in lost and self.owned.get(place) == grant
        ]
        return dropped + self.drop(gone)

    # ---- assignments ------------------------------------------------------------------------------------------

    def assigned(self, assignment: Sequence[Assigned], term: int, digest: int, now_s: float) -> AssignmentChange:
        """Take an assignment: all that the coordinator has committed for this member."""
        if not self.is_current(term):
            return AssignmentChange(lost=self.expired(now_s), ignored=True)
        self._term, self.digest = term, digest
        before, lost = self._taken, self.expired(now_s)
        self._taken = max([before, *(each.grant.epoch for each in assignment)])
        listed = {(each.grant, each.place.partition) for each in assignment}
        lost += self.drop([p for p, grant in self.owned.items() if (grant, p.partition) not in listed])
        leaving = [each for each in assignment if each.revoking and self._begins_to_leave(each.place)]
        # Out of time, the member drops what it would take, and the coordinator assigns it again.
        take = [
            (each.place, each.grant)
            for each in assignment
            if self.alive(now_s) and not each.revoking and each.place.topic and self.is_fresh(each, before)
        ]
        self.owned.update(take)
        return AssignmentChange(lost, [(each.place, each.grant) for each in leaving], take)

    def is_fresh(self, each: Assigned, before: int) -> bool:
        """Whether a partition is assigned and not owned already. `before`: the newest epoch that was taken or dropped
        before."""
        return each.place not in self.owned and each.grant.epoch > before

    def is_current(self, term: int) -> bool:
        """Whether an assignment comes from a coordinator that no other has replaced yet, as far as we know."""
        return term >= self._term

    def _begins_to_leave(self, place: TopicPartition) -> bool:
        begins = place in self.owned and place not in self._revoking
        if begins:
            self._revoking.add(place)
        return begins

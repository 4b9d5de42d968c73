"""The decisions of a coordinator on one stream group. Pure: each takes the group's state and returns a change of it.

A partition moves in three steps. The coordinator asks the owner to let go (`revoking`). The owner lets go: its next
heartbeat does not list the partition, which is then free. The coordinator gives the partition to the new owner, under a
higher epoch. Each step is committed before any member learns of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tinymq.base.errors import Fenced
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator.assignors import Assign
from tinymq.broker.members.group_members import COUNTER_BITS, Member, Members, MembersDelta, Owned

REPLACED_MAX = 4  # remembered earlier sessions of one instance id
# the bound of a counter in a member's message; the coordinator's own counters have twice the range
CLAIMED_MAX = 1 << (COUNTER_BITS - 1)


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """One heartbeat of a member."""

    name: str
    member: Member
    number: int
    owned: Mapping[PartitionId, int]  # epochs
    taken: int = 0  # the newest epoch among the assignments that the member has taken or dropped
    fenced_at: int = 0  # an epoch above its own that the member found in a cursor; 0: none
    joined: bool = False  # whether a heartbeat of this session was answered before
    leave: bool = False


def heard(state: Members, beat: MemberHeartbeat) -> MembersDelta:
    """The change that follows from a member's heartbeat.

    Raises Fenced if a later session has taken over the instance id.
    """
    present = state.members.get(beat.name)
    counter = seen_epoch(state, beat)
    owned: dict[PartitionId, Owned | None] = {}
    member = beat.member
    if present is not None and present.session != member.session:
        check_not_replaced(present, beat)
        member = replace(member, replaced=(*present.replaced, present.session)[-REPLACED_MAX:])
        # A member with an instance id has restarted. The new session gets the partitions at once, under new epochs.
        for place, at in sorted(state.of(beat.name).items()):
            counter += not at.revoking
            owned[place] = None if at.revoking else Owned(beat.name, state.group_id << COUNTER_BITS | counter)
    elif present is not None:
        member = replace(member, replaced=present.replaced)
        owned = dict.fromkeys(released(state, beat))
    return MembersDelta(
        members={} if present == member else {beat.name: member},
        owned=owned,
        counter=counter if counter > state.counter else 0,
    )


def released(state: Members, beat: MemberHeartbeat) -> list[PartitionId]:
    """The member's partitions that its heartbeat does not list any more.

    The member may have sent the heartbeat before it received its newest partitions. Partitions whose epoch is above
    `beat.taken` therefore do not count as released.
    """
    mine = state.of(beat.name).items()
    return [place for place, at in mine if beat.owned.get(place) != at.epoch and at.epoch <= beat.taken]


def seen_epoch(state: Members, beat: MemberHeartbeat) -> int:
    """The counter above which the next epoch has to lie: that of the highest epoch that the state or the member knows.

    The member knows a higher one if the coordinator's log was lost. Epochs of another group id are ignored.
    """
    seen = [epoch for epoch in (beat.taken, beat.fenced_at) if epoch >> COUNTER_BITS == state.group_id]
    claimed = [epoch & ((1 << COUNTER_BITS) - 1) for epoch in seen]
    return max([state.counter, *(counter for counter in claimed if counter < CLAIMED_MAX)])


def check_not_replaced(present: Member, beat: MemberHeartbeat) -> None:
    """Raise Fenced if the heartbeat's session ended when the session of `present` began.

    The heartbeat's session is the earlier one if it was answered before (`joined`), or if `present` has replaced it.
    """
    if beat.joined or beat.member.session in present.replaced:
        hint = "one process for each instance_id; the later one goes on"
        raise Fenced(f"another session has the instance id {beat.name!r}", hint=hint)


def lost(state: Members, name: str, session: bytes, owned: Mapping[PartitionId, int]) -> list[PartitionId]:
    """The partitions that a member lists although it does not own them."""
    member = state.members.get(name)
    if member is None or member.session != session:
        return list(owned)
    mine = state.of(name)
    return [place for place, epoch in owned.items() if place not in mine or mine[place].epoch != epoch]


def closed(state: Members, name: str, session: bytes) -> MembersDelta:
    """The change when a session leaves. A later session of the same instance id stays in the group."""
    present = state.members.get(name)
    return left(state, [name]) if present is not None and present.session == session else MembersDelta()


def left(state: Members, names: Collection[str]) -> MembersDelta:
    """The change that removes these members, because they left or their sessions ended."""
    gone = {name: None for name in names if name in state.members}
    return MembersDelta(members=gone, owned={place: None for place, at in state.owned.items() if at.member in gone})


def freed(state: Members, asked: Mapping[PartitionId, int]) -> MembersDelta:
    """The change that frees partitions whose owners were asked to let go and did not in time.

    `asked` has the epoch under which each owner was asked. The next owner's higher epoch fences the old one.
    """
    owned = state.owned.items()
    return MembersDelta(owned={place: None for place, at in owned if at.revoking and asked.get(place) == at.epoch})


def rebalanced(state: Members, places: Sequence[PartitionId], assign: Assign) -> MembersDelta:
    """The next step towards the target assignment: give out free partitions, and ask wrong owners to let go."""
    # A partition that is being taken back has no owner to keep it.
    present = {place: at.member for place, at in state.owned.items() if not at.revoking}
    target = assign(sorted(state.members), places, present)
    counter = state.counter
    owned: dict[PartitionId, Owned | None] = {}
    for place, member in sorted(target.items()):
        at = state.owned.get(place)
        if at is None:
            counter += 1
            owned[place] = Owned(member, state.group_id << COUNTER_BITS | counter)
        elif at.member != member and not at.revoking:
            owned[place] = Owned(at.member, at.epoch, revoking=True)
    for place in state.owned.keys() - set(places):  # the topic or the partition was deleted
        owned[place] = None
    return MembersDelta(owned=owned, counter=counter if counter > state.counter else 0)


def expired(state: Members, silent_s: Callable[[str], float], rejoin_s: float, static_return_s: float) -> list[str]:
    """The members whose sessions end now: silent for `rejoin_s`, or for `static_return_s` with an instance id."""
    return [
        name
        for name, member in state.members.items()
        if silent_s(name) >= (max(rejoin_s, static_return_s) if member.static else rejoin_s)
    ]

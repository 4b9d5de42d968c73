"""The decisions of a coordinator on one stream group. Pure: a state and a list of a member in, a change out.

A partition moves in three steps. The owner is asked to let go (`revoking`); it lets go, and its next list lacks the
partition, so that the partition is free; the new owner is told, under a higher epoch. Each step is committed before
anybody is told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tinymq.base.errors import Fenced
from tinymq.broker.coordinator.assignors import Assign
from tinymq.broker.members.group_members import COUNTER_BITS, Change, Member, Members, Owned, Place

REPLACED_MAX = 4  # sessions of one instance id that are remembered
CLAIMED_MAX = 1 << (COUNTER_BITS - 1)  # of a counter that a member names: the coordinator's own has the other half


@dataclass(frozen=True, slots=True)
class Heard:
    """One heartbeat of a member."""

    name: str
    member: Member
    number: int
    owned: Mapping[Place, int]  # epochs
    taken: int = 0  # the newest epoch of an assignment that the member has taken or dropped
    fenced_at: int = 0  # an epoch that the member found in a cursor, above its own; 0: none
    joined: bool = False  # a heartbeat of this session was answered
    leave: bool = False


def heard(state: Members, beat: Heard) -> Change:
    """The change that a member's list leads to.

    Raises Fenced for a session whose instance id a later session has.
    """
    present = state.members.get(beat.name)
    counter = seen_epoch(state, beat)
    owned: dict[Place, Owned | None] = {}
    member = beat.member
    if present is not None and present.session != member.session:
        check_not_replaced(present, beat)
        member = replace(member, replaced=(*present.replaced, present.session)[-REPLACED_MAX:])
        # Another life of a member with an instance id: it gets its partitions at once, under epochs of its own.
        for place, at in sorted(state.of(beat.name).items()):
            counter += not at.revoking
            owned[place] = None if at.revoking else Owned(beat.name, state.group_id << COUNTER_BITS | counter)
    elif present is not None:
        member = replace(member, replaced=present.replaced)
        owned = dict.fromkeys(released(state, beat))
    return Change(
        members={} if present == member else {beat.name: member},
        owned=owned,
        counter=counter if counter > state.counter else 0,
    )


def released(state: Members, beat: Heard) -> list[Place]:
    """The member's partitions that its list lacks.

    The list may have been sent before an assignment arrived. It says nothing of partitions whose epoch is above the
    newest that the member has taken.
    """
    mine = state.of(beat.name).items()
    return [place for place, at in mine if beat.owned.get(place) != at.epoch and at.epoch <= beat.taken]


def seen_epoch(state: Members, beat: Heard) -> int:
    """The counter to go on above: no lower than that of any epoch of this group that the member has seen.

    Members have seen higher ones after a loss of the coordinator's log. Epochs of another group id say nothing.
    """
    seen = [epoch for epoch in (beat.taken, beat.fenced_at) if epoch >> COUNTER_BITS == state.group_id]
    claimed = [epoch & ((1 << COUNTER_BITS) - 1) for epoch in seen]
    return max([state.counter, *(counter for counter in claimed if counter < CLAIMED_MAX)])


def check_not_replaced(present: Member, beat: Heard) -> None:
    """Raise Fenced if the session ended when `present` began. Otherwise it is the later one of the two."""
    if beat.joined or beat.member.session in present.replaced:
        hint = "one process for each instance_id; the later one goes on"
        raise Fenced(f"another session has the instance id {beat.name!r}", hint=hint)


def lost(state: Members, name: str, session: bytes, owned: Mapping[Place, int]) -> list[Place]:
    """The partitions of a member's list that are not the member's."""
    member = state.members.get(name)
    if member is None or member.session != session:
        return list(owned)
    mine = state.of(name)
    return [place for place, epoch in owned.items() if place not in mine or mine[place].epoch != epoch]


def closed(state: Members, name: str, session: bytes) -> Change:
    """The change when a session leaves. The later session of its instance id stays."""
    present = state.members.get(name)
    return left(state, [name]) if present is not None and present.session == session else Change()


def left(state: Members, names: Collection[str]) -> Change:
    """The change when these members are gone: their sessions ended, or they left."""
    gone = {name: None for name in names if name in state.members}
    return Change(members=gone, owned={place: None for place, at in state.owned.items() if at.member in gone})


def freed(state: Members, asked: Mapping[Place, int]) -> Change:
    """The change when owners that were asked, by epoch, have not let go in time. A higher epoch will fence them."""
    owned = state.owned.items()
    return Change(owned={place: None for place, at in owned if at.revoking and asked.get(place) == at.epoch})


def rebalanced(state: Members, places: Sequence[Place], assign: Assign) -> Change:
    """The next step towards the assignment: free partitions are given, and owners of others are asked to let go."""
    # A partition that is being taken back has no owner to keep it.
    present = {place: at.member for place, at in state.owned.items() if not at.revoking}
    target = assign(sorted(state.members), places, present)
    counter = state.counter
    owned: dict[Place, Owned | None] = {}
    for place, member in sorted(target.items()):
        at = state.owned.get(place)
        if at is None:
            counter += 1
            owned[place] = Owned(member, state.group_id << COUNTER_BITS | counter)
        elif at.member != member and not at.revoking:
            owned[place] = Owned(at.member, at.epoch, revoking=True)
    for place in state.owned.keys() - set(places):  # the topic or the partition is gone
        owned[place] = None
    return Change(owned=owned, counter=counter if counter > state.counter else 0)


def expired(state: Members, silent_s: Callable[[str], float], rejoin_s: float, static_return_s: float) -> list[str]:
    """The members whose sessions end now. Those with an instance id have longer to come back."""
    return [
        name
        for name, member in state.members.items()
        if silent_s(name) >= (max(rejoin_s, static_return_s) if member.static else rejoin_s)
    ]

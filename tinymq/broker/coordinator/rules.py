"""The decisions of a coordinator on one stream group. Pure: a state and what was heard in, a change out.

A partition moves in three steps. The owner is asked to let go (`revoking`); it lets go, and its next list lacks the
partition, so that the partition is free; the new owner is told, under a higher epoch. Each step is committed before
anybody is told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tinymq.broker.coordinator.assignors import Assign
from tinymq.broker.members.group_members import COUNTER_BITS, Change, Member, Members, Owned, Place


def heard(
    state: Members, name: str, member: Member, owned: Mapping[Place, int], taken: int, fenced_at: int = 0
) -> Change:
    """The change that a member's list leads to: the partitions that it owns, with their epochs.

    `taken` is the newest epoch of an assignment that the member has taken or dropped. A partition that the list lacks
    is released only if its epoch is not above: the list may have been sent before the assignment arrived. `fenced_at`
    is an epoch that the member found in a cursor, above its own; 0: none.
    """
    present = state.members.get(name)
    released: dict[Place, Owned | None] = {}
    for place, at in state.of(name).items():
        if present is None or present.session != member.session:
            # Another life of a member with an instance id. It gets its partitions under new epochs.
            released[place] = None
        elif owned.get(place) != at.epoch and at.epoch <= taken:
            released[place] = None
    # Epochs go on above one that a cursor has, such as after a loss of the coordinator's log. An epoch of another group
    # id says nothing.
    counter = fenced_at & ((1 << COUNTER_BITS) - 1) if fenced_at >> COUNTER_BITS == state.group_id else 0
    return Change(
        members={} if present == member else {name: member},
        owned=released,
        counter=counter if counter > state.counter else 0,
    )


def lost(state: Members, name: str, session: bytes, owned: Mapping[Place, int]) -> list[Place]:
    """The partitions of a member's list that are not the member's."""
    member = state.members.get(name)
    if member is None or member.session != session:
        return list(owned)
    mine = state.of(name)
    return [place for place, epoch in owned.items() if place not in mine or mine[place].epoch != epoch]


def left(state: Members, names: Collection[str]) -> Change:
    """The change when these members are gone: their sessions ended, or they left."""
    gone = {name: None for name in names if name in state.members}
    return Change(members=gone, owned={place: None for place, at in state.owned.items() if at.member in gone})


def freed(state: Members, places: Collection[Place]) -> Change:
    """The change when owners that were asked have not let go in time. A higher epoch will fence them."""
    return Change(owned={place: None for place in places if place in state.owned and state.owned[place].revoking})


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

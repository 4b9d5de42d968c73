"""Which member reads which partition. Pure: the same arguments give the same answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from tinymq.base.group_config import Assignor
from tinymq.base.types import PartitionId

Assign = Callable[[Sequence[str], Sequence[PartitionId], Mapping[PartitionId, str]], dict[PartitionId, str]]
"""(members, partitions, present owners) → the owner of every partition; {} without members."""


def balanced(
    members: Sequence[str], places: Sequence[PartitionId], present: Mapping[PartitionId, str]
) -> dict[PartitionId, str]:
    """Spread the partitions of all topics evenly: the counts of two members differ by one at most.

    A member keeps its present partitions, up to its share.
    """
    if not members:
        return {}
    least, extra = divmod(len(places), len(members))
    kept: dict[str, list[PartitionId]] = {member: [] for member in sorted(members)}
    for place in sorted(places):
        if present.get(place) in kept:
            kept[present[place]].append(place)
    # The remainder goes to the members that have most partitions now, so that as few as possible move.
    by_size = sorted(kept, key=lambda member: (-len(kept[member]), member))
    room = {member: least + (number < extra) for number, member in enumerate(by_size)}
    target = {place: member for member, some in kept.items() for place in some[: room[member]]}
    free = [place for place in sorted(places) if place not in target]
    for member in by_size:
        count = room[member] - min(len(kept[member]), room[member])
        target |= dict.fromkeys(free[:count], member)
        free = free[count:]
    return target


def by_range(
    members: Sequence[str], places: Sequence[PartitionId], present: Mapping[PartitionId, str]
) -> dict[PartitionId, str]:
    """Give each member a range of neighbouring partitions of every topic.

    Partitions with the same number in topics of the same size therefore have the same owner.
    """
    if not members:
        return {}
    ordered = sorted(members)
    topics: dict[bytes, list[PartitionId]] = defaultdict(list)
    for place in sorted(places):
        topics[place.topic_id].append(place)
    target: dict[PartitionId, str] = {}
    for some in topics.values():
        least, extra = divmod(len(some), len(ordered))
        first = 0
        for number, member in enumerate(ordered):
            count = least + (number < extra)
            target |= dict.fromkeys(some[first : first + count], member)
            first += count
    return target


def among(assign: Assign, members_max: int | None) -> Assign:
    """An assignor that gives partitions to at most `members_max` members, present owners first. The others stand by."""
    if members_max is None:
        return assign

    def limited(
        members: Sequence[str], places: Sequence[PartitionId], present: Mapping[PartitionId, str]
    ) -> dict[PartitionId, str]:
        owners = set(present.values())
        active = sorted(members, key=lambda member: (member not in owners, member))[:members_max]
        return assign(sorted(active), places, present)

    return limited


ASSIGNORS: Mapping[Assignor, Assign] = {Assignor.BALANCED: balanced, Assignor.RANGE: by_range}

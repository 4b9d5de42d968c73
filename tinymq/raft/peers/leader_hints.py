"""Who leads what in the whole cluster, as brokers tell one another. A hint for routing, never for safety."""

from __future__ import annotations

from collections.abc import Iterable

from tinymq.base.types import GroupId
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.rules.messages import group_from_wire, group_to_wire


class LeaderHints:
    """The leader of the newest term heard of, for each group."""

    def __init__(self) -> None:
        self._led: dict[GroupId, tuple[int, int]] = {}

    def note(self, group: GroupId, broker_id: int, term: int) -> None:
        known = self._led.get(group)
        if known is None or known[1] <= term:
            self._led[group] = (broker_id, term)

    def gone(self, broker_id: int) -> None:
        """Whatever it led, it leads no more."""
        for group in [g for g, (leader, _) in self._led.items() if leader == broker_id]:
            del self._led[group]

    def forget(self, group: GroupId) -> None:
        self._led.pop(group, None)

    def leader_of(self, group: GroupId) -> tuple[int, int] | None:
        """(broker, term), or None when nobody is known to lead."""
        return self._led.get(group)


def announcement(led: Iterable[tuple[GroupId, int]]) -> pb.Peer:
    """What a broker tells the others of (group, term) pairs that it leads."""
    return pb.Peer(leaders=pb.Leaders(led=[pb.GroupTerm(group=group_to_wire(g), term=t) for g, t in led]))


def read_announcement(leaders: pb.Leaders) -> list[tuple[GroupId, int]]:
    return [(group_from_wire(item.group), item.term) for item in leaders.led]

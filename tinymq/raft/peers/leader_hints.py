"""The leaders of all groups of the cluster, as brokers announce them. A hint for routing; safety never rests on it."""

from __future__ import annotations

from collections.abc import Iterable

from tinymq.base.types import GroupId
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.rules.messages import group_from_wire, group_to_wire


class LeaderHints:
    """By group: the leader of the newest term that was announced."""

    def __init__(self) -> None:
        self._led: dict[GroupId, tuple[int, int]] = {}

    def note(self, group: GroupId, broker_id: int, term: int) -> None:
        known = self._led.get(group)
        if known is None or known[1] <= term:
            self._led[group] = (broker_id, term)

    def gone(self, broker_id: int) -> None:
        """Forget that this broker leads anything."""
        for group in [g for g, (leader, _) in self._led.items() if leader == broker_id]:
            del self._led[group]

    def forget(self, group: GroupId) -> None:
        self._led.pop(group, None)

    def leader_of(self, group: GroupId) -> tuple[int, int] | None:
        """Return (broker, term), or None if no leader is known."""
        return self._led.get(group)


def announcement(led: Iterable[tuple[GroupId, int]]) -> pb.Peer:
    """Make the message in which a broker announces the (group, term) pairs that it leads."""
    return pb.Peer(leaders=pb.Leaders(led=[pb.GroupTerm(group=group_to_wire(g), term=t) for g, t in led]))


def read_announcement(leaders: pb.Leaders) -> list[tuple[GroupId, int]]:
    return [(group_from_wire(item.group), item.term) for item in leaders.led]

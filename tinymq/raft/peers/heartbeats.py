"""The heartbeats between brokers, one per pair: what a heartbeat says, and what its receiver learns from it.

It carries no log position (control overtakes bulk), only life: sequence and echo, the wall clock, and the
groups whose leadership the sender gave up, repeated until acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tinymq.base.types import GroupId
from tinymq.base.value import value
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.peers.failure_detector import FailureDetector, Verdict
from tinymq.raft.rules.messages import group_from_wire, group_to_wire

STEPPED_DOWN_MAX = 2_000  # groups named in one heartbeat; the others follow in the next one


@dataclass(slots=True)
class _Pair:
    """The fields of the next heartbeat to one peer."""

    sequence: int = 0
    received: tuple[int, float] = (0, 0.0)  # its newest heartbeat: when it sent it, by its clock; when it came, by ours
    stepped_down: dict[GroupId, int] = field(default_factory=dict)  # until acknowledged: group -> term
    acknowledge: list[pb.GroupTerm] = field(default_factory=list)


@value
class Heard:
    """What a heartbeat told."""

    verdict: Verdict | None
    stepped_down: list[tuple[GroupId, int]]
    stopping: bool


class Heartbeats:
    """Both directions of all pairs that this broker is part of. Times are passed in."""

    def __init__(self, liveness: FailureDetector) -> None:
        self._liveness = liveness
        self._pairs: dict[int, _Pair] = {}
        self.stopping = False

    def _pair(self, peer: int) -> _Pair:
        pair = self._pairs.get(peer)
        if pair is None:
            pair = self._pairs[peer] = _Pair()
        return pair

    def stepped_down(self, peer: int, group: GroupId, term: int) -> None:
        """Tell `peer` in every heartbeat, until it acknowledges, that we no longer lead `group`."""
        self._pair(peer).stepped_down[group] = term

    def next(self, peer: int, wall_us: int, now: float) -> pb.Peer:
        """Return the heartbeat to send now."""
        pair = self._pair(peer)
        pair.sequence += 1
        named = list(pair.stepped_down.items())[:STEPPED_DOWN_MAX]
        beat = pb.Heartbeat(
            sequence=pair.sequence,
            echo=self._liveness.peer(peer).sequence,
            wall_us=wall_us,
            stepped_down=[pb.GroupTerm(group=group_to_wire(g), term=t) for g, t in named],
            stepped_down_ack=pair.acknowledge,
            sent_at_us=int(now * 1e6),
            echo_sent_at_us=pair.received[0] + int((now - pair.received[1]) * 1e6),
            stopping=self.stopping,
        )
        pair.acknowledge = []
        return pb.Peer(heartbeat=beat)

    def heard(self, peer: int, session: int, beat: pb.Heartbeat, now: float) -> Heard:
        """Take a heartbeat. A new session is another process of its sender. A stopping sender is gone."""
        pair, life = self._pair(peer), self._liveness.peer(peer)
        verdict = self._liveness.heard(peer, session, now)
        if beat.sequence > life.sequence:
            life.sequence = beat.sequence
            pair.received = beat.sent_at_us, now
        life.clocks_us.append(beat.wall_us - int(now * 1e6))
        if beat.echo <= pair.sequence:  # otherwise it answers an earlier process here
            self._liveness.echoed(peer, beat.echo, now - beat.echo_sent_at_us / 1e6, now)
        for item in beat.stepped_down_ack:
            group = group_from_wire(item.group)
            if pair.stepped_down.get(group) == item.term:
                del pair.stepped_down[group]
        pair.acknowledge.extend(beat.stepped_down)
        down = [(group_from_wire(item.group), item.term) for item in beat.stepped_down]
        return Heard(verdict, down, beat.stopping)

"""A group's view of its broker, through which its replica sends and learns about other brokers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tinymq.base.clock import Clock
from tinymq.base.config import Limits, Timing
from tinymq.base.types import GroupId
from tinymq.raft.net.transport import Channel, Transport
from tinymq.raft.peers.cluster_time import ClusterTime
from tinymq.raft.peers.failure_detector import FailureDetector
from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.messages import Append, InstallSnapshot, Message, SnapshotChunk, to_wire


class HostReplicaEnv:
    """The ReplicaEnv of one group on one broker."""

    def __init__(
        self, group: GroupId, clock: Clock, rng: random.Random, limits: Limits, timing: Timing, transport: Transport,
        failure_detector: FailureDetector, time: ClusterTime, *, level: Callable[[], int], observed: bool, wake:
        Callable[[], None], read_cold: Callable[[int, int], None], read_snapshot: Callable[[int], None], take_snapshot:
        Callable[[int, InstallSnapshot | SnapshotChunk], None],
    ) -> None:  # fmt: skip
        self.clock = clock
        self.rng = rng
        self.limits = limits
        self.timing = timing
        self.wake = wake
        self.read_cold = read_cold
        self.read_snapshot = read_snapshot
        self.take_snapshot = take_snapshot
        self.now = clock.monotonic
        self.cluster_us = time.now_us
        self.observed = observed  # brokers that no CONFIG lists follow the group, too
        self.configs: Configs  # written by the replica: every message carries the recovery epoch of the newest one
        self._level = level
        self._group = group
        self._transport = transport
        self._failure_detector = failure_detector

    @property
    def feature_level(self) -> int:
        return self._level()

    def alive(self, peer: int) -> bool:
        return self._failure_detector.alive(peer)

    def hears(self, peer: int) -> bool:
        return self._failure_detector.hears(peer, self.now())

    def heard_by(self, peer: int) -> bool:
        return self._failure_detector.heard_by(peer)

    def election_s(self) -> tuple[float, float]:
        return self._failure_detector.election_s(r.broker_id for r in self.configs.membership.replicas)

    def observers(self) -> Sequence[int]:
        return self._failure_detector.all_alive() if self.observed else ()

    def connected(self, peer: int) -> bool:
        return self._transport.connected(peer, Channel.BULK)

    def incarnation(self, peer: int) -> bytes | None:
        who = self._transport.identity(peer)
        return None if who is None else who.incarnation

    def session(self, peer: int) -> int | None:
        who = self._transport.identity(peer)
        return None if who is None else who.session

    def send(self, peer: int, message: Message) -> bool:
        """Queue a message. Appends and snapshots go in order on the bulk connection; all other messages overtake them.

        Both connections stay open (ARCHITECTURE.md: Hot paths are long-lived streams).
        """
        head, body = to_wire(self._group, message)
        head.recovery_epoch = self.configs.newest.recovery_epoch
        channel = Channel.BULK if isinstance(message, Append | InstallSnapshot | SnapshotChunk) else Channel.CONTROL
        return self._transport.send(peer, channel, head, body)

    def reopen(self, peer: int) -> None:
        self._transport.reset(peer, Channel.BULK)

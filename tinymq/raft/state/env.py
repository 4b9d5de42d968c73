"""The ports of a replica: the state machine that it replicates, and its view of the broker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from tinymq.base.clock import Clock
from tinymq.base.config import Limits, Timing
from tinymq.format.entry import Entry
from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.messages import InstallSnapshot, Message, SnapshotChunk


class StateMachine(Protocol):
    """The state that a group replicates. All calls come from the loop. No entry of the log may make a method raise."""

    def apply(self, entry: Entry) -> None:
        """Apply one committed entry, of any kind. Entries come in order, from index 1 on.

        It is pure and total: the same entries give the same state on every replica (hazards 9 and 10).
        """
        ...

    def lead(self, term: int) -> None:
        """Begin to accept proposals. This replica leads `term`, and has applied every entry before that term."""
        ...

    def follow(self) -> None:
        """Stop accepting proposals: the leadership ended. The outcome of proposals not yet applied is unknown."""
        ...

    def dump(self) -> bytes:
        """Return the state for a checkpoint. Equal logs give equal bytes."""
        ...

    def load(self, state: bytes) -> None:
        """Replace the state by a dumped one. Raises CorruptData. Any other exception is a bug."""
        ...


class PeerLink(Protocol):
    """A leader's connections to its followers."""

    def now(self) -> float:
        """Return the broker's monotonic time in seconds."""
        ...

    def alive(self, peer: int) -> bool:
        """Is this broker's process alive, according to the failure detector?"""
        ...

    def connected(self, peer: int) -> bool:
        """Is the bulk connection to this broker open?"""
        ...

    def incarnation(self, peer: int) -> bytes | None:
        """Return the id of the peer's data directory, or None while no connection is open."""
        ...

    def send(self, peer: int, message: Message) -> bool:
        """Queue a message. Returns False if it was dropped: there is no connection, or its queue is full."""
        ...

    def reopen(self, peer: int) -> None:
        """Close the bulk connection, which seems stuck, and open another one."""
        ...

    def read_cold(self, peer: int, index: int) -> None:
        """Read entries from disk beside the loop, then call `Leadership.entries_read`."""
        ...

    def read_snapshot(self, peer: int) -> None:
        """Read the snapshot before the log's first entry beside the loop, then call `Leadership.snapshot_read`."""
        ...


class ReplicaEnv(PeerLink, Protocol):
    """A replica's view of its broker, bound to the replica's group. Nothing here blocks."""

    clock: Clock
    rng: random.Random
    observed: bool  # True: brokers that no CONFIG lists follow this group, too
    limits: Limits
    timing: Timing
    configs: Configs  # written by the replica: every message carries the recovery epoch of the newest one

    @property
    def feature_level(self) -> int:
        """The cluster's feature level, as known here. Entries that need a higher level are not proposed."""
        ...

    def session(self, peer: int) -> int | None:
        """Return the number of the process that this broker runs, or None if it is unknown."""
        ...

    def hears(self, peer: int) -> bool:
        """Was this broker heard lately? This turns False before `alive` does."""
        ...

    def heard_by(self, peer: int) -> bool:
        """Is this broker alive, and do its heartbeats prove that it hears us?"""
        ...

    def election_s(self) -> tuple[float, float]:
        """Return the shortest and the longest time in seconds to wait before asking for votes (again)."""
        ...

    def observers(self) -> Sequence[int]:
        """Return the live brokers if the group is observed. Members may be among them."""
        ...

    def take_snapshot(self, peer: int, message: InstallSnapshot | SnapshotChunk) -> None:
        """Take a snapshot, or a chunk of one, that the leader sends; then call `vouch` or `acknowledge_snapshot`."""
        ...

    def wake(self) -> None:
        """Tick this group after the events of this turn of the loop."""
        ...

    def cluster_us(self) -> int | None:
        """Return the cluster's time in microseconds, or None while it is unknown.

        It is known when this broker hears the clocks of a majority of the brokers that hold any replica.
        """
        ...

"""Taking over a leader's applied state: what is needed of it, and putting its pieces together.

For a follower whose leader's log begins behind what it holds. Nothing here does I/O; the host installs what is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

import structlog

from tinymq.base.types import GroupId
from tinymq.format.entry import crc32c
from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.raft.replica.group import Group
from tinymq.raft.rules.messages import InstallSnapshot, SnapshotChunk

logger = structlog.get_logger("tinymq.raft")


class Need(Enum):
    """What an offered state is to a replica."""

    NONE = "none"  # it holds the state's last entry, or knows it to be committed
    SNAPSHOT = "snapshot"
    TOO_LARGE = "too large"


class LogBounds(Protocol):
    """What the decision asks of a log."""

    def term_at(self, index: int) -> int | None: ...


def need_of(log: LogBounds, commit: int, offer: InstallSnapshot, state_bytes_max: int) -> Need:
    """A delayed offer is of no use to who has gone past it. An entry of the same index and term is the same one, and
    all before it are (paper, 5.3): then only the commit index is news."""
    if commit >= offer.index or log.term_at(offer.index) == offer.entry_term:
        return Need.NONE
    return Need.TOO_LARGE if offer.size > state_bytes_max else Need.SNAPSHOT


class IncomingSnapshot:
    """One state as far as it is here; invariant: without a gap, and no longer than was offered."""

    def __init__(self, offer: InstallSnapshot) -> None:
        self.offer = offer
        self._content = bytearray()
        self._crc = 0  # of what is here: of all of it at the end would hold the loop up

    @property
    def received(self) -> int:
        return len(self._content)

    def is_of(self, message: InstallSnapshot | SnapshotChunk) -> bool:
        """The same state is the same bytes, whoever sends it."""
        return (message.index, message.crc) == (self.offer.index, self.offer.crc)

    def take(self, piece: SnapshotChunk) -> None:
        """Add it when it is the next one; any other is dropped: the answer says where to go on."""
        if piece.position == self.received and self.received + len(piece.body) <= self.offer.size:
            self._content += piece.body
            self._crc = crc32c(piece.body, self._crc)

    def whole(self) -> Snapshot | None:
        """The state when all of it is here; when it does not match its checksum it is dropped, to begin anew."""
        if self.received < self.offer.size:
            return None
        o = self.offer
        if self._crc != o.crc:
            self._content.clear()
            self._crc = 0
            return None
        data = bytes(self._content)
        return Snapshot(o.index, o.entry_term, o.entry_crc, o.next_offset, o.append_time_us, data, o.crc)


Install = Callable[[Group, int, InstallSnapshot, Snapshot], None]


class SnapshotReceiver:
    """The states that are on their way to this broker's replicas, one for each group."""

    def __init__(self, state_bytes_max: int, install: Install) -> None:
        self._state_bytes_max = state_bytes_max
        self._install = install  # (group, from whom, as offered, whole)
        self._incoming: dict[GroupId, IncomingSnapshot] = {}

    def take(self, group: Group, peer: int, message: InstallSnapshot | SnapshotChunk) -> None:
        """An offer or a piece of who leads the group in this term; the core has looked at that."""
        incoming = self._incoming.get(group.id)
        if incoming is None or not incoming.is_of(message):
            if isinstance(message, SnapshotChunk):
                return  # of another state, or of one that an earlier process was sent: the leader offers it again
            incoming = IncomingSnapshot(message)
        need = need_of(group.log, group.commit_index, incoming.offer, self._state_bytes_max)
        if need is not Need.SNAPSHOT:
            self.forget(group.id)
            self._refuse(group, message) if need is Need.TOO_LARGE else group.replica.vouch(message.index)
            return
        self._incoming[group.id] = incoming
        if isinstance(message, SnapshotChunk):
            incoming.take(message)
        if (state := incoming.whole()) is not None:
            self.forget(group.id)
            self._install(group, peer, incoming.offer, state)
        else:
            group.replica.acknowledge_snapshot(peer, message.index, message.crc, incoming.received)

    def _refuse(self, group: Group, offer: InstallSnapshot | SnapshotChunk) -> None:
        assert isinstance(offer, InstallSnapshot)  # pieces are taken of what was not too large
        group.stuck = (
            f"it is behind its leader's first entry, and the applied state there has {offer.size:,} bytes: "
            f"state_bytes_max is {self._state_bytes_max:,}"
        )
        logger.error("state_too_large", group=str(group.id), bytes=offer.size, state_bytes_max=self._state_bytes_max)

    def settle(self, group: Group) -> None:
        """What came to nothing is not kept: another leader had the entries themselves."""
        incoming = self._incoming.get(group.id)
        if incoming is not None and group.commit_index >= incoming.offer.index:
            self.forget(group.id)

    def forget(self, group: GroupId) -> None:
        """Nothing more is wanted of what was offered to it."""
        self._incoming.pop(group, None)

"""Receives a leader's snapshot: decides whether it is needed, and assembles its chunks.

A follower needs it when its leader's log begins after the end of its own. Nothing here does I/O: the host installs a
complete snapshot.
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
    """Does a replica need the snapshot that its leader offers?"""

    NONE = "none"  # it holds the snapshot's last entry, or knows that entry to be committed
    SNAPSHOT = "snapshot"
    TOO_LARGE = "too large"


class LogBounds(Protocol):
    """The part of a log that the decision reads."""

    def term_at(self, index: int) -> int | None: ...


def need_of(log: LogBounds, commit: int, offer: InstallSnapshot, state_bytes_max: int) -> Need:
    """Decide whether the snapshot is needed.

    A replica that has committed the snapshot's last entry does not need it. Neither does one whose log has that
    entry: entries of the same index and term are the same, and so are all entries before them (paper, 5.3). Then only
    the commit index is new.
    """
    if commit >= offer.index or log.term_at(offer.index) == offer.entry_term:
        return Need.NONE
    return Need.TOO_LARGE if offer.size > state_bytes_max else Need.SNAPSHOT


class IncomingSnapshot:
    """The received part of one snapshot. Invariant: it has no gap, and is no longer than the offered size."""

    def __init__(self, offer: InstallSnapshot) -> None:
        self.offer = offer
        self._content = bytearray()
        self._crc = 0  # of the received bytes; computing it at the end would block the loop

    @property
    def received(self) -> int:
        return len(self._content)

    def is_of(self, message: InstallSnapshot | SnapshotChunk) -> bool:
        """Is the message about this snapshot? Every broker has the same bytes of it, so the sender may change."""
        return (message.index, message.crc) == (self.offer.index, self.offer.crc)

    def take(self, chunk: SnapshotChunk) -> None:
        """Add the chunk if it is the next one. Any other is dropped, because the answer says where to continue."""
        if chunk.position == self.received and self.received + len(chunk.body) <= self.offer.size:
            self._content += chunk.body
            self._crc = crc32c(chunk.body, self._crc)

    def whole(self) -> Snapshot | None:
        """Return the snapshot once it is complete. If its checksum is wrong, drop it: the leader begins again."""
        if self.received < self.offer.size:
            return None
        o = self.offer
        if self._crc != o.crc:
            self._content.clear()
            self._crc = 0
            return None
        data = bytes(self._content)
        return Snapshot(
            index=o.index,
            entry_term=o.entry_term,
            entry_crc=o.entry_crc,
            next_offset=o.next_offset,
            append_time_us=o.append_time_us,
            data=data,
            data_crc=o.crc,
        )


Install = Callable[[Group, int, InstallSnapshot, Snapshot], None]


class SnapshotReceiver:
    """The snapshots that this broker's replicas are receiving, at most one for each group."""

    def __init__(self, state_bytes_max: int, install: Install) -> None:
        self._state_bytes_max = state_bytes_max
        self._install = install  # called with (group, sender, offer, complete snapshot)
        self._incoming: dict[GroupId, IncomingSnapshot] = {}

    def take(self, group: Group, peer: int, message: InstallSnapshot | SnapshotChunk) -> None:
        """Take a message of the leader of this term. The replica has checked the sender and the term."""
        incoming = self._incoming.get(group.id)
        if incoming is None or not incoming.is_of(message):
            if isinstance(message, SnapshotChunk):
                return  # of a snapshot that this process has not been offered; the leader offers it again
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
        assert isinstance(offer, InstallSnapshot)  # chunks are taken only of a snapshot that is not too large
        group.stuck = (
            f"it is behind its leader's first entry, and the snapshot there has {offer.size:,} bytes: "
            f"state_bytes_max is {self._state_bytes_max:,}"
        )
        logger.error("snapshot_too_large", group=str(group.id), bytes=offer.size, state_bytes_max=self._state_bytes_max)

    def settle(self, group: Group) -> None:
        """Drop a snapshot that is no longer needed, because another leader sent the entries themselves."""
        incoming = self._incoming.get(group.id)
        if incoming is not None and group.commit_index >= incoming.offer.index:
            self.forget(group.id)

    def forget(self, group: GroupId) -> None:
        """Drop the snapshot that this group is receiving."""
        self._incoming.pop(group, None)

"""A leader's side of a snapshot transfer: what goes next to a follower that is behind our first entry. Pure.

    InstallSnapshot out  ──ack of this snapshot──▶  chunk out, from where the follower is  ──ack──▶  the next chunk …
        ▲                                                │
        └── ack of another snapshot, or no answer for too long: InstallSnapshot again, which asks where it is

One message is in flight at a time. An AppendAck says that the follower has the whole snapshot, or does not need it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.raft.rules.messages import SNAPSHOT_CHUNK_BYTES, InstallSnapshot, InstallSnapshotAck, SnapshotChunk


@dataclass(slots=True)
class SnapshotProgress:
    """The leader's view of how much of a snapshot one follower has."""

    snapshot: Snapshot
    position: int | None = None  # the first byte of the chunk in flight; None: InstallSnapshot is in flight

    def message(self, term: int) -> InstallSnapshot | SnapshotChunk:
        """Return the message to send now, or again."""
        s, at = self.snapshot, self.position
        if at is None:
            return InstallSnapshot(
                term=term,
                index=s.index,
                entry_term=s.entry_term,
                entry_crc=s.entry_crc,
                next_offset=s.next_offset,
                append_time_us=s.append_time_us,
                size=len(s.data),
                crc=s.data_crc,
            )
        return SnapshotChunk(term, s.index, s.data_crc, at, s.data[at : at + SNAPSHOT_CHUNK_BYTES])

    def acknowledged(self, ack: InstallSnapshotAck) -> bool:
        """Take an answer. True when the next message may go; False for an answer that came twice."""
        if (ack.index, ack.crc) != (self.snapshot.index, self.snapshot.data_crc):
            again, self.position = self.position is not None, None
            return again
        if ack.received == self.position or not 0 <= ack.received < len(self.snapshot.data):
            return False
        self.position = ack.received
        return True

    def ask_again(self) -> None:
        """No answer came: send InstallSnapshot again, whose answer says how much the follower has."""
        self.position = None

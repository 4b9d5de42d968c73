"""A leader's side of a state transfer, purely: what goes next to a follower that is behind our first entry.

    InstallSnapshot out  ──ack of this snapshot──▶  chunk out, from where the follower is  ──ack──▶  the next chunk …
        ▲                                                │
        └── ack of another snapshot, or no answer for too long: InstallSnapshot again, which asks where it is

One message is out at a time. That it has all of it, or needs none, the follower says by an AppendAck.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.raft.rules.messages import SNAPSHOT_CHUNK_BYTES, InstallSnapshot, InstallSnapshotAck, SnapshotChunk


@dataclass(slots=True)
class SnapshotProgress:
    """What one follower has of a state, as far as we know."""

    snapshot: Snapshot
    position: int | None = None  # a piece from there is out; None: the offer is

    def message(self, term: int) -> InstallSnapshot | SnapshotChunk:
        """To be sent now, or again."""
        s, at = self.snapshot, self.position
        if at is None:
            return InstallSnapshot(
                term, s.index, s.entry_term, s.entry_crc, s.next_offset, s.append_time_us, len(s.data), s.data_crc
            )
        return SnapshotChunk(term, s.index, s.data_crc, at, s.data[at : at + SNAPSHOT_CHUNK_BYTES])

    def acknowledged(self, ack: InstallSnapshotAck) -> bool:
        """True when the next message may go; False for an answer that came twice."""
        if (ack.index, ack.crc) != (self.snapshot.index, self.snapshot.data_crc):
            again, self.position = self.position is not None, None
            return again
        if ack.received == self.position or not 0 <= ack.received < len(self.snapshot.data):
            return False
        self.position = ack.received
        return True

    def ask_again(self) -> None:
        """No answer came: the offer asks how far it is."""
        self.position = None

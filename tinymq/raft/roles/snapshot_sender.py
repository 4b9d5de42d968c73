"""Snapshot transfers of one term: the snapshot before our first entry, to the followers that are behind it.

The decisions about one transfer are in `rules.snapshot_transfer`. At most one message per follower is in flight, so
the group's other traffic continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.raft.rules.messages import InstallSnapshot, InstallSnapshotAck, SnapshotChunk
from tinymq.raft.rules.progress import Mode, Progress
from tinymq.raft.rules.snapshot_transfer import SnapshotProgress


class SnapshotLink(Protocol):
    """Sends to followers, and reads the snapshot from disk."""

    def now(self) -> float: ...
    def send(self, peer: int, message: InstallSnapshot | SnapshotChunk) -> bool: ...
    def read_snapshot(self, peer: int) -> None: ...


class LogHead(Protocol):
    """The part of a log that a transfer reads."""

    @property
    def first_index(self) -> int: ...


class SnapshotSender:
    """Sends the snapshot to every follower in Mode.SNAPSHOT. `progress` is that of all followers, by broker."""

    def __init__(self, term: int, log: LogHead, link: SnapshotLink, progress: Mapping[int, Progress]) -> None:
        self._term = term
        self._log = log
        self._link = link
        self._progress = progress
        self._snapshot: Snapshot | None = None  # in memory while a follower needs it
        self._reading = False

    def send(self, peer: int, progress: Progress) -> None:
        """Send the next message of a transfer, or begin one. Called when no message of it is in flight."""
        if progress.sending is None:
            if self._snapshot is not None and self._snapshot.index != self._log.first_index - 1:
                self._snapshot = None  # retention has moved on: a newer snapshot covers more of the log
            progress.begin_snapshot(None if self._snapshot is None else SnapshotProgress(self._snapshot))
        progress.waiting, progress.sent_at = True, self._link.now()
        if progress.sending is not None:
            self._link.send(peer, progress.sending.message(self._term))
        elif not self._reading:
            self._reading = True
            self._link.read_snapshot(peer)

    def read(self, snapshot: Snapshot | None) -> None:
        """Take the snapshot, for all followers that need it. None: the read failed, and is repeated later."""
        self._reading = False
        waiting = [p for p in self._progress.values() if p.mode is Mode.SNAPSHOT and p.sending is None]
        if snapshot is not None and waiting:
            self._snapshot = snapshot
            for progress in waiting:
                progress.waiting = False

    def acknowledged(self, peer: int, ack: InstallSnapshotAck) -> bool:
        """Take a follower's answer. True when there is something to send.

        Another incarnation than the one that was asked may answer: any answer says how much the broker has received.
        """
        progress = self._progress.get(peer)
        if progress is None or progress.sending is None:
            return False
        if not progress.sending.acknowledged(ack):
            return False
        progress.waiting, progress.unanswered = False, 0
        return True

    def settle(self) -> None:
        """Forget the snapshot if no follower needs it any more."""
        if all(p.mode is not Mode.SNAPSHOT for p in self._progress.values()):
            self._snapshot = None

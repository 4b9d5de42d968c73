"""State transfers of one term: the applied state before our first entry, to the followers that are behind it.

Decides through `offering`; one message is out at a time for each follower, so the group's own traffic goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.raft.rules.messages import InstallSnapshot, InstallSnapshotAck, SnapshotChunk
from tinymq.raft.rules.progress import Mode, Progress
from tinymq.raft.rules.snapshot_transfer import SnapshotProgress


class SnapshotLink(Protocol):
    """How followers are reached, and what is read for them."""

    def now(self) -> float: ...
    def send(self, peer: int, message: InstallSnapshot | SnapshotChunk) -> bool: ...
    def read_state(self, peer: int) -> None: ...


class LogHead(Protocol):
    """What is asked of the log."""

    @property
    def first_index(self) -> int: ...


class SnapshotSender:
    """`progress`: of all followers, by broker; those in Mode.SNAPSHOT are looked after here."""

    def __init__(self, term: int, log: LogHead, line: SnapshotLink, progress: Mapping[int, Progress]) -> None:
        self._term = term
        self._log = log
        self._line = line
        self._progress = progress
        self._state: Snapshot | None = None  # kept while a follower needs it
        self._reading = False

    def send(self, peer: int, progress: Progress) -> None:
        """The next message of a transfer, or the first; called when none is out."""
        if progress.sending is None:
            if self._state is not None and self._state.index != self._log.first_index - 1:
                self._state = None  # retention went on: a newer one is nearer to our end
            progress.begin_state(None if self._state is None else SnapshotProgress(self._state))
        progress.waiting, progress.sent_at = True, self._line.now()
        if progress.sending is not None:
            self._line.send(peer, progress.sending.message(self._term))
        elif not self._reading:
            self._reading = True
            self._line.read_state(peer)

    def read(self, applied: Snapshot | None) -> None:
        """The state is in memory, for all who need it. None: it could not be read; it is tried again in a while."""
        self._reading = False
        waiting = [p for p in self._progress.values() if p.mode is Mode.SNAPSHOT and p.sending is None]
        if applied is not None and waiting:
            self._state = applied
            for progress in waiting:
                progress.waiting = False

    def acknowledged(self, peer: int, ack: InstallSnapshotAck) -> bool:
        """True when there is something to send."""
        progress = self._progress.get(peer)
        if progress is None or progress.sending is None:  # whoever it is by now: it says so when it has the state
            return False
        if not progress.sending.acknowledged(ack):
            return False
        progress.waiting, progress.unanswered = False, 0
        return True

    def settle(self) -> None:
        """Forget what nobody needs any more."""
        if all(p.mode is not Mode.SNAPSHOT for p in self._progress.values()):
            self._state = None

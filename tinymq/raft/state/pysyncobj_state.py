"""The state of a replica that PySyncObj keeps: term, vote, role, leader, commit index and applied index.

This is the only module that knows a name with `_SyncObj__`. Everything else reads the names defined here. PySyncObj
writes terms and votes through its journal (`journal.py`). Each stock path that tinymq replaces raises, because a call
that reaches it breaks an invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pysyncobj import SyncObj

from tinymq.base.clock import Clock
from tinymq.raft.state import pysyncobj_seams
from tinymq.raft.state.journal import GroupJournal

NEVER = float("inf")  # a deadline that never comes


class PySyncObjState(SyncObj):  # type: ignore[misc]
    """One replica's Raft state (paper, figure 2), as PySyncObj keeps it, under readable names."""

    def __init__(
        self,
        broker_id: int,
        peers: Sequence[int],
        journal: GroupJournal,
        clock: Clock,
        election_timeout_s: Callable[[], float],
        applied_index: int,
    ) -> None:
        self._election_timeout_s = election_timeout_s
        with pysyncobj_seams.RunningClock(clock):
            super().__init__(
                pysyncobj_seams.peer(broker_id),
                [pysyncobj_seams.peer(peer) for peer in peers],
                conf=pysyncobj_seams.configuration(journal),
                transport=pysyncobj_seams.NoTransport(),
            )
        # Hazard 21: the checkpoint is ours; PySyncObj's dump hooks are never used.
        self._SyncObj__needLoadDumpFile = False
        self._SyncObj__raftLastApplied: int = applied_index
        self._SyncObj__raftCommitIndex: int = max(applied_index, self._SyncObj__raftCommitIndex)

    # PySyncObj's constructor reads every attribute of the object while it looks for replicated methods. So a property
    # may read only fields that the constructor has set by then.

    @property
    def term(self) -> int:
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def voted_for(self) -> int | None:
        """The broker that has this replica's vote in `term`."""
        voted: int | None = self._SyncObj__votedForNodeId
        return voted

    def enter_term(self, term: int, voted_for: int | None) -> None:
        """Set the term and the vote, here and in the vote store. They are durable after its next sync."""
        self._SyncObj__setCurrentTerm(term, voted_for)

    @property
    def leader_id(self) -> int | None:
        node = self._SyncObj__raftLeader
        return None if node is None else int(node.id)

    @leader_id.setter
    def leader_id(self, broker_id: int | None) -> None:
        self._SyncObj__raftLeader = None if broker_id is None else pysyncobj_seams.peer(broker_id)

    @property
    def role(self) -> int:
        """FOLLOWER, CANDIDATE or LEADER of `pysyncobj_seams`."""
        return int(self._SyncObj__raftState)

    @role.setter
    def role(self, role: int) -> None:
        self._SyncObj__setState(role)

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    @commit_index.setter
    def commit_index(self, index: int) -> None:
        self._SyncObj__raftCommitIndex = index

    @property
    def applied_index(self) -> int:
        return self._SyncObj__raftLastApplied

    @applied_index.setter
    def applied_index(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    @property
    def election_deadline(self) -> float:
        """Monotonic time at which this replica campaigns unless it hears a leader. NEVER: no campaign is due."""
        return float(self._SyncObj__raftElectionDeadline)

    @election_deadline.setter
    def election_deadline(self, deadline: float) -> None:
        self._SyncObj__raftElectionDeadline = deadline

    def record_commit(self, index: int) -> None:
        """Let the next sync mark carry `index` as the commit index (hazard 11)."""
        self._SyncObj__raftLog.setRaftCommitIndex(index)

    # ---- stock methods that run, overridden ----------------------------------------------------------------

    def _SyncObj__generateRaftTimeout(self) -> float:
        """Draw the timeout from the broker's own source of randomness, not from the module `random` (hazard 14)."""
        return self._election_timeout_s()

    def _SyncObj__onSetCodeVersion(self, newVersion: int) -> None:
        """Ignore code versions, which serve pickled commands (hazard 16). Entries and the feature level carry ours."""


# ---- stock paths that must not be reached ----------------------------------------------------------------------

REFUSED = {
    "_onTick": "hazard 15: a replica is driven by events",
    "_applyCommand": "hazard 19: commands are proposed on the leader, never queued or forwarded",
    "_checkCommandsToApply": "hazard 19: there is no command queue",
    "_SyncObj__onMessageReceived": "hazards 1, 2, 3, 4, 11, 14 and 22: messages go to the replica's role",
    "_SyncObj__sendNextNodeIdx": "hazards 3, 7, 11 and 22: an acknowledgement names a term, and what is synced",
    "_SyncObj__sendAppendEntries": "hazards 2, 12, 17 and 18: a leader replicates whole entries within a window",
    "_SyncObj__onBecomeLeader": "hazards 7 and 19: a term of leading is a Leadership",
    "_SyncObj__applyLogEntries": "hazards 9 and 10: the replica applies, and `apply` is total",
    "_SyncObj__connectedToAnyone": "hazard 14: pre-votes, not connections, decide whether a replica campaigns",
    "_SyncObj__getEntries": "hazards 12 and 17: entries are read on the log, and sent whole",
    "_SyncObj__doApplyCommand": "hazard 16: commands are not pickles",
    "_SyncObj__deleteEntriesFrom": "hazard 2: only a conflict truncates, on the log",
    "_SyncObj__deleteEntriesTo": "hazard 6: retention removes whole segments",
    "_SyncObj__loadDumpFile": "hazards 5, 6 and 21: there is no dump file",
    "_SyncObj__tryLogCompaction": "hazard 21: nothing is trimmed because it was applied",
    "_SyncObj__changeCluster": "hazards 8 and 20: membership comes from CONFIG entries",
    "_SyncObj__doChangeCluster": "hazards 8 and 20: membership comes from CONFIG entries",
}
"""By stock method: the reason why no tinymq code may reach it."""


def _refuse(reason: str) -> Callable[..., NoReturn]:
    def refuse(self: PySyncObjState, *args: Any, **options: Any) -> NoReturn:
        raise AssertionError(reason)

    return refuse


RELIED_ON = (
    "_SyncObj__generateRaftTimeout",
    "_SyncObj__getCurrentLogIndex",
    "_SyncObj__getCurrentLogTerm",
    "_SyncObj__onSetCodeVersion",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__setState",
)
pysyncobj_seams.check_version((*REFUSED, *RELIED_ON))
for _name, _reason in REFUSED.items():
    setattr(PySyncObjState, _name, _refuse(_reason))

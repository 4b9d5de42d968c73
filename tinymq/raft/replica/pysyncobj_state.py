"""What PySyncObj keeps for one replica, under readable names, and the stock paths that must not be reached.

PySyncObj's class holds term, vote, role, leader, commit and applied indexes, and writes terms and votes
through the journal. This subclass names them, and refuses every stock path that tinymq replaces: a call
that still reached one would be a broken invariant (hazards 5, 6, 8, 12, 16, 17, 19, 20, 21).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from pysyncobj import SyncObj

from tinymq.base.clock import Clock
from tinymq.base.config import Limits, Timing
from tinymq.base.errors import BrokenInvariant, CorruptData
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.log.broker_files.vote_store import VoteStore
from tinymq.log.replica_log.log import Log
from tinymq.raft.leader.leadership import PeerLink
from tinymq.raft.replica import pysyncobj_seams
from tinymq.raft.replica.journal import GroupJournal
from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.messages import InstallSnapshot, SnapshotChunk

NEVER = float("inf")


class StateMachine(Protocol):
    """What a group replicates. Called on the loop; no method may raise on what comes from the log."""

    def apply(self, entry: Entry) -> None:
        """One committed entry, of any kind, in order, from index 1 on. Pure, total: hazards 9 and 10."""
        ...

    def lead(self, term: int) -> None:
        """This replica leads `term` and has applied everything before it: it may accept now."""
        ...

    def follow(self) -> None:
        """It leads no more. What it proposed and has not seen applied is of unknown outcome."""
        ...

    def dump(self) -> bytes:
        """The applied state, for a checkpoint; equal on equal logs."""
        ...

    def load(self, state: bytes) -> None:
        """Take over a dumped state. Raises CorruptData; anything else is a bug."""
        ...


class ReplicaEnv(PeerLink, Protocol):
    """What a replica needs of its broker, bound to its group."""

    clock: Clock
    rng: random.Random
    observed: bool  # brokers that no CONFIG lists follow this group, too
    limits: Limits
    timing: Timing

    @property
    def feature_level(self) -> int:
        """The cluster's feature level, as known here. Entries that need a higher one are not proposed."""
        ...

    def session(self, peer: int) -> int | None:
        """Which process of that broker is there, as far as is known."""
        ...

    def hears(self, peer: int) -> bool:
        """Was this broker heard lately? `alive` holds for longer."""
        ...

    def heard_by(self, peer: int) -> bool:
        """Is it alive, and does it prove to hear us?"""
        ...

    def election_s(self) -> tuple[float, float]:
        """The least and the most to wait before standing (again)."""
        ...

    def observers(self) -> Sequence[int]:
        """Live brokers, if this group is observed; members among them."""
        ...

    configs: Configs  # set by the replica: every message says the recovery_epoch of the newest

    def take_state(self, peer: int, message: InstallSnapshot | SnapshotChunk) -> None:
        """Take what the leader sends of its snapshot, then call `vouch` or `send_install_snapshot_ack`."""
        ...

    def wake(self) -> None:
        """Tick this group before the loop turns again."""
        ...

    def cluster_us(self) -> int | None:
        """The cluster's time, by the clocks of a majority of the brokers that hold any replica; None: it is unknown."""
        ...


class RaftState(SyncObj):  # type: ignore[misc]
    """One replica's persistent and volatile Raft state (paper, figure 2)."""

    def __init__(
        self, group: GroupId, me: Replica, log: Log, ballots: VoteStore, around: ReplicaEnv,
        configs: Configs, applied_index: int,
    ) -> None:  # fmt: skip
        self._group = group
        self._me = me
        self._log = log
        self._around = around
        self._configs = around.configs = configs
        self._leader_session: int | None = None  # of the process that leads; another one of its broker does not
        self._peers = [r.broker_id for r in configs.membership.replicas if r.broker_id != me.broker_id]
        with pysyncobj_seams.RunningClock(around.clock):
            super().__init__(
                pysyncobj_seams.peer(me.broker_id), [pysyncobj_seams.peer(p) for p in self._peers],
                conf=pysyncobj_seams.configuration(GroupJournal(group, log, ballots)),
                transport=pysyncobj_seams.NoTransport(),
            )  # fmt: skip
        # Hazard 21: the checkpoint is ours; PySyncObj's dump hooks are never used.
        self._SyncObj__needLoadDumpFile = False
        self._SyncObj__raftLastApplied = applied_index
        self._SyncObj__raftCommitIndex: int = max(applied_index, self._SyncObj__raftCommitIndex)

    # Read by PySyncObj's constructor while it looks for replicated methods: each rests on what is set by then.

    @property
    def clock(self) -> Clock:
        return self._around.clock

    @property
    def term(self) -> int:
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def voted_for(self) -> int | None:
        voted: int | None = self._SyncObj__votedForNodeId
        return voted

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    @property
    def applied_index(self) -> int:
        return int(getattr(self, "_SyncObj__raftLastApplied", 0))

    @property
    def leader_id(self) -> int | None:
        node = self._SyncObj__raftLeader
        return None if node is None else int(node.id)

    @property
    def is_candidate(self) -> bool:
        return bool(self._SyncObj__raftState == pysyncobj_seams.CANDIDATE)

    @property
    def me(self) -> Replica:
        """This very incarnation."""
        return self._me

    @property
    def is_listed(self) -> bool:
        """Does the applied CONFIG list this very incarnation? If not it neither votes, stands nor counts (hazard 22):
        entries that counted on the one before it may be missing here, and nobody would know."""
        return self._configs.lists(self._me)

    @property
    def is_member(self) -> bool:
        """Is it listed, and would it know that again after a crash or a power cut? Until then nothing may rest on it
        that could be done without its disk: the next one may go only after that."""
        return self._configs.has_kept(self._me)

    @property
    def is_observer(self) -> bool:
        """Is no replica of this broker a member, under whatever identity?"""
        return self.membership.replica(self._me.broker_id) is None

    @property
    def membership(self) -> Membership:
        """As applied."""
        return self._configs.membership

    @property
    def before_forced(self) -> tuple[int, int]:
        """(last term, last index) of the log without what a take-over appended that may have come to nothing."""
        taken = self._configs.taken_over_at
        last = self._log.last_index if taken is None else taken - 1
        return self._log.term_at(last) or 0, last

    @property
    def newest_membership(self) -> Membership:
        """As the log ends, committed or not."""
        return self._configs.newest

    def _set_leader(self, leader: int | None) -> None:
        self._SyncObj__raftLeader = None if leader is None else pysyncobj_seams.peer(leader)
        self._leader_session = None if leader is None else self._around.session(leader)

    def _change_log(self, cut_from: int | None, entries: Sequence[Entry]) -> None:
        """Hazards 8, 20: a CONFIG comes with its entry, and is undone with it. Raises BrokenInvariant, with nothing
        done, for a CONFIG that does not follow from the one before."""
        try:
            above = self._configs.after(cut_from, entries)
        except CorruptData as error:  # as its leader sent it: the disk here is not to blame
            raise BrokenInvariant(error.message) from error
        if cut_from is not None:
            self._SyncObj__deleteEntriesFrom(cut_from)
        if entries:
            self._log.append(entries)
        self._configs.above = above

    def _set_commit(self, commit: int) -> None:
        assert self.commit_index < commit <= self._log.last_index
        self._SyncObj__raftCommitIndex = commit
        self._record_commit()

    def _record_commit(self) -> None:
        """Let the next sync mark carry the commit index (hazard 11), but no further than what is synced here:
        after a crash, other bytes may lie above that, and they must not pass for committed."""
        self._SyncObj__raftLog.setRaftCommitIndex(min(self.commit_index, self._log.durable_index))

    def _SyncObj__generateRaftTimeout(self) -> float:
        """Hazard 14: until it asks for pre-votes. Randomness is the broker's own source, not the module `random`."""
        return self._around.rng.uniform(*self._around.election_s())

    def _SyncObj__deleteEntriesFrom(self, fromIDx: int) -> None:
        """Hazard 2: only what conflicts goes, and durably so before anything replaces it."""
        assert fromIDx > self.commit_index
        self._log.truncate_from(fromIDx)

    def _SyncObj__connectedToAnyone(self) -> bool:
        """Hazard 14: pre-votes, not connections, decide whether to stand."""
        return True

    def _SyncObj__onSetCodeVersion(self, newVersion: int) -> None:
        """Hazard 16: no methods are looked for that a pickle would name. Versions travel in entries and in the
        registry's feature level."""

    def _SyncObj__tryLogCompaction(self) -> None:
        """Hazard 21: nothing is trimmed because it was applied."""

    # ---- stock paths that must not be reached ----------------------------------------------------------

    def _applyCommand(self, command: bytes, callback: Any, commandType: Any = None) -> None:
        raise AssertionError("hazard 19: commands are proposed on the leader, never queued or forwarded")

    def _checkCommandsToApply(self) -> None:
        raise AssertionError("hazard 19: there is no command queue")

    def _SyncObj__getEntries(self, fromIDx: int, count: int | None = None, maxSizeBytes: int | None = None) -> Any:
        raise AssertionError("hazards 12 and 17: entries are read on the log, and sent whole")

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        raise AssertionError("hazard 16: commands are not pickles")

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        raise AssertionError("hazards 5, 6 and 21: there is no dump file")

    def _SyncObj__deleteEntriesTo(self, toIDx: int) -> None:
        raise AssertionError("hazard 6: retention removes whole segments")

    def _SyncObj__changeCluster(self, request: Any) -> bool:
        raise AssertionError("hazards 8 and 20: membership comes from CONFIG entries")

    def _SyncObj__doChangeCluster(self, request: Any, reverse: bool = False) -> bool:
        raise AssertionError("hazards 8 and 20: membership comes from CONFIG entries")

"""The state that a replica has in every role, and the only code that writes it.

| what | kept by | written by |
|---|---|---|
| term, vote | PySyncObj, through the vote store | `enter_term` |
| role, leader | PySyncObj | `become`, `leader_id` |
| commit index | PySyncObj, in the log's sync marks | `advance_commit`, `record_commit` |
| applied index | PySyncObj | the replica, when it applies |
| log and CONFIGs | `Log`, `Configs` | `change_log` |
| messages that wait for a vote's sync | `VoteBarrier` | `post` |

The order of effects is the order of the calls. A message that rests on a term or a vote goes through `post`, so it
leaves after the vote store has synced both. An acknowledgement of entries names the durable index, so it needs no
queue of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinymq.base.errors import BrokenInvariant, CorruptData, NotLeader, TinymqError
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.log.broker_files.vote_store import VoteStore
from tinymq.log.replica_log.log import Log
from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.messages import Message, RequestVote, Vote
from tinymq.raft.state import pysyncobj_seams
from tinymq.raft.state.env import ReplicaEnv
from tinymq.raft.state.journal import GroupJournal
from tinymq.raft.state.pysyncobj_state import PySyncObjState
from tinymq.raft.state.vote_barrier import VoteBarrier


class ReplicaState:
    """One replica's term, vote, log, CONFIGs and indexes. Roles read its fields, and change them by its methods."""

    def __init__(
        self,
        group: GroupId,
        me: Replica,
        log: Log,
        vote_store: VoteStore,
        env: ReplicaEnv,
        configs: Configs,
        applied_index: int,
    ) -> None:
        self.group = group
        self.me = me  # this broker's present incarnation
        self.log = log
        self.env = env
        self.configs = env.configs = configs
        self.peers = [r.broker_id for r in configs.membership.replicas if r.broker_id != me.broker_id]
        self.vote_barrier = VoteBarrier(lambda: vote_store.durable(group))
        self.failure: TinymqError | None = None  # the error that ended its part; written by `RaftReplica.fail`
        self.last_leader: int | None = None  # the leader, or the last one while none is known
        self.leader_session: int | None = None  # of the leader's process; a later process of its broker does not lead
        journal = GroupJournal(group, log, vote_store)
        self.raft = PySyncObjState(me.broker_id, self.peers, journal, env.clock, self.election_timeout_s, applied_index)

    def election_timeout_s(self) -> float:
        """Draw the seconds to wait before the next campaign."""
        return self.env.rng.uniform(*self.env.election_s())

    # ---- term, vote, role and leader -----------------------------------------------------------------------

    @property
    def term(self) -> int:
        return self.raft.term

    @property
    def voted_for(self) -> int | None:
        return self.raft.voted_for

    def enter_term(self, term: int, voted_for: int | None) -> None:
        """Enter a term, or vote in the present one. Messages posted from now on wait for the vote store's sync."""
        self.raft.enter_term(term, voted_for)

    @property
    def leader_id(self) -> int | None:
        """The leader's broker as known here, or None."""
        return self.raft.leader_id

    def become(self, role: int, leader: int | None) -> None:
        """Set the role (a constant of `pysyncobj_seams`) and the leader."""
        self.raft.role = role
        self.set_leader(leader)

    def set_leader(self, leader: int | None) -> None:
        self.raft.leader_id = leader
        self.last_leader = self.last_leader if leader is None else leader
        self.leader_session = None if leader is None else self.env.session(leader)

    @property
    def is_candidate(self) -> bool:
        return bool(self.raft.role == pysyncobj_seams.CANDIDATE)

    @property
    def election_deadline(self) -> float:
        """Monotonic time of the next campaign; NEVER while a leader is heard, while leading, and after a failure."""
        return self.raft.election_deadline

    @election_deadline.setter
    def election_deadline(self, deadline: float) -> None:
        self.raft.election_deadline = deadline

    def restart_election_timer(self) -> None:
        self.raft.election_deadline = self.env.now() + self.election_timeout_s()

    def not_leader(self) -> NotLeader:
        return NotLeader(f"{self.group} is not led here", leader=self.leader_id, leader_epoch=self.term)

    # ---- membership ----------------------------------------------------------------------------------------

    @property
    def membership(self) -> Membership:
        """The membership by the applied CONFIG."""
        return self.configs.membership

    @property
    def newest_membership(self) -> Membership:
        """The membership by the newest CONFIG in the log, committed or not."""
        return self.configs.newest

    @property
    def is_listed(self) -> bool:
        """Does the applied CONFIG list this very incarnation?

        Otherwise it neither votes, campaigns nor counts (hazard 22): it may lack entries that its predecessor
        acknowledged, and no replica would notice.
        """
        return self.configs.lists(self.me)

    @property
    def is_member(self) -> bool:
        """Is this incarnation listed, and has its disk stored that?

        The next disk may be replaced only after that. Until then the group must be able to go on without this disk.
        """
        return self.configs.has_kept(self.me)

    @property
    def is_observer(self) -> bool:
        """Does CONFIG list no replica of this broker, under any identity?"""
        return self.membership.replica(self.me.broker_id) is None

    # ---- log and commit ------------------------------------------------------------------------------------

    @property
    def commit_index(self) -> int:
        return self.raft.commit_index

    @property
    def applied_index(self) -> int:
        return self.raft.applied_index

    @property
    def position_before_forced(self) -> tuple[int, int]:
        """(last term, last index) of the log before the entries of a forced leadership, which may be uncommitted."""
        forced = self.configs.forced_at
        last = self.log.last_index if forced is None else forced - 1
        return self.log.term_at(last) or 0, last

    def change_log(self, cut_from: int | None, entries: Sequence[Entry]) -> None:
        """Cut the log from `cut_from` on (None: cut nothing), then append `entries`, in memory.

        A CONFIG counts from its append on, and is undone when its entry is cut (hazards 8, 20). Raises BrokenInvariant
        for a CONFIG that does not follow from the one before, and changes nothing then.
        """
        try:
            above = self.configs.after(cut_from, entries)
        except CorruptData as error:  # the leader sent this CONFIG, so our disk is not damaged
            raise BrokenInvariant(error.message) from error
        if cut_from is not None:
            # Hazard 2: only a conflict cuts, and never committed entries. The cut is durable before the append.
            assert cut_from > self.commit_index
            self.log.truncate_from(cut_from)
        if entries:
            self.log.append(entries)
        self.configs.above = above

    def advance_commit(self, commit: int) -> None:
        """Raise the commit index. The caller has checked that the entry at `commit` is the committed one."""
        assert self.commit_index < commit <= self.log.last_index
        self.raft.commit_index = commit
        self.record_commit()

    def record_commit(self) -> None:
        """Let the next sync mark carry the commit index (hazard 11), but at most the durable index.

        After a crash, the log may hold other bytes above the synced part. These must not count as committed.
        """
        self.raft.record_commit(min(self.commit_index, self.log.durable_index))

    # ---- messages ------------------------------------------------------------------------------------------

    def post(self, peer: int, message: Message) -> None:
        """Send `message` once the term and the vote are synced.

        Only the peer's present incarnation gets it. While it waits, a newer message of its kind replaces it: any
        message may be lost, and the newest one carries the most.
        """
        incarnation = self.env.incarnation(peer)
        kind = (peer, type(message), isinstance(message, RequestVote | Vote) and message.pre)
        self.vote_barrier.post(lambda: self.env.incarnation(peer) == incarnation and self.env.send(peer, message), kind)

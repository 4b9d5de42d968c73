"""How a replica follows: what it takes from its leader's log, what it believes of the commit, what it answers.

The decisions are `catchup` and `commit`, pure; an answer names only what is synced.
"""

from __future__ import annotations

from tinymq.base.errors import BrokenInvariant, UnsupportedVersion
from tinymq.format.entry import Entry
from tinymq.format.feature_level import KNOWN_LEVEL, knows_entry
from tinymq.raft.replica import pysyncobj_seams
from tinymq.raft.replica.voting import VotingReplica
from tinymq.raft.rules.commit import follower_commit
from tinymq.raft.rules.log_matching import Conflict, receive
from tinymq.raft.rules.messages import (
    Append,
    AppendAck,
    CommitNotice,
    InstallSnapshot,
    InstallSnapshotAck,
    SnapshotChunk,
)


def check_known(entry: Entry) -> None:
    """Raises UnsupportedVersion for an entry that only a newer build knows."""
    header = entry.header
    if not knows_entry(header.kind, header.version):
        raise UnsupportedVersion(
            f"entry {entry.index} is of kind {header.kind}, version {header.version}; this build knows feature level"
            f" {KNOWN_LEVEL}",
            hint="install the cluster's newer tinymq on this broker",
        )


class FollowingReplica(VotingReplica):
    """A replica that appends what a leader sends."""

    def durable(self) -> None:
        """The log's durable index, or the ballot, or the commit index that the disk knows, advanced."""
        if self._failure is not None:
            return
        self._outbox.flush()
        self._record_commit()
        if self._configs.keep(self._log.commit.durable):
            self._around.wake()  # it may be a member by that
        self._commit()
        leader = self.leader_id
        if self._leadership is None and leader is not None and self._verified:
            self._SyncObj__sendNextNodeIdx(pysyncobj_seams.peer(leader), success=True)

    def _heeds(self, peer: int, term: int) -> bool:
        """A message of who leads `term`, or did: follow it, unless that is over. False: it is not to be taken."""
        self._adopt(term)
        if term < self.term:
            self._SyncObj__sendNextNodeIdx(pysyncobj_seams.peer(peer))  # hazard 14: a stale leader is told our term
            return False
        assert self._leadership is None, f"{self._group}: broker {peer} and we both lead term {term}"
        if term != self._ended_term and (self.leader_id != peer or self._ballot is not None):
            self._follow(peer)
        return True

    def _on_append(self, peer: int, message: Append) -> None:
        if not self._heeds(peer, message.term):
            return
        node = pysyncobj_seams.peer(peer)
        for entry in message.entries:
            check_known(entry)
        decision = receive(self._log, self.commit_index, message)
        if isinstance(decision, Conflict):
            self._SyncObj__sendNextNodeIdx(node, True, decision.next, next_term=decision.next_term)
            return
        if decision.entries:
            self._change_log(decision.truncate_from, decision.entries)
        self._verified = max(self._verified, decision.verified)
        self._announced_commit = max(self._announced_commit, message.commit)
        self._learn_commit(message.commit, decision.verified)
        if self._log.durable_index >= decision.verified:
            self._SyncObj__sendNextNodeIdx(node, success=True)

    def _on_state(self, peer: int, message: InstallSnapshot | SnapshotChunk) -> None:
        """A leader whose log begins behind what is here offers what it applied before."""
        if not self._heeds(peer, message.term):
            return
        if isinstance(message, InstallSnapshot) and message.index <= self.commit_index:
            ours = self._log.term_at(message.index)
            if ours not in (None, message.entry_term):
                raise BrokenInvariant(
                    f"entry {message.index} was committed here in term {ours}, and elsewhere in {message.entry_term}"
                )
        self._around.take_state(peer, message)

    def vouch(self, index: int) -> None:
        """What the leader offered is here: `index` is committed, in its log and in ours. Tell it."""
        leader = self.leader_id
        if self._failure is None and leader is not None and self._leadership is None:
            self._verified = max(self._verified, index)
            self._learn_commit(index, index)
            self._SyncObj__sendNextNodeIdx(pysyncobj_seams.peer(leader), success=True)

    def send_install_snapshot_ack(self, peer: int, index: int, crc: int, received: int) -> None:
        self._post(peer, InstallSnapshotAck(self.term, index, crc, received, self._me.count))

    def _on_commit_notice(self, peer: int, notice: CommitNotice) -> None:
        if notice.round:
            if not self._heeds(peer, notice.term):
                return
        elif notice.term != self.term or peer != self.leader_id:
            return
        self._learn_commit(notice.commit, self._verified)
        self._round = max(self._round, notice.round)
        if notice.ack_wanted or notice.round:
            self._SyncObj__sendNextNodeIdx(pysyncobj_seams.peer(peer), success=True)

    def _learn_commit(self, announced: int, verified: int) -> None:
        commit = follower_commit(self.commit_index, announced, verified)
        if commit > self.commit_index:
            self._set_commit(commit)
            self._around.wake()

    def _SyncObj__sendNextNodeIdx(
        self,
        node: pysyncobj_seams.PeerNode,
        reset: bool = False,
        nextNodeIdx: int = 0,
        success: bool = False,
        next_term: int = 0,
    ) -> None:
        """Hazards 3, 7, 11, 22: answers carry the term, what is *synced*, what conflicts, and who we are. Who is listed
        and no member yet does not know its CONFIG to be committed, as far as others may rely on it."""
        received = self._verified if success else self._log.last_index if reset else 0
        durable = min(self._log.durable_index, received) if success else 0
        sure = self.is_member or not self.is_listed
        commit = self.commit_index if sure else self._configs.applied.index - 1
        self._post(
            int(node.id),
            AppendAck(
                self.term,
                durable,
                received,
                reset,
                nextNodeIdx,
                next_term,
                commit,
                self._me.count,
                self._round,
            ),
        )

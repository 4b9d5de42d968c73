"""The role of a replica that follows: it appends its leader's entries, and acknowledges them.

The decisions are pure functions in `rules.log_matching` and `rules.commit`. An answer acknowledges only synced entries.
"""

from __future__ import annotations

from tinymq.base.errors import BrokenInvariant, UnsupportedVersion
from tinymq.format.entry import Entry
from tinymq.format.feature_level import KNOWN_LEVEL, knows_entry
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
from tinymq.raft.state.replica_state import ReplicaState


def check_known(entry: Entry) -> None:
    """Raise UnsupportedVersion for an entry that only a newer build knows."""
    header = entry.header
    if not knows_entry(header.kind, header.version):
        raise UnsupportedVersion(
            f"entry {entry.index} is of kind {header.kind}, version {header.version}; this build knows feature level"
            f" {KNOWN_LEVEL}",
            hint="install the cluster's newer tinymq on this broker",
        )


class Following:
    """The state that a follower learns from the present term's leader. A pre-vote, which changes no term, keeps it."""

    def __init__(self, state: ReplicaState) -> None:
        self.state = state
        self.verified = 0  # the last index shown to match the leader's log in this term; invariant: <= last_index
        self.read_id = 0  # the greatest read index id that a notice of this term carried; acks repeat it
        self.announced_commit = 0  # the leader's last announced commit index; this log may end below it

    def forget_term(self) -> None:
        """Forget what the last leader has shown, because another term has begun."""
        self.verified = self.read_id = self.announced_commit = 0

    # ---- messages of the leader of this term (the replica has checked the term, and follows the sender) --------

    def on_append(self, peer: int, message: Append) -> None:
        """Append the entries that follow on this log, and acknowledge them; or report where the two logs conflict.

        Raises UnsupportedVersion, and BrokenInvariant for a conflict with a committed entry.
        """
        state = self.state
        for entry in message.entries:
            check_known(entry)
        decision = receive(state.log, state.commit_index, message)
        if isinstance(decision, Conflict):
            self._acknowledge(peer, 0, state.log.last_index, decision)
            return
        if decision.entries:
            state.change_log(decision.truncate_from, decision.entries)
        self.verified = max(self.verified, decision.verified)
        self.announced_commit = max(self.announced_commit, message.commit)
        self.learn_commit(message.commit, decision.verified)
        # Hazard 7: entries that are not synced yet are acknowledged by `RaftReplica.durable`, after their sync.
        if state.log.durable_index >= decision.verified:
            self.acknowledge(peer)

    def on_snapshot(self, peer: int, message: InstallSnapshot | SnapshotChunk) -> None:
        """Take a snapshot, or a chunk of one. The leader sends it because its log begins after the end of this one.

        Raises BrokenInvariant if another entry was committed here at the snapshot's index.
        """
        state = self.state
        if isinstance(message, InstallSnapshot) and message.index <= state.commit_index:
            ours = state.log.term_at(message.index)
            if ours not in (None, message.entry_term):
                raise BrokenInvariant(
                    f"entry {message.index} was committed here in term {ours}, and elsewhere in {message.entry_term}"
                )
        state.env.take_snapshot(peer, message)

    def on_commit_notice(self, peer: int, notice: CommitNotice) -> None:
        """Learn the commit index, and answer if the leader asks for it."""
        self.learn_commit(notice.commit, self.verified)
        self.read_id = max(self.read_id, notice.read_id)
        if notice.ack_wanted or notice.read_id:
            self.acknowledge(peer)

    # ---- the commit index -------------------------------------------------------------------------------------

    def learn_commit(self, announced: int, verified: int) -> None:
        """Advance the commit index to what the leader announced, but not beyond `verified` (hazards 1 and 2)."""
        state = self.state
        commit = follower_commit(state.commit_index, announced, verified)
        if commit > state.commit_index:
            state.advance_commit(commit)
            state.env.wake()

    def vouch(self, index: int) -> None:
        """Note that the snapshot up to `index` is installed, or was not needed: `index` is committed in both logs."""
        leader = self.state.leader_id
        if leader is None:
            return  # the next leader begins again
        self.verified = max(self.verified, index)
        self.learn_commit(index, index)
        self.acknowledge(leader)

    # ---- answers ------------------------------------------------------------------------------------------------

    def acknowledge(self, peer: int) -> None:
        """Tell the leader how far this log matches its own: the synced part, and the received part."""
        self._acknowledge(peer, min(self.state.log.durable_index, self.verified), self.verified)

    def refuse_stale(self, peer: int) -> None:
        """Tell a stale leader the present term (hazard 14). The answer acknowledges nothing."""
        self._acknowledge(peer, 0, 0)

    def ask_for_entries(self, peer: int) -> None:
        """Ask for the entries after the end of this log. Only the leader sends them."""
        log = self.state.log
        self._acknowledge(peer, 0, log.last_index, Conflict(log.last_index + 1, log.term_at(log.last_index) or 0))

    def _acknowledge(self, peer: int, durable: int, received: int, conflict: Conflict | None = None) -> None:
        """Answer with the term, the *synced* index, a conflict, and our incarnation count (hazards 3, 7, 11, 22)."""
        state = self.state
        # A replica that is listed, but no member yet, may forget in a power cut that its CONFIG is committed. So it
        # reports an index below that CONFIG, and the leader does not count it as sure.
        sure = state.is_member or not state.is_listed
        commit = state.commit_index if sure else state.configs.applied.index - 1
        state.post(
            peer,
            AppendAck(
                term=state.term,
                durable=durable,
                received=received,
                conflict=conflict is not None,
                next=0 if conflict is None else conflict.next,
                next_term=0 if conflict is None else conflict.next_term,
                commit=commit,
                count=state.me.count,
                read_id=self.read_id,
            ),
        )

    def acknowledge_snapshot(self, peer: int, index: int, crc: int, received: int) -> None:
        """Tell the leader how many bytes of the snapshot (index, crc) are here without a gap."""
        state = self.state
        state.post(peer, InstallSnapshotAck(state.term, index, crc, received, state.me.count))

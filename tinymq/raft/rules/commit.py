"""The commit rule: which index a leader may commit, and which one a follower may believe. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tinymq.raft.rules.log_matching import LogView
from tinymq.raft.rules.membership import Membership, quorum_index


def leader_commit(membership: Membership, match: Mapping[int, int], commit: int, first_of_term: int) -> int:
    """Return the leader's new commit index.

    `match` holds durable indexes of listed incarnations only, the leader's own durable index among them
    (hazard 7: it is one vote, and only for what it has synced). Entries of earlier terms commit together with an entry
    of the leader's own term, never by counting (paper, 5.4.2): `first_of_term` is the index of its NOOP.
    """
    reached = quorum_index(membership, match)
    return reached if reached >= first_of_term and reached > commit else commit


def follower_commit(commit: int, announced: int, verified: int) -> int:
    """Return a follower's new commit index.

    It is clamped to `verified`, the last index that messages of this term have shown to match the leader's log
    (hazards 1 and 2: stock commits up to the follower's own, possibly divergent, last index).
    """
    return max(commit, min(announced, verified))


def reported_commit(commit: int, reported: int, matching: int) -> int:
    """Return a leader's commit index after a follower has reported its own.

    `matching`: the follower's log matches the leader's up to there. Every later leader
    has each entry that any replica knows to be committed. Without this rule a leader could wait for ever: its NOOP may
    need the acknowledgement of a replica that only one CONFIG lists, and the leader does not know that this CONFIG is
    committed.
    """
    return max(commit, min(reported, matching))


def vouched_commit(log: LogView, commit: int, index: int, term: int) -> int:
    """Return the commit index after a peer has vouched that the entry (index, term) is committed.

    If this log has the same entry, it and all entries before it are committed here, too. In this way a
    candidate tells a learner that the CONFIG which lists the learner is committed.
    """
    return index if index > commit and log.term_at(index) == term else commit

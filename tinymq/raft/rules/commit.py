"""The commit rule, purely: what a leader may commit, and what a follower may believe."""

from __future__ import annotations

from collections.abc import Mapping

from tinymq.raft.rules.log_matching import LogView
from tinymq.raft.rules.membership import Membership, quorum_index


def leader_commit(membership: Membership, match: Mapping[int, int], commit: int, first_of_term: int) -> int:
    """The leader's new commit index.

    `match` holds durable indexes of listed incarnations only, the leader's own durable index among them
    (hazard 7: it is one vote, and only for what it has synced). Entries of earlier terms commit with one of
    the leader's own term, never by counting (paper, 5.4.2): `first_of_term` is the index of its NOOP.
    """
    reached = quorum_index(membership, match)
    return reached if reached >= first_of_term and reached > commit else commit


def follower_commit(commit: int, announced: int, verified: int) -> int:
    """A follower's new commit index.

    Clamped to `verified`, the last index that messages of this term have shown to match the leader's log
    (hazards 1 and 2: stock commits up to the follower's own, possibly divergent, last index).
    """
    return max(commit, min(announced, verified))


def reported_commit(commit: int, reported: int, matching: int) -> int:
    """A leader's commit index, once a follower reports its own, and that its log matches up to `matching`.

    What anybody knows to be committed is in the log of every later leader. Without this, a leader whose NOOP needs
    the vote of a replica that only a CONFIG lists which it does not know to be committed would wait for ever.
    """
    return max(commit, min(reported, matching))


def vouched_commit(log: LogView, commit: int, index: int, term: int) -> int:
    """The commit index, once somebody vouches that the entry (index, term) is committed: if it is the one here, so is
    all before it. A learner that was not told of the CONFIG that lists it hears of it from a candidate so."""
    return index if index > commit and log.term_at(index) == term else commit

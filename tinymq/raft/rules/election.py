"""Elections: whether to grant a vote, and how long to wait before a campaign. Pure.

Raft paper, sections 5.2 and 5.4; pre-vote and leader stickiness from Ongaro's thesis, 4.2.3 and 9.6.
"""

from __future__ import annotations

import random
from enum import Enum

from tinymq.base.value import value
from tinymq.raft.rules.membership import Membership
from tinymq.raft.rules.messages import RequestVote


class VoteAnswer(Enum):
    GRANT = "grant"
    DENY = "deny"
    IGNORE = "ignore"


@value
class Voter:
    """The knowledge of a replica that is asked for its vote."""

    term: int
    voted_for: int | None
    last_index: int
    last_term: int
    hears_leader: bool  # it leads, or follows a leader that it heard lately


def answer_vote(voter: Voter, candidate: int, request: RequestVote) -> VoteAnswer:
    """Grant, deny or ignore. The caller has not yet adopted the request's term.

    A replica that hears its leader ignores candidates. So a replica that was away cannot depose a leader that a
    majority can reach. An election that the leader itself asked for (`transfer`) is exempt.
    """
    if voter.hears_leader and not request.transfer:
        return VoteAnswer.DENY if request.pre else VoteAnswer.IGNORE
    if request.term < voter.term or (request.pre and request.term == voter.term):
        return VoteAnswer.DENY
    if (request.last_term, request.last_index) < (voter.last_term, voter.last_index):
        return VoteAnswer.DENY
    if not request.pre and request.term == voter.term and voter.voted_for not in (None, candidate):
        return VoteAnswer.DENY
    return VoteAnswer.GRANT


class LeadershipOrigin(Enum):
    """The way in which a leadership came about."""

    WON = "won"  # by an election, because there was no leader
    TRANSFERRED = "transferred"  # by the leader before: it stopped, its disk hung, or another broker is preferred
    # by the leader before, because an operator asked for it; preferred-leader election leaves it alone
    MANUAL = "manual"


def campaign_delay_s(
    membership: Membership, broker_id: int, gone: int | None, spread_s: float, rng: random.Random
) -> float:
    """Return the seconds to wait before a campaign, once the leader is known to be gone.

    `gone`: the broker that led. Replicas campaign one after the other in the order of the membership, so that they
    seldom split the vote. The spread between two ranks leaves time to win the votes.
    """
    ranks = [r.broker_id for r in membership.replicas if r.broker_id != gone]
    rank = ranks.index(broker_id) if broker_id in ranks else len(ranks)
    return rank * spread_s + rng.random() * spread_s / 4

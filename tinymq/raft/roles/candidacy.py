"""The role of a replica that asks for votes."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.membership import Membership, has_quorum
from tinymq.raft.rules.messages import Vote


@dataclass(slots=True, eq=False)
class Candidacy:
    """One campaign: the term that it asks for, and its voters. Only the replica writes it."""

    term: int  # of the votes that it asks for; a pre-vote's is one above the replica's own
    pre: bool  # a pre-vote (hazard 14) asks whether the peer would vote, and changes no term anywhere
    origin: LeadershipOrigin = LeadershipOrigin.WON  # the origin of the leadership that it may win
    voters: set[int] = field(default_factory=set)  # brokers; hazard 4: a vote counted twice elects two leaders

    def asked_for(self, vote: Vote) -> bool:
        """Does this vote answer this very campaign? A pre-vote, or one of an earlier term, does not."""
        return (self.term, self.pre) == (vote.term, vote.pre)

    def record(self, voter: int) -> None:
        """Count the vote of broker `voter`. The same vote again changes nothing."""
        self.voters.add(voter)

    def won(self, membership: Membership) -> bool:
        return has_quorum(membership, self.voters)

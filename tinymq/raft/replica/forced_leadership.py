"""Leading without an election, once an operator accepts the loss of a quorum (`rules.quorum_loss`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinymq.base.errors import NotReady
from tinymq.raft.replica.current_role import CurrentRole
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.quorum_loss import NOBODY, forced_membership
from tinymq.raft.state.pysyncobj_state import NEVER
from tinymq.raft.state.replica_state import ReplicaState


class ForcedLeadership:
    """One replica's part in the loss-of-quorum recovery of its group."""

    def __init__(self, state: ReplicaState, current: CurrentRole) -> None:
        self.state = state
        self.current = current
        self.promised_term = 0  # the term for which a forced leadership was last prepared

    def promise_term(self, term: int, promised: Callable[[], None]) -> None:
        """Take part in no term below `term` from now on, and call `promised` once that is durable.

        Raises NotReady when `term` is over.
        """
        if self.state.failure is not None or term <= self.state.term:
            raise NotReady(f"{self.state.group}: term {term} is over")
        # The last leader is told nothing: it may be the one that is to lead this term, from a lower one.
        self.current.enter_as_follower(term)
        self.promised_term = term
        self.state.vote_barrier.post(promised)

    def lead(self, term: int, replicas: Sequence[Replica]) -> None:
        """Lead `term` unelected, for a group that consists of `replicas` from now on: an operator accepts the loss.

        Raises NotReady if this replica hears a leader, if `term` is over, or if `replicas` names no majority.
        """
        state = self.state
        present = sum(replica.incarnation != NOBODY for replica in replicas)
        # A promised term is still open unless this replica has voted in it since.
        promised = term == state.term == self.promised_term and state.voted_for is None
        over = term <= state.term and not promised
        if self.state.failure is not None or self.current.hears_leader or over or 2 * present <= len(replicas):
            raise NotReady(f"{state.group}: it has a leader, or term {term} is over, or too few replicas are there")
        self.current.follow(None)
        state.election_deadline = NEVER  # it leads as soon as the term is on disk
        self.current.enter_term(term, state.me.broker_id)
        forced = forced_membership(state.newest_membership, state.me.broker_id, replicas)
        state.configs.force(forced)
        state.vote_barrier.post(lambda: self._lead_forced(term, forced))
        state.env.wake()

    def _lead_forced(self, term: int, forced: Membership) -> None:
        """Append the forced CONFIG. It commits under itself, so nothing is acknowledged before a majority stores it."""
        if self.state.term == term and self.state.configs.forced is forced:
            self.current.become_leader(LeadershipOrigin.WON)
            self.current.leading().append_config(forced)

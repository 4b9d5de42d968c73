"""The role of a replica, and the only code that switches it.

follower ──election deadline──▶ candidate ──votes of a majority──▶ leader
   ▲                               │                                 │
   └── a leader, or a higher term ─┴──── a higher term, or no quorum ┘
"""

from __future__ import annotations

from tinymq.base.errors import NotLeader
from tinymq.raft.roles.candidacy import Candidacy
from tinymq.raft.roles.following import Following
from tinymq.raft.roles.leadership import Leadership
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.membership import has_quorum
from tinymq.raft.state import pysyncobj_seams
from tinymq.raft.state.env import StateMachine
from tinymq.raft.state.pysyncobj_state import NEVER
from tinymq.raft.state.replica_state import ReplicaState


class CurrentRole:
    """Holds the present role: Following, Candidacy or Leadership. Each switch also sets PySyncObj's own role."""

    def __init__(self, state: ReplicaState, machine: StateMachine) -> None:
        self.state = state
        self.machine = machine
        self.following = Following(state)  # one object for the replica's life; it forgets at each new term
        self.role: Following | Candidacy | Leadership = self.following
        self.ended_term = 0  # the newest term whose leader has announced its end; `Elections` writes it
        self.superseded = set[int]()  # brokers that may lead an earlier term and not know that it is over

    @property
    def leadership(self) -> Leadership | None:
        """The role, while this replica leads."""
        return self.role if isinstance(self.role, Leadership) else None

    def leading(self) -> Leadership:
        """Return the role of a leader. Raises NotLeader."""
        if isinstance(self.role, Leadership):
            return self.role
        raise self.state.not_leader()

    @property
    def leading_term(self) -> int | None:
        return self.role.term if isinstance(self.role, Leadership) else None

    @property
    def hears_leader(self) -> bool:
        """Does this replica lead, or follow a leader whose broker is alive?"""
        state, leader = self.state, self.state.leader_id
        if leader == state.me.broker_id:
            return self.leadership is not None
        return leader is not None and state.env.alive(leader)

    @property
    def heard_leader_lately(self) -> bool:
        """Does this replica veto candidates?

        A replica that begins to doubt its leader stops vetoing before it campaigns itself.
        """
        leader = self.state.leader_id
        return self.leadership is not None or (leader is not None and self.state.env.hears(leader))

    def adopt_term(self, peer: int, term: int) -> None:
        """Enter the term of `peer` as a follower if it is higher than ours. Its role in the old term ends."""
        if term > self.state.term:
            self.enter_term(term, None)
            self.follow(None)
            self.superseded.discard(peer)
            for each in sorted(self.superseded):
                self.tell_superseded(each)

    def enter_as_follower(self, term: int) -> bool:
        """As `adopt_term`, and tell nobody. Returns whether the term is higher than ours was."""
        if term <= self.state.term:
            return False
        self.enter_term(term, None)
        self.follow(None)
        self.superseded.clear()
        return True

    def tell_superseded(self, peer: int) -> None:
        """If `peer` may lead an earlier term, tell it this one (hazard 13).

        It may hear a majority, but not the leader or the candidate of this term. A group that rests sends it nothing
        else, so it would lead on until somebody writes. The caller repeats this when a connection to `peer` opens.
        """
        if peer in self.superseded and self.state.leader_id != peer:
            self.following.refuse_stale(peer)

    def enter_term(self, term: int, voted_for: int | None) -> None:
        """Enter a higher term, with a vote or without, and forget what the last leader has shown."""
        state = self.state
        # A broker with our vote may lead the term that ends here without our knowledge. One broker is in the majorities
        # of both terms: it voted for the old leader, and tells it of the new term.
        former = (state.last_leader, state.voted_for)
        self.superseded.update(each for each in former if each not in (None, state.me.broker_id))
        state.enter_term(term, voted_for)
        self.following.forget_term()

    def follow_sender(self, peer: int, term: int) -> bool:
        """Follow the sender as leader of `term`. Returns False if the term is stale."""
        state = self.state
        self.adopt_term(peer, term)
        if term < state.term:
            self.following.refuse_stale(peer)
            return False
        assert self.leadership is None, f"{state.group}: broker {peer} and we both lead term {term}"
        # A leader's messages may arrive after the notice that it stepped down. We take them, and follow no leader.
        if term != self.ended_term and (state.leader_id != peer or isinstance(self.role, Candidacy)):
            self.follow(peer)
        return True

    def follow(self, leader: int | None) -> None:
        """Become a follower, of `leader` if it is known. A leadership of this replica ends."""
        state, ended = self.state, self.leadership
        self.role = self.following
        state.configs.release()
        state.become(pysyncobj_seams.FOLLOWER, leader)
        state.restart_election_timer()
        if ended is not None:
            self._end(ended, leader)
        state.env.wake()

    def close(self) -> None:
        """End a leadership of this replica, which leaves the group: what waits for the leader must not wait on."""
        ended = self.leadership
        if ended is not None:
            self.role = self.following
            self.state.become(pysyncobj_seams.FOLLOWER, None)
            self._end(ended, None)

    def _end(self, ended: Leadership, leader: int | None) -> None:
        state = self.state
        self.machine.follow()
        ended.reads.end(NotLeader(f"{state.group} is led here no more", leader=leader, leader_epoch=state.term))

    def become_leader(self, origin: LeadershipOrigin) -> None:
        """Lead the present term (hazard 19). The state machine accepts proposals once the term's NOOP is applied."""
        state = self.state
        state.become(pysyncobj_seams.LEADER, state.me.broker_id)
        state.election_deadline = NEVER
        self.role = leadership = Leadership(state, origin)
        leadership.append_noop()

    def check_quorum(self) -> None:
        """Step down unless a majority proves that it hears this leader (hazard 13)."""
        state = self.state
        if self.leadership is None:
            return
        hearing = {state.me.broker_id, *(peer for peer in state.peers if state.env.heard_by(peer))}
        if not has_quorum(state.membership, hearing):
            self.follow(None)

    def stand(self, candidacy: Candidacy) -> None:
        """Become a candidate, which follows no leader."""
        self.role = candidacy
        self.state.become(pysyncobj_seams.CANDIDATE, None)

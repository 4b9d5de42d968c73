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
    """Following, Candidacy or Leadership, whichever it is now. PySyncObj's own role follows each switch."""

    def __init__(self, state: ReplicaState, machine: StateMachine) -> None:
        self.state = state
        self.machine = machine
        self.following = Following(state)  # of the present term; one object for the replica's life
        self.role: Following | Candidacy | Leadership = self.following
        self.ended_term = 0  # the newest term whose leader has said that it leads no more; `Elections` writes it

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

        One that begins to doubt its leader stops vetoing before it campaigns itself.
        """
        leader = self.state.leader_id
        return self.leadership is not None or (leader is not None and self.state.env.hears(leader))

    def adopt_term(self, term: int) -> None:
        """If a higher term exists, enter it and follow, whatever the role was."""
        if term > self.state.term:
            self.enter_term(term, None)
            self.follow(None)

    def enter_term(self, term: int, voted_for: int | None) -> None:
        """Enter a higher term, with a vote or without. What the last leader said holds no more."""
        self.state.enter_term(term, voted_for)
        self.following.forget_term()

    def follow_sender(self, peer: int, term: int) -> bool:
        """Follow the sender as leader of `term`. Returns False if the term is stale."""
        state = self.state
        self.adopt_term(term)
        if term < state.term:
            self.following.refuse_stale(peer)
            return False
        assert self.leadership is None, f"{state.group}: broker {peer} and we both lead term {term}"
        # What a leader sent before it stepped down may come after that. It is taken, but no leader is followed for it.
        if term != self.ended_term and (state.leader_id != peer or isinstance(self.role, Candidacy)):
            self.follow(peer)
        return True

    def follow(self, leader: int | None) -> None:
        """Take the role of a follower, of `leader` if it is known. A leadership ends by it."""
        state, ended = self.state, self.leadership
        self.role = self.following
        state.configs.release()
        state.become(pysyncobj_seams.FOLLOWER, leader)
        state.restart_election_timer()
        if ended is not None:
            self.machine.follow()
            ended.reads.end(NotLeader(f"{state.group} is led here no more", leader=leader, leader_epoch=state.term))
        state.env.wake()

    def become_leader(self, origin: LeadershipOrigin) -> None:
        """Lead the present term (hazard 19). It accepts once its own NOOP is applied; see `apply`."""
        state = self.state
        state.become(pysyncobj_seams.LEADER, state.me.broker_id)
        state.election_deadline = NEVER
        self.role = leadership = Leadership(state, origin)
        leadership.append_noop()

    def check_quorum(self) -> None:
        """Hazard 13: a leader that a majority no longer hears, or does not prove to hear, steps down."""
        state = self.state
        if self.leadership is None:
            return
        hearing = {state.me.broker_id, *(peer for peer in state.peers if state.env.heard_by(peer))}
        if not has_quorum(state.membership, hearing):
            self.follow(None)

    def stand(self, candidacy: Candidacy) -> None:
        """Take the role of a candidate. No leader is followed meanwhile."""
        self.role = candidacy
        self.state.become(pysyncobj_seams.CANDIDATE, None)

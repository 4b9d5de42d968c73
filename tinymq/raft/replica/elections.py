"""When a replica campaigns, how it votes, and how it counts votes.

The decisions are pure functions in `rules.election` and `rules.membership`. A message that rests on a term or a vote
leaves through `ReplicaState.post`, after the vote store's sync.
"""

from __future__ import annotations

from tinymq.raft.replica.applier import Applier
from tinymq.raft.replica.current_role import CurrentRole
from tinymq.raft.roles.candidacy import Candidacy
from tinymq.raft.rules.commit import vouched_commit
from tinymq.raft.rules.election import LeadershipOrigin, VoteAnswer, Voter, answer_vote, campaign_delay_s
from tinymq.raft.rules.messages import RequestVote, Vote
from tinymq.raft.state.pysyncobj_state import NEVER
from tinymq.raft.state.replica_state import ReplicaState


class Elections:
    """One replica's part in the elections of its group."""

    def __init__(self, state: ReplicaState, current: CurrentRole, applier: Applier) -> None:
        self.state = state
        self.current = current
        self._applier = applier
        # The preferred leader campaigns at once when the group is opened; the others wait for it.
        state.election_deadline = self._campaign_at(None, state.env.election_s()[1])

    def check_deadline(self) -> None:
        """Begin with a pre-vote if the election deadline has passed and no leader is heard."""
        state = self.state
        if state.election_deadline <= state.env.now() and self.current.leadership is None:
            if self.current.hears_leader:
                state.election_deadline = NEVER  # the failure detector reports the end of its broker
            else:
                self.campaign(pre=True)

    def on_request_vote(self, peer: int, request: RequestVote) -> None:
        """Answer a candidate. Hazard 22: only a listed replica votes.

        Of the candidate we check only that its broker is a member. A replica campaigns only if it is listed, and if
        one of the two lacks a CONFIG, the comparison of the logs decides.
        """
        state, log = self.state, self.state.log
        self._learn_config(request)
        if request.term > state.term:
            self.leader_gone(peer)  # a candidate is no leader any more, even if the notice of that was lost
        if not self.may_vote:
            return
        voter = Voter(
            term=state.term,
            voted_for=state.voted_for,
            last_index=log.last_index,
            last_term=log.last_term,
            hears_leader=self.current.heard_leader_lately,
        )
        answer = answer_vote(voter, peer, request)
        leadership = self.current.leadership
        if leadership is not None and answer is not VoteAnswer.GRANT:
            leadership.restart_follower(peer)  # it does not know that we lead, and a resting group sends nothing
        if answer is VoteAnswer.IGNORE:
            return
        if not request.pre:
            self.current.adopt_term(peer, request.term)
        granted = answer is VoteAnswer.GRANT
        if granted and not request.pre:
            if state.voted_for != peer:
                state.enter_term(request.term, peer)
            state.restart_election_timer()
        state.post(peer, Vote(request.term if granted else state.term, granted, request.pre, state.me.count))

    @property
    def may_vote(self) -> bool:
        """Only a listed incarnation votes: any other may lack entries that its predecessor acknowledged."""
        return self.state.is_listed

    def _learn_config(self, request: RequestVote) -> None:
        """Learn from a candidate that the CONFIG which it applied is committed. That CONFIG may list us."""
        state = self.state
        commit = vouched_commit(state.log, state.commit_index, request.config_index, request.config_term)
        if commit > state.commit_index:
            state.advance_commit(commit)
            self._applier.apply_committed()
            state.env.wake()

    def on_vote(self, peer: int, vote: Vote) -> None:
        """Count a vote if it answers the present campaign and comes from a listed incarnation (hazards 4, 22)."""
        candidacy = self.current.role
        if not vote.granted:
            self.current.adopt_term(peer, vote.term)
            return
        if isinstance(candidacy, Candidacy) and candidacy.asked_for(vote) and self.counts_vote(peer, vote):
            self.count_vote(candidacy, peer)

    def counts_vote(self, peer: int, vote: Vote) -> bool:
        """Does the newest CONFIG in the log list the voter? That CONFIG may be committed without our notice."""
        return self.state.newest_membership.lists(peer, self.state.env.incarnation(peer), vote.count)

    def count_vote(self, candidacy: Candidacy, voter: int) -> None:
        """Hazard 4: votes are attributed. Our own vote counts once it is on disk."""
        if self.current.role is not candidacy:
            return  # that campaign is over
        candidacy.record(voter)
        if candidacy.won(self.state.newest_membership):
            if candidacy.pre:
                self.campaign(pre=False)
            else:
                self.current.become_leader(candidacy.origin)

    def campaign(self, *, pre: bool, origin: LeadershipOrigin = LeadershipOrigin.WON) -> None:
        """Ask for votes. A pre-vote (hazard 14) changes no term anywhere until a majority would follow."""
        state, log = self.state, self.state.log
        state.restart_election_timer()
        if state.failure is not None:
            return
        if not self.may_campaign:
            self.ask_for_leader()
            return
        if not pre:
            self.current.enter_term(state.term + 1, state.me.broker_id)
        candidacy = Candidacy(state.term + 1 if pre else state.term, pre, origin)
        self.current.stand(candidacy)
        config = state.configs.applied
        request = RequestVote(
            term=candidacy.term,
            last_index=log.last_index,
            last_term=log.last_term,
            pre=pre,
            transfer=origin is not LeadershipOrigin.WON,
            count=state.me.count,
            config_index=config.index,
            config_term=config.term,
        )
        for peer in state.peers:
            state.post(peer, request)
        # Our own vote waits in the same queue: it counts after the vote store has synced it (hazard 7).
        state.vote_barrier.post(lambda: self.count_vote(candidacy, state.me.broker_id), "our own vote")

    @property
    def may_campaign(self) -> bool:
        """Observers and learners never ask for votes."""
        return self.state.configs.counts(self.state.me) and self.state.is_member

    def ask_for_leader(self) -> None:
        """Ask every live member for the entries after the end of this log. Only the leader sends them.

        A leader notices a replica that campaigns, because it asks for votes. An observer or a learner never asks for
        votes, and the leader of a resting group has no other reason to send to it.
        """
        for peer in self.state.peers:
            if self.state.env.alive(peer):
                self.current.following.ask_for_entries(peer)

    def stepped_down(self, broker_id: int, term: int) -> None:
        """Note that the leader of `term` has announced the end of its leadership."""
        if self.state.term <= term:
            self.current.ended_term = term
            self.leader_gone(broker_id)

    def leader_gone(self, broker_id: int) -> None:
        """If that broker led: plan a campaign, in the order of preference. It died, restarted or stepped down."""
        state = self.state
        if state.failure is None and state.leader_id == broker_id and broker_id != state.me.broker_id:
            state.set_leader(None)
            state.election_deadline = self._campaign_at(broker_id, state.env.election_s()[0])
            state.env.wake()

    def _campaign_at(self, gone: int | None, spread_s: float) -> float:
        state = self.state
        delay_s = campaign_delay_s(state.membership, state.me.broker_id, gone, spread_s, state.env.rng)
        return state.env.now() + delay_s

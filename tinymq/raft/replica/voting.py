"""How a replica comes to lead or to follow: timers, candidacies, votes given and counted.

The decisions are pure and elsewhere (`election`, `membership`); this is where they meet the replica's
state. Everything that rests on a term or a vote leaves through the outbox, after the ballot's sync.
"""

from __future__ import annotations

from abc import abstractmethod

from tinymq.base.errors import NotLeader, TinymqError
from tinymq.base.types import GroupId
from tinymq.log.broker_files.vote_store import VoteStore
from tinymq.log.replica_log.log import Log
from tinymq.raft.leader.leadership import Leadership
from tinymq.raft.replica import pysyncobj_seams
from tinymq.raft.replica.outbox import Outbox
from tinymq.raft.replica.pysyncobj_state import NEVER, RaftState, ReplicaEnv, StateMachine
from tinymq.raft.rules.commit import vouched_commit
from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.election import Candidacy, LeadershipOrigin, VoteAnswer, Voter, answer_vote, stand_after_s
from tinymq.raft.rules.membership import Replica
from tinymq.raft.rules.messages import Message, RequestVote, Vote


class VotingReplica(RaftState):
    """A replica that stands, votes, and knows whom it follows."""

    def __init__(
        self, group: GroupId, me: Replica, log: Log, ballots: VoteStore, machine: StateMachine, around: ReplicaEnv,
        configs: Configs, applied_index: int,
    ) -> None:  # fmt: skip
        self._machine = machine
        self._outbox = Outbox(lambda: ballots.durable(group))
        self._leadership: Leadership | None = None  # invariant: set exactly while this replica leads
        self._ballot: Candidacy | None = None  # invariant: set only while it is a candidate
        self._verified = 0  # last index shown in this term to match the leader's log; invariant: <= last_index
        self._round = 0  # the greatest that a leader's notice of this term asked for; acks say it
        self._announced_commit = 0  # by this term's leader, whether we hold as much or not
        self._ended_term = 0  # the newest whose leader has said that it leads no more
        self._settle_at = NEVER
        self._failure: TinymqError | None = None
        super().__init__(group, me, log, ballots, around, configs, applied_index)
        self._SyncObj__raftElectionDeadline = self._first_deadline()

    @property
    def failure(self) -> TinymqError | None:
        return self._failure

    @property
    def observed(self) -> bool:
        """Do brokers follow this group that no CONFIG lists?"""
        return self._around.observed

    @property
    def announced_commit(self) -> int:
        """The commit index as the leader said last in this term; 0 when it has not."""
        return self._announced_commit

    @property
    def hears_leader(self) -> bool:
        leader = self.leader_id
        if leader == self._me.broker_id:
            return self._leadership is not None
        return leader is not None and self._around.alive(leader)

    @property
    def _heard_lately(self) -> bool:
        """Who has begun to doubt does not stand yet, but does not refuse who has missed the leader for longer."""
        leader = self.leader_id
        return self._leadership is not None or (leader is not None and self._around.hears(leader))

    def next_wake(self) -> float:
        """Monotonic time of this replica's next timer; infinite when it rests."""
        notice_at = NEVER if self._leadership is None else self._leadership.notice_at
        return float(min(self._SyncObj__raftElectionDeadline, self._settle_at, notice_at))

    def _first_deadline(self) -> float:
        """The preferred leader stands at once when the group is opened, the others give it time."""
        spread = self._around.election_s()[1]
        wait = stand_after_s(self.membership, self._me.broker_id, None, spread, self._around.rng)
        return self._around.now() + wait

    def _deadline_from_now(self) -> float:
        return float(self._around.now() + self._SyncObj__generateRaftTimeout())

    def stepped_down(self, broker_id: int, term: int) -> None:
        """Who led `term` says that it leads no more. What it sent before that may come after it: it is taken, and
        nobody is followed for it."""
        if self.term <= term:
            self._ended_term = term
            self.leader_gone(broker_id)

    def leader_gone(self, broker_id: int) -> None:
        """The broker that led is gone, restarted, or leads no more."""
        if self._failure is None and self.leader_id == broker_id and broker_id != self._me.broker_id:
            self._set_leader(None)
            spread = self._around.election_s()[0]
            wait = stand_after_s(self.membership, self._me.broker_id, broker_id, spread, self._around.rng)
            self._SyncObj__raftElectionDeadline = self._around.now() + wait
            self._around.wake()

    def _check_deadline(self, now: float) -> None:
        if self._SyncObj__raftElectionDeadline <= now and self._leadership is None:
            if self.hears_leader:
                self._SyncObj__raftElectionDeadline = NEVER  # liveness tells when its broker is gone
            else:
                self._stand(pre=True)

    @property
    def _may_stand(self) -> bool:
        """May this replica stand for election? Observers and learners never do."""
        return self._configs.counts(self._me) and self.is_member

    def _stand(self, *, pre: bool, origin: LeadershipOrigin = LeadershipOrigin.WON) -> None:
        """Ask for votes; a pre-vote (hazard 14) changes nothing anywhere until a majority would follow."""
        self._SyncObj__raftElectionDeadline = self._deadline_from_now()
        if self._failure is not None:
            return
        if not self._may_stand:
            self._ask_for_leader()
            return
        self._set_leader(None)
        self._SyncObj__setState(pysyncobj_seams.CANDIDATE)
        if not pre:
            self._SyncObj__setCurrentTerm(self.term + 1, self._me.broker_id)
            self._forget_term()
        self._ballot = ballot = Candidacy(self.term + 1 if pre else self.term, pre, origin)
        log, config = self._log, self._configs.applied
        request = RequestVote(
            ballot.term, log.last_index, log.last_term, pre, origin is not LeadershipOrigin.WON, self._me.count,
            config.index, config.term,
        )  # fmt: skip
        for peer in self._peers:
            self._post(peer, request)
        self._outbox.post(lambda: self._count_vote(ballot, self._me.broker_id), "our own vote")

    def _ask_for_leader(self) -> None:
        """Ask every live member for the entries after the end of this log. Only the leader sends them.

        A leader notices a replica that stands for election, because it asks for votes. An observer or a learner never
        asks for votes, and the leader of a resting group has no other reason to send to it.
        """
        last = self._log.last_index
        for peer in self._peers:
            if self._around.alive(peer):
                self._SyncObj__sendNextNodeIdx(
                    pysyncobj_seams.peer(peer), reset=True, nextNodeIdx=last + 1, next_term=self._log.term_at(last) or 0
                )

    def _count_vote(self, ballot: Candidacy, voter: int) -> None:
        """Hazard 4: votes are attributed; our own counts once it is on disk."""
        if self._ballot is not ballot:
            return
        ballot.voters.add(voter)
        if ballot.won(self._configs.newest):
            if ballot.pre:
                self._stand(pre=False)
            else:
                self._SyncObj__onBecomeLeader()

    def _on_request_vote(self, peer: int, request: RequestVote) -> None:
        """Hazard 22: only who is listed votes. Of the candidate no more is asked than a member's number: it stands
        only if it is listed, and CONFIGs that it lacks, or we lack, are weighed with the rest of the logs."""
        self._learn_config(request)
        if request.term > self.term:
            self.leader_gone(peer)  # it asks, so it leads no more, whether or not we have heard that it stepped down
        if not self.is_listed:
            return
        log = self._log
        voter = Voter(self.term, self.voted_for, log.last_index, log.last_term, self._heard_lately)
        answer = answer_vote(voter, peer, request)
        if self._leadership is not None and answer is not VoteAnswer.GRANT:
            self._look_after(peer)  # it does not know that we lead, and a group at rest would not tell it
        if answer is VoteAnswer.IGNORE:
            return
        if not request.pre:
            self._adopt(request.term)
        granted = answer is VoteAnswer.GRANT
        if granted and not request.pre:
            if self.voted_for != peer:
                self._SyncObj__setCurrentTerm(request.term, peer)
            self._SyncObj__raftElectionDeadline = self._deadline_from_now()
        self._post(peer, Vote(request.term if granted else self.term, granted, request.pre, self._me.count))

    def _learn_config(self, request: RequestVote) -> None:
        """The candidate vouches for the CONFIG that it has applied: maybe the one that lists us."""
        commit = vouched_commit(self._log, self.commit_index, request.config_index, request.config_term)
        if commit > self.commit_index:
            self._set_commit(commit)
            self._SyncObj__applyLogEntries()
            self._around.wake()

    def _on_vote(self, peer: int, vote: Vote) -> None:
        ballot = self._ballot
        if not vote.granted:
            self._adopt(vote.term)
            return
        asked = ballot is not None and (ballot.term, ballot.pre) == (vote.term, vote.pre)
        listed = self._configs.newest.lists(peer, self._around.incarnation(peer), vote.count)
        if asked and ballot is not None and listed:
            self._count_vote(ballot, peer)

    def _adopt(self, term: int) -> bool:
        """A higher term exists: whoever we were, we follow now."""
        if term <= self.term:
            return False
        self._SyncObj__setCurrentTerm(term, None)
        self._forget_term()
        self._follow(None)
        return True

    def _forget_term(self) -> None:
        """What a leader said holds in its term alone."""
        self._verified = self._round = self._announced_commit = 0

    def _follow(self, leader: int | None) -> None:
        ended = self._leadership
        self._leadership = self._ballot = None
        self._configs.release()
        self._settle_at = NEVER
        self._SyncObj__setState(pysyncobj_seams.FOLLOWER)
        self._set_leader(leader)
        self._SyncObj__raftElectionDeadline = self._deadline_from_now()
        if ended is not None:
            self._machine.follow()
            ended.reads.end(NotLeader(f"{self._group} is led here no more", leader=leader, leader_epoch=self.term))
        self._around.wake()

    def fail(self, error: TinymqError) -> None:
        """This replica's disk or log cannot be trusted: it takes part no more. The error that came last counts."""
        self._failure = error
        self._outbox.clear()
        self._follow(None)
        self._SyncObj__raftElectionDeadline = NEVER

    def _post(self, peer: int, message: Message) -> None:
        """To whom is there now: what is meant for one replica must not reach another that has taken its place. While
        it waits for a sync, a newer one of its kind stands for it: any may be lost, and the newest says most."""
        whom = self._around.incarnation(peer)
        kind = (peer, type(message), isinstance(message, RequestVote | Vote) and message.pre)
        self._outbox.post(lambda: self._around.incarnation(peer) == whom and self._around.send(peer, message), kind)

    @abstractmethod
    def _SyncObj__onBecomeLeader(self) -> None: ...

    @abstractmethod
    def _SyncObj__applyLogEntries(self) -> bool: ...

    @abstractmethod
    def _SyncObj__sendNextNodeIdx(
        self,
        node: pysyncobj_seams.PeerNode,
        reset: bool = False,
        nextNodeIdx: int = 0,
        success: bool = False,
        next_term: int = 0,
    ) -> None: ...

    @abstractmethod
    def _look_after(self, peer: int) -> None: ...

    @abstractmethod
    def _commit(self) -> None: ...

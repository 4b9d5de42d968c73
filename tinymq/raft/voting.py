"""How a replica comes to lead or to follow: timers, candidacies, votes given and counted.

The decisions are pure and elsewhere (`election`, `membership`); this is where they meet the replica's
state. Everything that rests on a term or a vote leaves through the outbox, after the ballot's sync.
"""

from __future__ import annotations

from abc import abstractmethod

from tinymq.errors import TinymqError
from tinymq.log.ballots import Ballots
from tinymq.log.log import Log
from tinymq.raft import stock
from tinymq.raft.election import Answer, Ballot, Voter, answer_vote, stand_after_s
from tinymq.raft.leadership import Leadership
from tinymq.raft.membership import Membership, Replica
from tinymq.raft.messages import Message, RequestVote, Vote
from tinymq.raft.outbox import Outbox
from tinymq.raft.state import NEVER, RaftState, StateMachine, Surroundings
from tinymq.types import GroupId


class VotingReplica(RaftState):
    """A replica that stands, votes, and knows whom it follows."""

    def __init__(
        self, group: GroupId, me: Replica, log: Log, ballots: Ballots, machine: StateMachine, around: Surroundings,
        membership: Membership, applied_index: int,
    ) -> None:  # fmt: skip
        self._machine = machine
        self._outbox = Outbox(lambda: ballots.durable(group))
        self._leadership: Leadership | None = None  # invariant: set exactly while this replica leads
        self._ballot: Ballot | None = None  # invariant: set only while it is a candidate
        self._verified = 0  # last index shown in this term to match the leader's log; invariant: <= last_index
        self._settle_at = NEVER
        self._failure: TinymqError | None = None
        super().__init__(group, me, log, ballots, around, membership, applied_index)
        self._SyncObj__raftElectionDeadline = self._first_deadline()

    @property
    def failure(self) -> TinymqError | None:
        return self._failure

    @property
    def hears_leader(self) -> bool:
        leader = self.leader_id
        if leader == self._me.broker_id:
            return self._leadership is not None
        return leader is not None and self._around.alive(leader)

    def next_wake(self) -> float:
        """Monotonic time of this replica's next timer; infinite when it rests."""
        notice_at = NEVER if self._leadership is None else self._leadership.notice_at
        return float(min(self._SyncObj__raftElectionDeadline, self._settle_at, notice_at))

    def _first_deadline(self) -> float:
        """The preferred leader stands at once when the group is opened, the others give it time."""
        spread = self._around.timing.election_max_s
        wait = stand_after_s(self._membership, self._me.broker_id, None, spread, self._around.rng)
        return self._around.now() + wait

    def _deadline_from_now(self) -> float:
        return float(self._around.now() + self._SyncObj__generateRaftTimeout())

    def leader_gone(self, broker_id: int) -> None:
        """The broker that led is gone, restarted, or says that it leads no more."""
        if self._failure is None and self.leader_id == broker_id and broker_id != self._me.broker_id:
            self._set_leader(None)
            spread = self._around.timing.election_min_s
            wait = stand_after_s(self._membership, self._me.broker_id, broker_id, spread, self._around.rng)
            self._SyncObj__raftElectionDeadline = self._around.now() + wait
            self._around.wake()

    def _check_deadline(self, now: float) -> None:
        if self._SyncObj__raftElectionDeadline <= now and self._leadership is None:
            if self.hears_leader:
                self._SyncObj__raftElectionDeadline = NEVER  # liveness tells when its broker is gone
            else:
                self._stand(pre=True)

    def _stand(self, *, pre: bool, transfer: bool = False) -> None:
        """Ask for votes; a pre-vote (hazard 14) changes nothing anywhere until a majority would follow."""
        self._SyncObj__raftElectionDeadline = self._deadline_from_now()
        if not self.is_listed or self._failure is not None:
            return
        self._set_leader(None)
        self._SyncObj__setState(stock.CANDIDATE)
        if not pre:
            self._SyncObj__setCurrentTerm(self.term + 1, self._me.broker_id)
            self._verified = 0
        self._ballot = ballot = Ballot(self.term + 1 if pre else self.term, pre)
        log = self._log
        request = RequestVote(ballot.term, log.last_index, log.last_term, pre, transfer, self._me.count)
        for peer in self._peers:
            self._post(peer, request)
        self._outbox.post(lambda: self._count_vote(ballot, self._me.broker_id))

    def _count_vote(self, ballot: Ballot, voter: int) -> None:
        """Hazard 4: votes are attributed; our own counts once it is on disk."""
        if self._ballot is not ballot:
            return
        ballot.voters.add(voter)
        if ballot.won(self._membership):
            if ballot.pre:
                self._stand(pre=False)
            else:
                self._SyncObj__onBecomeLeader()

    def _on_request_vote(self, peer: int, request: RequestVote) -> None:
        if not self.is_listed or not self._lists_peer(peer, request.count):
            return
        log = self._log
        voter = Voter(self.term, self.voted_for, log.last_index, log.last_term, self.hears_leader)
        answer = answer_vote(voter, peer, request)
        if self._leadership is not None and answer is not Answer.GRANT:
            self._look_after(peer)  # it does not know that we lead, and a group at rest would not tell it
        if answer is Answer.IGNORE:
            return
        if not request.pre:
            self._adopt(request.term)
        granted = answer is Answer.GRANT
        if granted and not request.pre:
            if self.voted_for != peer:
                self._SyncObj__setCurrentTerm(request.term, peer)
            self._SyncObj__raftElectionDeadline = self._deadline_from_now()
        self._post(peer, Vote(request.term if granted else self.term, granted, request.pre, self._me.count))

    def _on_vote(self, peer: int, vote: Vote) -> None:
        ballot = self._ballot
        if not vote.granted:
            self._adopt(vote.term)
            return
        asked = ballot is not None and (ballot.term, ballot.pre) == (vote.term, vote.pre)
        if asked and ballot is not None and self._lists_peer(peer, vote.count):
            self._count_vote(ballot, peer)

    def _adopt(self, term: int) -> bool:
        """A higher term exists: whoever we were, we follow now."""
        if term <= self.term:
            return False
        self._SyncObj__setCurrentTerm(term, None)
        self._verified = 0
        self._follow(None)
        return True

    def _follow(self, leader: int | None) -> None:
        led = self._leadership is not None
        self._leadership = self._ballot = None
        self._settle_at = NEVER
        self._SyncObj__setState(stock.FOLLOWER)
        self._set_leader(leader)
        self._SyncObj__raftElectionDeadline = self._deadline_from_now()
        if led:
            self._machine.follow()
        self._around.wake()

    def fail(self, error: TinymqError) -> None:
        """This replica's disk or log cannot be trusted: it takes part no more."""
        if self._failure is None:
            self._failure = error
            self._outbox.clear()
            self._follow(None)
            self._SyncObj__raftElectionDeadline = NEVER

    def _post(self, peer: int, message: Message) -> None:
        self._outbox.post(lambda: self._around.send(peer, message))

    @abstractmethod
    def _SyncObj__onBecomeLeader(self) -> None: ...

    @abstractmethod
    def _look_after(self, peer: int) -> None: ...

    @abstractmethod
    def _commit(self) -> None: ...

"""Mutants of elections and of membership: votes, candidacies, quorums, and leaders that step down."""

# Two rules have no mutant here. The first: a leader learns a commit from an ack only as far as the ack proves that the
# logs match. It is redundant within one history, because every later leader's log has each entry that anyone knows to
# be committed. It matters, like the recovery epoch, once an operator has accepted a loss, which never happens in the
# simulator. Scenario `taking_over` (tests/raft) has a mutant for the recovery epoch.

from __future__ import annotations

from typing import Any

from tinymq.format.entry import NewEntry
from tinymq.log.broker_files.vote_store import VoteStore
from tinymq.raft.host import replicas
from tinymq.raft.leader.followers import Followers
from tinymq.raft.leader.leadership import Leadership
from tinymq.raft.peers.pace import Gaps
from tinymq.raft.replica import voting
from tinymq.raft.replica.pysyncobj_state import NEVER
from tinymq.raft.replica.replica import RaftReplica
from tinymq.raft.rules import commit, configs
from tinymq.raft.rules.commit import leader_commit
from tinymq.raft.rules.election import Candidacy, LeadershipOrigin, VoteAnswer, Voter, answer_vote
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.messages import RequestVote
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant

CUTS = ("cut_link", "isolate", "partition", "chain", "reset", "pause", "kill")
LEADERLESS = Focus(faults=("isolate", "kill", "partition"))
DOUBLED = Focus(faults=("duplicate", "partition"), nodes=5, seconds=16.0)
SPLIT = Focus(faults=("isolate", "kill"), nodes=5, latency_s=0.015)
LAGGING = Focus(faults=("cut_link", "one_way", "kill", "isolate"), workloads=("idempotent",), pace=0.25)
ISOLATED = Focus(faults=("isolate",), seconds=16.0)
LONG = Focus(faults=("isolate", "chain"), seconds=20.0)


@mutant("4: votes are attributed to voters", DOUBLED)
def votes_are_counted(p: Patches) -> None:
    real = voting.VotingReplica._count_vote

    def count(self: voting.VotingReplica, ballot: Candidacy, voter: int) -> None:
        free = [b for b in (voter, *range(1, 10)) if b not in ballot.voters]
        real(self, ballot, free[0])

    p.set(voting.VotingReplica, "_count_vote", count)


@mutant("4: a vote counts in the candidacy that asked for it", LEADERLESS)
def any_vote_counts(p: Patches) -> None:
    """Count a pre-vote as a vote, and a vote of an earlier term as one of this term."""
    real = voting.VotingReplica._on_vote

    def on_vote(self: voting.VotingReplica, peer: int, vote: Any) -> None:
        ballot = self._ballot
        if vote.granted and ballot is not None:
            self._count_vote(ballot, peer)
        else:
            real(self, peer, vote)

    p.set(voting.VotingReplica, "_on_vote", on_vote)


@mutant("7: a vote leaves after its sync", Focus(faults=("power_cut", "power_cut_all", "isolate", "slow_disk")))
def votes_before_their_sync(p: Patches) -> None:
    p.set(VoteStore, "durable", lambda self, group: True)


@mutant("a vote is given once in a term", SPLIT)
def votes_given_twice(p: Patches) -> None:
    def answer(voter: Voter, candidate: int, request: RequestVote) -> VoteAnswer:
        free = Voter(voter.term, None, voter.last_index, voter.last_term, voter.hears_leader)
        return answer_vote(free, candidate, request)

    def put(self: VoteStore, group: Any, term: int, voted_for: int | None) -> None:
        if (term, voted_for) != self.get(group):
            self._put(group, (term, voted_for))

    p.set(voting, "answer_vote", answer)
    p.set(VoteStore, "set", put)


@mutant("a vote is given to a log that holds as much as one's own", LAGGING)
def votes_for_any_log(p: Patches) -> None:
    def answer(voter: Voter, candidate: int, request: RequestVote) -> VoteAnswer:
        return answer_vote(Voter(voter.term, voter.voted_for, 0, 0, voter.hears_leader), candidate, request)

    p.set(voting, "answer_vote", answer)


@mutant(
    "8: membership is what CONFIG entries say, after a restart as before", Focus(faults=("wipe", "kill", "power_cut"))
)
def membership_of_the_first_entry(p: Patches) -> None:
    """Fall back to the first entry's members, as stock PySyncObj falls back to its constructor's peers."""
    p.set(configs.Configs, "apply", lambda self, entry: None)


@mutant("13: a leader that a majority no longer hears steps down", ISOLATED)
def leaders_never_step_down(p: Patches) -> None:
    p.set(RaftReplica, "check_quorum", lambda self: None)


@mutant("14: pre-votes, and who hears a leader grants none", LONG)
def no_pre_votes(p: Patches) -> None:
    real = voting.VotingReplica._stand

    def stand(self: voting.VotingReplica, *, pre: bool, origin: LeadershipOrigin = LeadershipOrigin.WON) -> None:
        real(self, pre=False, origin=origin)

    def answer(voter: Voter, candidate: int, request: RequestVote) -> VoteAnswer:
        return answer_vote(
            Voter(voter.term, voter.voted_for, voter.last_index, voter.last_term, False), candidate, request
        )

    p.set(voting.VotingReplica, "_stand", stand)
    p.set(voting, "answer_vote", answer)


@mutant("20: a CONFIG follows from the one before it", Focus(faults=("kill",)))
def any_config_is_taken(p: Patches) -> None:
    """Accept a stray CONFIG, which leaves a broker out."""
    from tinymq.format.entry import Kind
    from tinymq.raft.rules.membership import pack_membership

    real = RaftReplica._SyncObj__onBecomeLeader

    def become(self: RaftReplica) -> None:
        real(self)
        now = self.membership
        if self._leadership is not None and len(now.replicas) > 2:
            fewer = Membership(now.group, now.epoch + 1, now.replicas[:-1])
            self._append_as_leader(self._leadership, NewEntry(Kind.CONFIG, pack_membership(fewer)))

    p.set(RaftReplica, "_SyncObj__onBecomeLeader", become)
    p.set(configs, "follows", lambda before, after: True)


DAMAGE = Focus(faults=("flip_bits", "remove_group", "isolate", "kill"), seconds=16.0, segment_bytes=16 << 10)
OBSERVED = Focus(faults=("isolate", "partition"), workloads=("metadata",), nodes=5, pace=0.3)
AMNESIA = Focus(faults=("wipe", "kill"), seconds=16.0)


@mutant("22: only listed incarnations vote, stand and count", AMNESIA)
def any_incarnation_is_a_member(p: Patches) -> None:
    def lists(self: Membership, broker_id: int, incarnation: bytes | None, count: int) -> bool:
        return self.replica(broker_id) is not None

    p.set(Membership, "lists", lists)


@mutant("22: a replica that was repaired is another one, on the same disk", DAMAGE)
def repaired_replicas_are_members(p: Patches) -> None:
    """Check the incarnation of a replica's data directory, and not its count."""

    def lists(self: Membership, broker_id: int, incarnation: bytes | None, count: int) -> bool:
        replica = self.replica(broker_id)
        return replica is not None and replica.incarnation == incarnation

    p.set(Membership, "lists", lists)


@mutant("22: a replica votes when its applied CONFIG lists it, not before", AMNESIA)
def learners_vote(p: Patches) -> None:
    real = voting.VotingReplica._on_request_vote

    def on_request_vote(self: Any, peer: int, request: RequestVote) -> None:
        held = configs.Configs.lists
        configs.Configs.lists = lambda *args: True  # type: ignore[method-assign]
        try:
            real(self, peer, request)
        finally:
            configs.Configs.lists = held  # type: ignore[method-assign]

    p.set(voting.VotingReplica, "_on_request_vote", on_request_vote)
    p.wrap(voting.VotingReplica, "_on_vote", _believing)


def _believing(real: Any) -> Any:
    def on_vote(self: Any, peer: int, vote: Any) -> None:
        ballot = self._ballot
        if vote.granted and ballot is not None and (ballot.term, ballot.pre) == (vote.term, vote.pre):
            self._count_vote(ballot, peer)
        else:
            real(self, peer, vote)

    return on_vote


@mutant("22: what a learner acknowledged does not count for a commit", AMNESIA)
def learners_count(p: Patches) -> None:
    p.set(configs.Configs, "counts", lambda self, replica: replica is not None)


@mutant("a broker that no CONFIG lists observes: what it acknowledges counts for nothing", OBSERVED)
def observers_count(p: Patches) -> None:
    """Count observers everywhere: as members of the term, by identity, and in the one quorum function."""
    real = Followers.observe

    def observe(self: Followers, peer: int) -> bool:
        taken = real(self, peer)
        if taken and peer not in self.members:
            self.members = (*self.members, peer)
        return taken

    def index(membership: Membership, match: Any) -> int:
        held = sorted(match.values(), reverse=True)
        return held[membership.quorum - 1] if len(held) >= membership.quorum else 0

    p.set(Followers, "observe", observe)
    p.set(configs.Configs, "counts", lambda self, replica: replica is not None)
    p.set(commit, "quorum_index", index)


@mutant(
    "22: an identity that was replaced is never listed again: its replica takes another", Focus(faults=("old_disk",))
)
def unlisted_replicas_stay_who_they_are(p: Patches) -> None:
    p.set(replicas, "other_count", lambda membership, me: None)


@mutant(
    "22: who is listed anew is a member once its disk knows that the CONFIG is committed",
    Focus(faults=("next_disk",), seconds=16.0),
)
def what_is_listed_is_a_member(p: Patches) -> None:
    """Report a listed replica as a member: the next disk may then be replaced once the replica follows."""
    p.set(configs.Configs, "has_kept", configs.Configs.lists)


@mutant(
    "22: a replica sets its log aside when the others would elect somebody after a power cut",
    test="tests/raft/test_keeping.py::test_a_repair_waits_until_who_was_listed_last_knows_it_for_good",
)
def repairs_do_not_wait_for_who_was_listed(p: Patches) -> None:
    p.set(RaftReplica, "does_without", lambda self, peer: True)


@mutant(
    "8: a CONFIG is undone with the entry that a truncation takes",
    Focus(faults=("lost_config",), nodes=5, seconds=20.0),
)
def truncated_configs_stay(p: Patches) -> None:
    real: Any = configs.Configs.after

    def after(self: configs.Configs, cut_from: int | None, entries: Any) -> Any:
        return real(self, None, entries)

    p.set(configs.Configs, "after", after)


@mutant(
    "8: nothing behind a CONFIG that is not committed commits by its word alone",
    Focus(faults=("lost_config",), seconds=16.0),
)
def configs_count_when_appended(p: Patches) -> None:
    """Let a CONFIG count when it is appended, as in the Raft paper: a new identity counts at once, and the commit index
    jumps over the CONFIG that lists it.
    """

    def commit(self: Leadership, known: configs.Configs, me: Replica, commit: int) -> int:
        match = {
            peer: g.match for peer, g in self.progress.items() if (r := self._replica(peer)) and known.newest.has(r)
        }
        match[me.broker_id] = self._log.durable_index
        return leader_commit(known.newest, match, commit, self.first_of_term)

    p.set(Leadership, "commit", commit)


@mutant("13: how long a silence must be is measured, and bounded", ISOLATED)
def silences_are_long(p: Patches) -> None:
    p.set(Gaps, "gone_after_s", lambda self, timing: 20.0)


@mutant(
    "a group at rest wakes when its leader is gone",
    Focus(faults=("isolate", "power_cut"), workloads=("metadata",), seconds=16.0),
)
def sleepers_do_not_wake(p: Patches) -> None:
    real = RaftReplica.leader_gone

    def leader_gone(self: RaftReplica, broker_id: int) -> None:
        if self.next_wake() != NEVER:
            real(self, broker_id)

    p.set(RaftReplica, "leader_gone", leader_gone)


@mutant(
    "a replica that may not stand asks for its leader",
    Focus(faults=("unheard",), workloads=("lone",), nodes=5, seconds=16.0),
)
def the_lost_do_not_ask(p: Patches) -> None:
    p.set(voting.VotingReplica, "_ask_for_leader", lambda self: None)


@mutant("a leader whose sync hangs hands over", Focus(faults=("hung_disk",), seconds=20.0))
def hanging_leaders_stay(p: Patches) -> None:
    p.set(Leadership, "sync_hangs", lambda self: False)

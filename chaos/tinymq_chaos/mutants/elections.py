"""Mutants of elections and of membership: votes, candidacies, quorums, and leaders that step down."""

# Two rules have no mutant here. The first: a leader learns a commit from an ack only as far as the ack proves that the
# logs match. It is redundant within one history, because every later leader's log has each entry that any replica knows
# to be committed. It matters, like the recovery epoch, once an operator has accepted a loss, which never happens in the
# simulator. Scenario `forced_leadership` (tests/raft) has a mutant for the recovery epoch.

from __future__ import annotations

from typing import Any

from tinymq.log.broker_files.vote_store import VoteStore
from tinymq.raft.host import replicas
from tinymq.raft.net.transport import check_only_one
from tinymq.raft.peers.adaptive_timeouts import HeartbeatGaps
from tinymq.raft.replica.current_role import CurrentRole
from tinymq.raft.replica.elections import Elections
from tinymq.raft.replica.replica import RaftReplica
from tinymq.raft.roles.candidacy import Candidacy
from tinymq.raft.roles.followers import Followers
from tinymq.raft.roles.replication import Replication
from tinymq.raft.rules import commit, configs
from tinymq.raft.rules.commit import leader_commit
from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.election import LeadershipOrigin, VoteAnswer, Voter, answer_vote
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.messages import RequestVote
from tinymq.raft.state.pysyncobj_state import NEVER
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant, replaces

CUTS = ("cut_link", "isolate", "partition", "chain", "reset", "pause", "kill")
LEADERLESS = Focus(faults=("isolate", "kill", "partition"))
DOUBLED = Focus(faults=("duplicate", "partition"), nodes=5, seconds=16.0)
SPLIT = Focus(faults=("isolate", "kill"), nodes=5, latency_s=0.015)
LAGGING = Focus(faults=("cut_link", "one_way", "kill", "isolate"), workloads=("idempotent",), pace=0.25)
ISOLATED = Focus(faults=("isolate",), seconds=16.0)
LONG = Focus(faults=("isolate", "chain"), seconds=20.0)


@mutant("4: votes are attributed to voters", DOUBLED)
@replaces(Candidacy.record)
def votes_are_counted(_: Any, self: Candidacy, voter: int) -> None:
    free = [b for b in (voter, *range(1, 10)) if b not in self.voters]
    self.voters.add(free[0])


@mutant("4: a vote counts in the candidacy that asked for it", LEADERLESS)
def any_vote_counts(p: Patches) -> None:
    """Count a pre-vote as a vote, and a vote of an earlier term as one of this term."""
    p.replace(Candidacy.asked_for, lambda self, vote: True)


@mutant("7: a vote leaves after its sync", Focus(faults=("power_cut", "power_cut_all", "isolate", "slow_disk")))
def votes_before_their_sync(p: Patches) -> None:
    p.replace(VoteStore.durable, lambda self, group: True)


@mutant("a vote is given once in a term", SPLIT)
def votes_given_twice(p: Patches) -> None:
    def answer(voter: Voter, candidate: int, request: RequestVote) -> VoteAnswer:
        free = Voter(voter.term, None, voter.last_index, voter.last_term, voter.hears_leader)
        return answer_vote(free, candidate, request)

    def put(self: VoteStore, group: Any, term: int, voted_for: int | None) -> None:
        if (term, voted_for) != self.get(group):
            self._put(group, (term, voted_for))

    p.replace(answer_vote, answer)
    p.replace(VoteStore.set, put)


@mutant("a vote is given to a log that holds as much as one's own", LAGGING)
@replaces(answer_vote)
def votes_for_any_log(_: Any, voter: Voter, candidate: int, request: RequestVote) -> VoteAnswer:
    return answer_vote(Voter(voter.term, voter.voted_for, 0, 0, voter.hears_leader), candidate, request)


@mutant(
    "8: membership is what CONFIG entries say, after a restart as before", Focus(faults=("wipe", "kill", "power_cut"))
)
def membership_of_the_first_entry(p: Patches) -> None:
    """Fall back to the first entry's members, as stock PySyncObj falls back to its constructor's peers."""
    p.replace(Configs.apply, lambda self, entry: None)


@mutant("13: a leader that a majority no longer hears steps down", ISOLATED)
def leaders_never_step_down(p: Patches) -> None:
    p.replace(CurrentRole.check_quorum, lambda self: None)


@mutant(
    "13: a voter tells the leader before its term",
    test="tests/raft/test_silence.py::test_a_leader_that_does_not_hear_its_successor_steps_down",
)
def superseded_leaders_are_not_told(p: Patches) -> None:
    p.replace(CurrentRole.tell_superseded, lambda self, peer: None)


@mutant("14: pre-votes, and a replica that hears a leader grants none", LONG)
def no_pre_votes(p: Patches) -> None:
    real = Elections.campaign

    def campaign(self: Elections, *, pre: bool, origin: LeadershipOrigin = LeadershipOrigin.WON) -> None:
        real(self, pre=False, origin=origin)

    def answer(voter: Voter, candidate: int, request: RequestVote) -> VoteAnswer:
        return answer_vote(
            Voter(voter.term, voter.voted_for, voter.last_index, voter.last_term, False), candidate, request
        )

    p.replace(Elections.campaign, campaign)
    p.replace(answer_vote, answer)


@mutant("20: a CONFIG follows from the one before it", Focus(faults=("kill",)))
def any_config_is_taken(p: Patches) -> None:
    """Accept a stray CONFIG, which leaves a broker out."""
    real = CurrentRole.become_leader

    def become_leader(self: CurrentRole, origin: LeadershipOrigin) -> None:
        real(self, origin)
        leadership = self.leading()
        now = leadership.state.membership
        if len(now.replicas) > 2:
            fewer = Membership(now.group, now.epoch + 1, now.replicas[:-1])
            leadership.append_config(fewer)

    p.replace(CurrentRole.become_leader, become_leader)
    p.set(configs, "follows", lambda before, after: True)


DAMAGE = Focus(faults=("flip_bits", "remove_group", "isolate", "kill"), seconds=16.0, segment_bytes=16 << 10)
OBSERVED = Focus(faults=("isolate", "partition"), workloads=("metadata",), nodes=5, pace=0.3)
AMNESIA = Focus(faults=("wipe", "kill"), seconds=16.0)


@mutant("22: only listed incarnations vote, stand and count", AMNESIA)
@replaces(Membership.lists)
def any_incarnation_is_a_member(
    _: Any, self: Membership, broker_id: int, incarnation: bytes | None, count: int
) -> bool:
    return self.replica(broker_id) is not None


@mutant("22: a repaired replica has another identity, on the same disk", DAMAGE)
@replaces(Membership.lists)
def repaired_replicas_are_members(
    _: Any, self: Membership, broker_id: int, incarnation: bytes | None, count: int
) -> bool:
    """Check the incarnation of a replica's data directory, and not its count."""
    replica = self.replica(broker_id)
    return replica is not None and replica.incarnation == incarnation


@mutant("22: a replica votes when its applied CONFIG lists it, not before", AMNESIA)
def learners_vote(p: Patches) -> None:
    p.replace(Elections.may_vote, property(lambda self: True))
    p.replace(Elections.counts_vote, lambda self, peer, vote: True)


@mutant("22: acknowledgements of a learner do not count for a commit", AMNESIA)
def learners_count(p: Patches) -> None:
    p.replace(Configs.counts, lambda self, replica: replica is not None)


@mutant("a broker that no CONFIG lists observes: its acknowledgements do not count", OBSERVED)
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

    p.replace(Followers.observe, observe)
    p.replace(Configs.counts, lambda self, replica: replica is not None)
    p.set(commit, "quorum_index", index)


@mutant(
    "22: an identity that was replaced is never listed again: its replica takes another", Focus(faults=("old_disk",))
)
def unlisted_replicas_stay_who_they_are(p: Patches) -> None:
    p.set(replicas, "other_count", lambda membership, me: None)


@mutant(
    "22: a relisted replica is a member once its disk knows that the CONFIG is committed",
    Focus(faults=("next_disk",), seconds=16.0),
)
def what_is_listed_is_a_member(p: Patches) -> None:
    """Report a listed replica as a member: the next disk may then be replaced once the replica follows."""
    p.replace(Configs.has_kept, Configs.lists)


@mutant(
    "22: a replica quarantines its log only if the others could elect a leader after a power cut",
    test="tests/raft/test_durable_membership.py::test_a_repair_waits_until_the_newest_member_has_stored_its_membership",
)
def repairs_do_not_wait_for_who_was_listed(p: Patches) -> None:
    p.replace(RaftReplica.can_lose, lambda self, peer: True)


@mutant(
    "8: a CONFIG is undone with the entry that a truncation takes",
    Focus(faults=("lost_config",), nodes=5, seconds=20.0),
)
@replaces(Configs.after)
def truncated_configs_stay(real: Any, self: Configs, cut_from: int | None, entries: Any) -> Any:
    return real(self, None, entries)


@mutant(
    "8: nothing behind a CONFIG that is not committed commits by its word alone",
    Focus(faults=("lost_config",), seconds=16.0),
)
@replaces(Replication.commit)
def configs_count_when_appended(_: Any, self: Replication, configs: Configs, me: Replica, commit: int) -> int:
    """Let a CONFIG count when it is appended, as in the Raft paper: a new identity counts at once, and the commit index
    jumps over the CONFIG that lists it.
    """
    present = self.followers.present_replica
    match = {peer: g.match for peer, g in self.progress.items() if (r := present(peer)) and configs.newest.has(r)}
    match[me.broker_id] = self.log.durable_index
    return leader_commit(configs.newest, match, commit, self.first_of_term)


@mutant("13: how long a silence must be is measured, and bounded", ISOLATED)
def silences_are_long(p: Patches) -> None:
    p.replace(HeartbeatGaps.gone_after_s, lambda self, timing: 20.0)


@mutant(
    "a group at rest wakes when its leader is gone",
    Focus(faults=("isolate", "power_cut"), workloads=("metadata",), seconds=16.0),
)
@replaces(Elections.leader_gone)
def sleepers_do_not_wake(real: Any, self: Elections, broker_id: int) -> None:
    if self.state.election_deadline != NEVER:
        real(self, broker_id)


@mutant(
    "a replica that may not stand asks for its leader",
    Focus(faults=("unheard",), workloads=("lone",), nodes=5, seconds=16.0),
)
def the_lost_do_not_ask(p: Patches) -> None:
    p.replace(Elections.ask_for_leader, lambda self: None)


@mutant("a leader whose sync hangs hands over", Focus(faults=("hung_disk",), seconds=20.0))
def hanging_leaders_stay(p: Patches) -> None:
    p.replace(Replication.sync_hangs, lambda self: False)


@mutant(
    "a second process of a broker is refused while the first one is heard",
    Focus(faults=("twin",), workloads=("idempotent",), seconds=16.0),
)
def second_processes_are_let_in(p: Patches) -> None:
    p.replace(check_only_one, lambda known, dialer, heard: None)

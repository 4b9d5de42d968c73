"""Every fault at random moments under load, then calm: nothing may be lost or stuck. Throughout, the ledger checks that
all replicas apply one sequence and that no term has two leaders. `calm` checks that the group works again, and that
every log has the applied entries.
"""

from __future__ import annotations

import pytest

from tests.raft.faults import calm, storm, stormy
from tests.raft.harness import Cluster, simulate
from tests.raft.values import GROUP
from tests.seeds import first_of
from tinymq.base.types import GroupId
from tinymq.raft.replica import elections
from tinymq.raft.roles import following, replication
from tinymq.raft.roles.following import Following
from tinymq.raft.roles.replication import Replication
from tinymq.raft.rules import log_matching
from tinymq.raft.rules.commit import follower_commit
from tinymq.raft.rules.election import VoteAnswer, Voter
from tinymq.raft.rules.membership import Membership
from tinymq.raft.rules.messages import Append, RequestVote

MUTANT_SEEDS_MAX = 30  # within which a mutant has to be caught


@pytest.mark.parametrize("seed", first_of(range(10), 2))
def test_three_brokers(seed: int) -> None:
    cluster = simulate(stormy(12.0), seed)
    assert len(cluster.ledger.acknowledged[GROUP]) > 100


@pytest.mark.parametrize("seed", first_of(range(2), 1))
def test_five_brokers(seed: int) -> None:
    simulate(stormy(10.0), seed, nodes=5)


@pytest.mark.parametrize("seed", first_of(range(2), 1))
def test_several_groups(seed: int) -> None:
    simulate(stormy(10.0), seed, groups=[GroupId(GROUP.topic_id, p) for p in range(4)])


@pytest.mark.parametrize("seed", [3])
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    one, other = simulate(stormy(5.0), seed), simulate(stormy(5.0), seed)
    assert one.ledger.lines == other.ledger.lines
    assert one.ledger.chosen == other.ledger.chosen
    assert one.loop.time() == other.loop.time()
    assert simulate(stormy(5.0), seed + 100).ledger.chosen != one.ledger.chosen


# ---- mutants: the checks can fail --------------------------------------------------------------------------------


async def short(cluster: Cluster) -> None:
    await storm(cluster, 6.0, pause_s=0.2, load_pause_s=0.004)
    await calm(cluster)


def caught(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, mutant: object, first: int = 0) -> None:
    """With the mutant in place, some seed from `first` on fails. `first` is a seed that did."""
    monkeypatch.setattr(owner, name, mutant)
    for seed in range(first, first + MUTANT_SEEDS_MAX):
        try:
            simulate(short, seed)
        except AssertionError:
            return
    pytest.fail(f"not noticed in {MUTANT_SEEDS_MAX} seeds")


def test_a_follower_that_believes_any_commit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazards 1 and 2: stock commits up to its own last index."""
    real = Following.learn_commit

    def learn(self: Following, announced: int, verified: int) -> None:
        real(self, announced, self.state.log.last_index)

    def send_all(self: Replication, peer: int, progress: object, commit: int, ack_wanted: bool) -> None:
        self.link.send(peer, replication.CommitNotice(self.term, commit, ack_wanted))

    assert follower_commit(1, 9, 5) == 5
    monkeypatch.setattr(Replication, "notify", send_all)
    caught(monkeypatch, Following, "learn_commit", learn, first=23)


def test_mutant_a_follower_truncates_matching_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazard 2: stock drops everything after prev, and appends the entries of the message."""

    def receive(log: log_matching.LogView, commit: int, message: Append) -> log_matching.Conflict | log_matching.Match:
        decision = log_matching.receive(log, commit, message)
        if isinstance(decision, log_matching.Conflict) or message.prev_index < log.first_index:
            return decision
        end = message.prev_index + len(message.entries)
        cut = message.prev_index + 1 if message.prev_index < log.last_index else None
        return log_matching.Match(cut, message.entries, end)

    caught(monkeypatch, following, "receive", receive, first=56)


def test_a_leader_that_counts_a_minority_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    caught(monkeypatch, Membership, "quorum", property(lambda self: len(self.replicas) // 2))


def test_votes_for_any_log_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(voter: Voter, candidate: int, request: RequestVote) -> VoteAnswer:
        if request.term < voter.term or (request.term == voter.term and voter.voted_for not in (None, candidate)):
            return VoteAnswer.DENY
        return VoteAnswer.GRANT

    caught(monkeypatch, elections, "answer_vote", answer, first=4)

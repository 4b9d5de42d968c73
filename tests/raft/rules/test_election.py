"""Votes as tables: hazards 4, 13, 14."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from tests.raft.values import membership
from tinymq.raft.roles.candidacy import Candidacy
from tinymq.raft.rules.election import VoteAnswer, Voter, answer_vote, campaign_delay_s
from tinymq.raft.rules.messages import RequestVote

VOTER = Voter(term=5, voted_for=None, last_index=10, last_term=4, hears_leader=False)
REQUEST = RequestVote(term=6, last_index=10, last_term=4, pre=False, transfer=False, count=0)
GRANT, DENY, IGNORE = VoteAnswer.GRANT, VoteAnswer.DENY, VoteAnswer.IGNORE


@pytest.mark.parametrize(
    ("voter", "request_", "expected"),
    [
        ({}, {}, GRANT),
        ({}, {"last_index": 9}, DENY),  # a shorter log of the same term
        ({}, {"last_term": 3, "last_index": 99}, DENY),  # a longer log of an older term
        ({}, {"last_term": 5, "last_index": 1}, GRANT),
        ({}, {"term": 4}, DENY),
        ({}, {"term": 5}, GRANT),
        ({"voted_for": 2}, {"term": 5}, GRANT),  # the same candidate asks again
        ({"voted_for": 3}, {"term": 5}, DENY),
        ({"voted_for": 3}, {"term": 6}, GRANT),  # that vote was of another term
        ({"hears_leader": True}, {}, IGNORE),
        ({"hears_leader": True}, {"transfer": True}, GRANT),  # the leader itself transfers its leadership
        ({"hears_leader": True}, {"transfer": True, "last_index": 9}, DENY),
        ({}, {"pre": True}, GRANT),
        ({"voted_for": 3}, {"pre": True}, GRANT),  # a pre-vote binds nobody
        ({}, {"pre": True, "term": 5}, DENY),  # it must know our term first
        ({}, {"pre": True, "last_index": 9}, DENY),
        ({"hears_leader": True}, {"pre": True}, DENY),
    ],
)  # fmt: skip
def test_the_answer_to_a_vote_request(
    voter: dict[str, object], request_: dict[str, object], expected: VoteAnswer
) -> None:
    assert answer_vote(replace(VOTER, **voter), 2, replace(REQUEST, **request_)) is expected


def test_a_vote_counts_once_and_a_strangers_vote_never() -> None:
    candidacy = Candidacy(6, pre=False)
    for voter in (1, 1, 1, 8, 9):
        candidacy.voters.add(voter)
        assert not candidacy.won(membership())
    candidacy.voters.add(2)
    assert candidacy.won(membership())


@pytest.mark.parametrize("seed", range(50))
def test_replicas_campaign_one_after_another(seed: int) -> None:
    rng = random.Random(seed)
    members = membership(5)
    waits = [campaign_delay_s(members, b, 1, 0.2, rng) for b in (2, 3, 4, 5)]
    assert waits == sorted(waits)
    assert waits[0] <= 0.05
    assert all(later - earlier >= 0.14 for earlier, later in itertools.pairwise(waits))
    assert campaign_delay_s(members, 1, None, 0.2, rng) <= 0.05
    assert campaign_delay_s(members, 9, None, 0.2, rng) >= 1.0

"""The commit rule as tables: hazards 1, 2, 7."""

from __future__ import annotations

import pytest

from tests.raft.values import ListLog, chain, membership
from tinymq.raft.rules.commit import follower_commit, leader_commit, reported_commit, vouched_commit


@pytest.mark.parametrize(
    ("match", "commit", "first_of_term", "expected"),
    [
        ({1: 7, 2: 7, 3: 2}, 4, 5, 7),
        ({1: 7, 2: 6, 3: 5}, 4, 5, 6),
        ({1: 7, 2: 4, 3: 4}, 3, 5, 3),  # a majority holds entry 4, but it is of an earlier term: paper, figure 8
        ({1: 7, 2: 5, 3: 4}, 3, 5, 5),  # an entry of this term takes the earlier ones with it
        ({1: 4, 2: 7, 3: 7}, 4, 5, 7),  # the leader's own disk is the slow one: the others are a majority
        ({1: 9}, 4, 5, 4),  # hazard 7: alone it commits nothing
        ({2: 9, 3: 9}, 4, 5, 9),  # an unlisted leader counts for nothing, and is not needed
        ({}, 4, 5, 4),
        ({1: 5, 2: 5, 3: 5}, 8, 5, 8),  # never back
    ],
)
def test_a_leader_commits_entries_of_a_majority(
    match: dict[int, int], commit: int, first_of_term: int, expected: int
) -> None:
    assert leader_commit(membership(), match, commit, first_of_term) == expected


@pytest.mark.parametrize(
    ("commit", "announced", "verified", "expected"),
    [
        (3, 9, 6, 6),  # clamped to what this term's messages have verified
        (3, 5, 6, 5),
        (3, 2, 6, 3),  # never back
        (3, 9, 0, 3),  # nothing verified yet: the tail here may be divergent
    ],
)
def test_a_follower_commits_only_verified_entries(commit: int, announced: int, verified: int, expected: int) -> None:
    assert follower_commit(commit, announced, verified) == expected


@pytest.mark.parametrize(
    ("commit", "reported", "matching", "expected"),
    [(3, 7, 9, 7), (3, 7, 5, 5), (3, 2, 9, 3), (3, 0, 0, 3)],
)
def test_a_leader_learns_a_followers_commit_as_far_as_their_logs_match(
    commit: int, reported: int, matching: int, expected: int
) -> None:
    assert reported_commit(commit, reported, matching) == expected


@pytest.mark.parametrize(
    ("index", "term", "expected"),
    [
        (3, 1, 3),
        (4, 2, 4),
        (4, 1, 2),  # another entry lies there
        (9, 2, 2),  # beyond what is here
        (2, 1, 2),
        (0, 0, 2),
    ],
)
def test_a_reported_commit_counts_only_for_an_equal_entry(index: int, term: int, expected: int) -> None:
    assert vouched_commit(ListLog(chain([0, 1, 1, 2])), 2, index, term) == expected

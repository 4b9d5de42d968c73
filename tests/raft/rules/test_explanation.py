"""How a replica that does not take part explains its state."""

from __future__ import annotations

from tinymq.raft.rules.explanation import explain_candidate, explain_learner


def test_a_learner() -> None:
    assert explain_learner("", 2, 1_200, 5_000) == "catching up: 1,200 of 5,000 entries"
    assert explain_learner("", 2, 5_000, 5_000) == "waiting for broker 2, which leads, to list it"
    assert explain_learner("damage in 1.log", 2, 7, 9) == "repairing: damage in 1.log; catching up: 7 of 9 entries"


def test_without_a_leader_the_reason_names_the_command() -> None:
    assert "no leader is known" in explain_learner("", None, 1, 0)
    assert "`tinymq cluster recover`" in explain_learner("", None, 1, 0)
    assert "`tinymq cluster recover`" in explain_candidate()

"""Runs with a lost majority and `cluster recover`; and stories in which their checker finds what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tinymq.rpc.operator_calls.cluster_recovery import Recovering
from tinymq_chaos.sim.recovery.loss import Ack, Loss, LossHistory, judge
from tinymq_chaos.sim.recovery.run import run

SEEDS = [2]
MORE = [0, 1, 4, 7]


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.long) for seed in MORE)])
def test_a_cluster_goes_on_without_the_majority_that_it_lost(seed: int) -> None:
    outcome = run(seed)
    assert not outcome.anomalies, "\n".join([*outcome.anomalies[:20], *outcome.transcript[-40:]])
    assert outcome.lost > 10
    assert outcome.told >= 2
    assert len(outcome.story.ids) > 20


def test_mutant_a_recovery_accepts_more_loss_than_it_has_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker that kept its disk ends for a moment, after the metadata and before the partitions."""
    monkeypatch.setattr(Recovering, "keeps_best", lambda self, surveyed: True)
    assert any("a disk that was kept had it" in anomaly for anomaly in run(2).anomalies)


# ---- the checker -------------------------------------------------------------------------------------------------


def a_story() -> LossHistory:
    """Two records survive a loss, two do not, and two more are written."""
    values = ["a", "b", "e", "f"]
    return LossHistory(
        acks=[
            *[Ack(0, n, value, 1.0 + n / 10) for n, value in enumerate("abcd")],
            *[Ack(0, 2 + n, value, 9.0 + n / 10) for n, value in enumerate("ef")],
        ],
        reads={
            "old": [(0, n, value) for n, value in enumerate("abcd")],
            "new": [(0, n, value) for n, value in enumerate(values)],
        },
        losses=[Loss(2.0, 8.0, {0: 2})],
        ids=[("producer", "1"), ("producer", "2"), ("topic", "1")],
        finals={(broker, 0): dict(enumerate(values)) for broker in (1, 2, 3)},
        sent=set("abcdef"),
    )


def test_a_loss_that_was_accepted_is_none() -> None:
    assert judge(a_story()) == []


def a_replica_differs(s: LossHistory) -> None:
    s.finals[2, 0] = {**s.finals[2, 0], 3: "d"}


def an_offset_is_missing(s: LossHistory) -> None:
    for broker in (1, 2, 3):
        s.finals[broker, 0] = {**s.finals[broker, 0], 5: "d"}


def a_stranger_is_there(s: LossHistory) -> None:
    s.sent.discard("f")


def a_record_is_there_twice(s: LossHistory) -> None:
    for broker in (1, 2, 3):
        s.finals[broker, 0] = {**s.finals[broker, 0], 4: "f"}


def a_later_write_is_lost(s: LossHistory) -> None:
    s.acks.append(Ack(0, 4, "c", 9.5))


def a_kept_record_is_lost(s: LossHistory) -> None:
    s.losses = [Loss(2.0, 8.0, {0: 3})]


def a_record_is_lost_before_one_that_is_not(s: LossHistory) -> None:
    s.losses = [Loss(2.0, 8.0, {0: 0})]
    for broker in (1, 2, 3):
        s.finals[broker, 0] = {0: "e", 1: "b"}
    s.acks = s.acks[:2]


def a_reader_is_not_told(s: LossHistory) -> None:
    s.reads["old"].append((0, 4, "g"))
    s.sent.add("g")
    for broker in (1, 2, 3):
        s.finals[broker, 0] = {**s.finals[broker, 0], 4: "g"}


def a_reader_skips(s: LossHistory) -> None:
    s.reads["new"] = s.reads["new"][:1] + s.reads["new"][2:]


def an_id_is_given_twice(s: LossHistory) -> None:
    s.ids.append(("producer", "2"))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (a_replica_differs, "brokers 1 and 2 differ at offsets [3]"),
        (an_offset_is_missing, "the offsets have a gap"),
        (a_stranger_is_there, "nobody sent f"),
        (a_record_is_there_twice, "f is there 2 times"),
        (a_later_write_is_lost, "is lost, and no disk was lost since"),
        (a_kept_record_is_lost, "is lost, and a disk that was kept had it"),
        (a_record_is_lost_before_one_that_is_not, "took a record and left a later one"),
        (a_reader_is_not_told, "was not told that offset 2 is lost"),
        (a_reader_skips, "offset 2 follows 0"),
        (an_id_is_given_twice, "producer 2 was given 2 times"),
    ],
)
def test_it_finds(change: Callable[[LossHistory], None], found: str) -> None:
    story = a_story()
    change(story)
    assert any(found in anomaly for anomaly in judge(story)), judge(story)

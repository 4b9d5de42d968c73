"""Which groups have lost their quorum for good, and which log they continue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tinymq.base.types import METADATA_GROUP
from tinymq.raft.rules.configs import follows
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.quorum_loss import (
    NOBODY,
    UNSEEN_TERMS_MAX,
    Healthy,
    QuorumLost,
    ReplicaReport,
    Unrecoverable,
    forced_membership,
    judge,
)

OLD = {n: Replica(n, bytes([n]) * 16) for n in range(1, 6)}
NEW = {n: Replica(n, bytes([n + 100]) * 16) for n in range(1, 6)}  # the same brokers with empty data directories


def listing(*replicas: Replica, epoch: int = 1) -> Membership:
    return Membership(METADATA_GROUP, epoch, replicas)


FIRST = listing(OLD[1], OLD[2], OLD[3])
MEMBERS = (1, 2, 3)


def holds(
    replica: Replica, term: int = 3, index: int = 10, config: Membership = FIRST, **other: object
) -> ReplicaReport:
    report = ReplicaReport(
        replica=replica,
        healthy=True,
        leads=False,
        term=term,
        last_term=term,
        last_index=index,
        high_watermark=0,
        applied=config,
        newest=config,
        before_forced=(term, index),
    )
    return replace(report, **other)  # type: ignore[arg-type]


def empty(n: int, config: Membership = FIRST) -> ReplicaReport:
    return holds(NEW[n], 0, 1, config)


def lost(*reports: ReplicaReport, members: tuple[int, ...] = MEMBERS) -> QuorumLost:
    verdict = judge(reports, members)
    assert isinstance(verdict, QuorumLost), verdict
    return verdict


def stuck(*reports: ReplicaReport, unasked: tuple[int, ...] = (), members: tuple[int, ...] = MEMBERS) -> str:
    verdict = judge(reports, members, unasked)
    assert isinstance(verdict, Unrecoverable), verdict
    return verdict.why


def test_a_group_with_a_leader_needs_no_recovery() -> None:
    assert judge([holds(OLD[1]), holds(OLD[2], leads=True)], MEMBERS) == Healthy(2)


@pytest.mark.parametrize("there", [(1, 2), (2, 3), (1, 2, 3)])
def test_a_listed_majority_needs_no_recovery(there: tuple[int, ...]) -> None:
    assert judge([holds(OLD[n]) for n in there], MEMBERS) == Healthy(None)


def test_two_of_three_wiped_disks_need_a_recovery() -> None:
    verdict = lost(holds(OLD[1], 4, 900), empty(2), empty(3))
    assert verdict.survivor.broker_id == 1
    assert verdict.replicas == (OLD[1], NEW[2], NEW[3])
    assert verdict.gone == []


def test_a_lost_broker_is_listed_without_an_incarnation() -> None:
    verdict = lost(holds(OLD[1]), empty(3))
    assert verdict.replicas == (OLD[1], Replica(2, NOBODY), NEW[3])
    assert verdict.gone == [2]


def test_one_of_three_replicas_cannot_recover_alone() -> None:
    why = stuck(holds(OLD[1]))
    assert "2 of 3 replicas must be there: brokers 2, 3 must run, with an empty data directory" in why


def test_the_best_log_is_recovered_listed_or_not() -> None:
    """A replica that is catching up may have more entries than a listed replica that was far behind."""
    assert lost(holds(OLD[1], 3, 100), holds(NEW[2], 5, 50)).survivor.broker_id == 2
    assert lost(holds(OLD[1], 5, 50), holds(NEW[2], 5, 51)).survivor.broker_id == 2
    assert lost(holds(NEW[2], 5, 50), holds(OLD[3], 5, 50)).survivor.broker_id == 3, "among equals the listed replica"


def test_a_damaged_replica_does_not_count_and_is_not_chosen() -> None:
    damaged = holds(OLD[2], 9, 99, healthy=False, reason="CorruptData: a flip")
    assert lost(holds(OLD[1]), damaged, empty(3)).replicas == (OLD[1], Replica(2, NOBODY), NEW[3])
    assert "broker 2 has no whole log (CorruptData: a flip)" in stuck(holds(OLD[1]), damaged)


def test_a_lost_single_replica_starts_empty() -> None:
    verdict = lost(empty(1, listing(OLD[1])), members=(1,))
    assert verdict.replicas == (NEW[1],)


def test_a_live_broker_that_was_not_asked_may_have_more_entries() -> None:
    assert stuck(holds(OLD[1]), empty(2), unasked=(3,)) == "broker 3 is alive and was not asked: name its address, too"
    assert isinstance(judge([holds(OLD[1]), empty(2)], MEMBERS, (4,)), QuorumLost), "broker 3 is not a member"


def test_an_interrupted_recovery_is_repeated() -> None:
    """Its CONFIG lists all replicas, but the listed replicas have not applied it, so they give no vote."""
    second = listing(OLD[1], NEW[2], NEW[3], epoch=2)
    survivor = holds(OLD[1], newest=second)
    assert lost(survivor, empty(2), empty(3)).survivor.broker_id == 1
    applied = holds(OLD[1], config=second)
    assert lost(applied, empty(2), empty(3)).survivor.broker_id == 1
    assert judge([applied, empty(2, second), empty(3)], MEMBERS) == Healthy(None)


def test_a_replica_that_holds_the_candidates_config_will_vote() -> None:
    second = listing(OLD[1], NEW[2], OLD[3], epoch=2)
    told = holds(NEW[2], newest=second)
    assert judge([holds(OLD[1], config=second), told], MEMBERS) == Healthy(None)
    assert isinstance(judge([holds(OLD[1], newest=second), told], MEMBERS), QuorumLost), (
        "no replica knows that it is committed"
    )


def test_a_failed_recovery_does_not_hide_a_better_log() -> None:
    """Broker 3 was forced to lead with the empty broker 1, and died before it sent its CONFIG. Now 2 is back with more
    entries.
    """
    taken = holds(
        OLD[3], 7, 12, newest=forced_membership(FIRST, 3, [NEW[1], Replica(2, NOBODY)]), before_forced=(3, 10)
    )
    back = holds(OLD[2], 3, 20)
    assert lost(taken, back, empty(1)).survivor.broker_id == 2
    assert lost(taken, empty(1)).survivor.broker_id == 3, "it may have been committed with 2"
    assert lost(taken, replace(empty(1), newest=taken.newest, last_term=7, last_index=12), back).survivor.broker_id == 3


def test_a_replica_replaced_by_an_uncommitted_config_does_not_campaign() -> None:
    second = listing(NEW[1], OLD[2], OLD[3], epoch=2)
    assert isinstance(judge([holds(OLD[1], newest=second), empty(2)], MEMBERS), QuorumLost)


@pytest.mark.parametrize("highest", range(20))
def test_no_two_members_recover_in_one_term(highest: int) -> None:
    members = (4, 2, 5)
    terms = {}
    for n in members:
        others = [empty(m) for m in members if m != n]
        terms[n] = lost(holds(OLD[n], highest, 50), *others, members=members).term
    assert len(set(terms.values())) == 3
    assert all(0 < term - highest - UNSEEN_TERMS_MAX <= 3 for term in terms.values()), "no lost leader had it"


def test_a_group_that_is_open_nowhere_cannot_recover() -> None:
    assert stuck(members=()) == "no broker has it open"


def test_recoveries_are_ordered_by_their_configs() -> None:
    gone = Replica(3, NOBODY)
    once = forced_membership(FIRST, 1, [OLD[1], NEW[2], gone])
    assert (once.epoch, once.replicas) == (2, (OLD[1], NEW[2], gone))
    assert once.retired == (OLD[2], OLD[3]), "their disks may come back"
    other = forced_membership(FIRST, 2, [gone, NEW[2]])
    again = forced_membership(once, 1, [NEW[3]])
    assert FIRST.recovery_epoch < once.recovery_epoch < other.recovery_epoch < again.recovery_epoch
    assert follows(FIRST, once)
    assert follows(once, again)

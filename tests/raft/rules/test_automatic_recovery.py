"""Whether a group recovers automatically, and from which log: the rule, applied to reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.raft.values import GROUP
from tinymq.base.topic_config import Storage
from tinymq.log import DISK, LogConfig
from tinymq.raft.rules.automatic_recovery import plan_recovery
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.quorum_loss import NOBODY, ReplicaReport

MEMBERS = [1, 2, 3]
FOLDERS = {1: b"a" * 16, 2: b"b" * 16, 3: b"c" * 16}


def replica(broker_id: int, count: int = 0) -> Replica:
    return Replica(broker_id, FOLDERS[broker_id], count)


def config(*counts: int, epoch: int = 1) -> Membership:
    return Membership(GROUP, epoch, tuple(replica(at, count) for at, count in zip(MEMBERS, counts, strict=True)))


FIRST = config(0, 0, 0)


def report(broker_id: int, count: int = 0, **values: object) -> ReplicaReport:
    position = values.pop("position", (1, 10))
    applied = values.pop("applied", FIRST)
    newest = values.pop("newest", applied)
    values.setdefault("fault_count", 0)
    return ReplicaReport(
        replica(broker_id, count), values.pop("healthy", True), values.pop("leads", False),  # type: ignore[arg-type]
        1, *position, 0, applied, newest, position, **values,  # type: ignore[misc, arg-type]
    )  # fmt: skip


def begun_anew(broker_id: int, count: int = 1) -> ReplicaReport:
    """The report of a running process about its group."""
    return report(broker_id, count, position=(0, 1))


def test_a_group_without_entries_recovers_with_its_preferred_leader() -> None:
    found = plan_recovery([begun_anew(b) for b in MEMBERS], MEMBERS)
    assert found is not None
    assert found.survivor.broker_id == 1
    assert found.replicas == tuple(replica(b, 1) for b in MEMBERS)
    assert found.term % 3 == 0


@pytest.mark.parametrize("survivor", MEMBERS)
@pytest.mark.parametrize("leads", [True, False])
def test_one_survivor_recovers_with_its_log(survivor: int, leads: bool) -> None:
    reports = [report(b, leads=leads) if b == survivor else begun_anew(b) for b in MEMBERS]
    found = plan_recovery(reports, MEMBERS)
    assert found is not None
    assert found.survivor.broker_id == survivor


def test_the_longest_log_among_learners_leads() -> None:
    reports = [begun_anew(1, 2), report(2, 1, position=(3, 7)), report(3, 1, position=(3, 9))]
    found = plan_recovery(reports, MEMBERS)
    assert found is not None
    assert found.survivor.broker_id == 3


@pytest.mark.parametrize("gone", MEMBERS)
def test_two_that_are_listed_elect_one_of_them(gone: int) -> None:
    assert plan_recovery([begun_anew(b) if b == gone else report(b) for b in MEMBERS], MEMBERS) is None


def test_a_leader_that_can_commit_is_not_disturbed() -> None:
    """No replica could be elected at present: broker 2 is listed, but lacks the CONFIG that lists it."""
    leader = report(1, leads=True, applied=config(0, 1, 0, epoch=2))
    reports = [leader, report(2, 1, position=(1, 4)), begun_anew(3)]
    assert plan_recovery(reports, MEMBERS) is None
    assert plan_recovery([replace(leader, leads=False), *reports[1:]], MEMBERS) is not None


def test_a_silent_member_may_know_a_majority() -> None:
    reports = [begun_anew(1), begun_anew(2)]
    assert plan_recovery(reports, MEMBERS) is None
    assert plan_recovery([*reports, begun_anew(3)], MEMBERS) is not None
    knows = report(3, applied=config(1, 0, 0, epoch=2))
    found = plan_recovery([*reports, knows], MEMBERS)
    assert found is not None
    assert found.survivor is knows, "broker 1 is listed, and cannot vote: it does not hold that CONFIG"
    told = report(1, 1, position=(1, 4), newest=config(1, 0, 0, epoch=2))
    assert plan_recovery([told, begun_anew(2), knows], MEMBERS) is None, "now it can"


def test_a_damaged_or_failed_member_may_know_a_majority() -> None:
    assert plan_recovery([begun_anew(1), begun_anew(2), report(3, healthy=False)], MEMBERS) is None


def test_the_replica_that_has_the_committed_config_leads() -> None:
    """Brokers 2 and 1 committed the CONFIG that lists broker 3 again. Broker 2 ended before it announced the commit."""
    unsaid = report(1, newest=config(0, 0, 1, epoch=2))
    reports = [unsaid, begun_anew(2), report(3, 1, position=(0, 1))]
    found = plan_recovery(reports, MEMBERS)
    assert found is not None
    assert found.survivor is unsaid


def test_recovery_waits_for_a_missing_data_directory() -> None:
    stranger = replace(begun_anew(2), replica=Replica(2, b"z" * 16))
    assert plan_recovery([begun_anew(1), stranger, begun_anew(3)], MEMBERS) is None
    listed = Membership(GROUP, 2, (replica(1), Replica(2, NOBODY), replica(3)))
    reports = [replace(r, applied=listed, newest=listed) for r in (begun_anew(1), stranger, begun_anew(3))]
    assert plan_recovery(reports, MEMBERS) is not None, "an operator has accepted the loss of broker 2's data directory"


def test_a_count_below_the_listed_one_stops_the_recovery() -> None:
    """Counts only rise, so an old data directory was restored."""
    assert plan_recovery([replace(begun_anew(b), applied=config(5, 5, 5)) for b in MEMBERS], MEMBERS) is None


@pytest.mark.parametrize(
    ("kept", "alone"),
    [
        (DISK, False),
        (LogConfig(storage=Storage.MEMORY), True),
        (LogConfig(sync_interval_s=0.001), True),
    ],
)
def test_whether_a_topic_accepts_risks(kept: LogConfig, alone: bool) -> None:
    assert kept.takes_risks is alone


def test_an_identity_that_a_fault_ended_is_not_given_up() -> None:
    """The lost disk may have had entries that were acknowledged as durable, so an operator decides."""
    reports = [begun_anew(1), begun_anew(2), report(3)]
    assert plan_recovery(reports, MEMBERS) is not None
    by_fault = replace(reports[1], fault_count=1)
    for risky_now in (True, False):
        assert plan_recovery([reports[0], by_fault, reports[2]], MEMBERS, risky_now=risky_now) is None


def test_a_fault_before_the_listing_does_not_count() -> None:
    listed = config(0, 3, 0, epoch=2)
    reports = [replace(r, applied=listed, newest=listed) for r in (begun_anew(1), begun_anew(2, 5), report(3))]
    assert plan_recovery([reports[0], replace(reports[1], fault_count=3), reports[2]], MEMBERS) is not None
    assert plan_recovery([reports[0], replace(reports[1], fault_count=4), reports[2]], MEMBERS) is None


def test_configs_before_the_newest_applied_one_do_not_count() -> None:
    """Broker 3 was down while broker 2 lost its files and was listed again. Nothing is committed under broker 3's
    CONFIG.
    """
    later = config(0, 1, 0, epoch=2)
    one = report(1, 1, applied=later, fault_count=0)
    two = report(2, 2, applied=later, fault_count=1)
    three = report(3, 1, applied=FIRST, fault_count=0)
    assert plan_recovery([one, two, three], MEMBERS) is not None
    elsewhere = Membership(GROUP, 1, (replica(1), Replica(2, b"z" * 16), replica(3)))
    assert plan_recovery([one, two, replace(three, applied=elsewhere, newest=elsewhere)], MEMBERS) is not None
    assert plan_recovery([one, two, replace(three, newest=replace(elsewhere, epoch=3))], MEMBERS) is None, (
        "broker 3 may know of a majority"
    )


def test_without_a_reported_fault_count_the_present_setting_decides() -> None:
    """A broker of an earlier version reports no count of faults, so the present setting decides."""
    reports = [replace(begun_anew(b), fault_count=None) for b in MEMBERS]
    assert plan_recovery(reports, MEMBERS, risky_now=True) is not None
    assert plan_recovery(reports, MEMBERS, risky_now=False) is None

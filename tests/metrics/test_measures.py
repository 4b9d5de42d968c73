"""Counters and timings, on a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.fakes.manual_clock import ManualClock
from tests.metrics.pages import Families, parsed, value
from tinymq.base.types import GroupId, TopicId
from tinymq.metrics import measures
from tinymq.metrics.measures import GroupTally, Measures, Tally
from tinymq.raft import Role

T = b"t" * 16
GROUP = GroupId(TopicId(T), 0)


class Bench:
    """The metrics of a broker that a test drives."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = CollectorRegistry()
        self.measures = Measures(self.registry, self.clock)

    @property
    def families(self) -> Families:
        return parsed(generate_latest(self.registry).decode())

    def seen(self, name: str, **labels: str) -> tuple[float, float]:
        """Return the count and the sum of a histogram."""
        families = self.families
        return value(families, f"{name}_count", **labels), pytest.approx(value(families, f"{name}_sum", **labels))


@pytest.fixture
def bench() -> Bench:
    return Bench()


@dataclass
class Replica:
    """Return the status of a group."""

    role: Role = Role.FOLLOWER
    term: int = 1
    leader: int | None = None
    id: GroupId = GROUP


def test_a_batch_that_a_majority_has(bench: Bench) -> None:
    arrived_s = bench.measures.now()
    bench.clock.advance(0.5)
    appended_s = bench.measures.now()
    bench.clock.advance(0.25)
    bench.measures.produced(T, 100, 7, arrived_s, appended_s)
    assert bench.seen("tinymq_produce_seconds") == (1, 0.75)
    assert bench.seen("tinymq_commit_seconds") == (1, 0.25)
    assert value(bench.families, "tinymq_produce_seconds_bucket", le="0.5") == 0
    assert value(bench.families, "tinymq_produce_seconds_bucket", le="1.0") == 1
    assert bench.measures.tallies == {T: Tally(batches=1, records=7, bytes_in=100)}


def test_writes_without_a_waiter_have_no_latency(bench: Bench) -> None:
    now_s = bench.measures.now()
    bench.measures.produced(T, 100, 7, now_s, None)
    bench.measures.appended(T, 10, 1)
    bench.measures.duplicated(T, now_s)
    assert bench.seen("tinymq_commit_seconds")[0] == 0
    assert bench.seen("tinymq_produce_seconds")[0] == 2
    assert bench.measures.tallies == {T: Tally(batches=2, records=8, bytes_in=110, duplicates=1)}


def test_a_fetch_and_its_wait(bench: Bench) -> None:
    asked_s = bench.measures.now()
    bench.clock.advance(20)
    ready_s = bench.measures.now()
    bench.clock.advance(0.001)
    bench.measures.fetched(T, 5000, asked_s, ready_s)
    assert bench.seen("tinymq_fetch_wait_seconds") == (1, 20)
    assert bench.seen("tinymq_fetch_seconds") == (1, 0.001)
    assert bench.measures.tallies == {T: Tally(bytes_out=5000)}


def test_calls_errors_syncs_and_waits(bench: Bench) -> None:
    began_s = bench.measures.now()
    bench.clock.advance(2)
    bench.measures.called("Admin.CreateTopic", began_s)
    for code in ("NotLeader", "NotLeader", "DiskFull"):
        bench.measures.refused("Broker.Produce", code)
    bench.measures.synced(0.004, 3)
    bench.measures.synced(0.006, 2)
    bench.measures.throttled("fetch", 1.5)
    bench.measures.published(0.02)
    bench.measures.copied(100)
    bench.measures.copied(20)
    assert bench.seen("tinymq_call_seconds", call="Admin.CreateTopic") == (1, 2)
    assert value(bench.families, "tinymq_errors_total", call="Broker.Produce", code="NotLeader") == 2
    assert bench.measures.errors() == {"Broker.Produce": {"NotLeader": 2, "DiskFull": 1}}
    assert bench.seen("tinymq_sync_seconds") == (2, 0.01)
    assert bench.seen("tinymq_delayed_late_seconds") == (1, 0.02)
    copied = [value(bench.families, f"tinymq_copied_{what}_total") for what in ("batches", "bytes")]
    assert copied == [2, 120]
    assert value(bench.families, "tinymq_synced_logs_total") == 5
    assert value(bench.families, "tinymq_throttled_seconds_total", direction="fetch") == 1.5


def test_only_so_many_topics_have_numbers_of_their_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "TOPICS_MAX", 2)
    topics = [bytes([n]) * 16 for n in range(4)]
    for topic in topics:
        bench.measures.appended(topic, 10, 1)
        bench.measures.fetched(topic, 1, 0, 0)
    assert list(bench.measures.tallies) == topics[:2]
    assert bench.measures.others == Tally(batches=2, records=2, bytes_in=20, bytes_out=2)
    bench.measures.forget({topics[1]}, {})
    assert list(bench.measures.tallies) == [topics[1]]
    bench.measures.appended(topics[3], 10, 1)
    assert list(bench.measures.tallies) == [topics[1], topics[3]], "another one fits"


def elections(bench: Bench) -> tuple[float, ...]:
    """Elections started, elections won, and leader changes."""
    names = ("elections_started", "elections_won", "leader_changes")
    return tuple(value(bench.families, f"tinymq_{name}_total") for name in names)


def test_elections_are_counted_once_each(bench: Bench) -> None:
    steps = [
        (Replica(), (0, 0, 0)),
        (Replica(Role.CANDIDATE), (1, 0, 0)),
        (Replica(Role.CANDIDATE), (1, 0, 0)),
        (Replica(Role.CANDIDATE, 2), (2, 0, 0)),
        (Replica(Role.LEADER, 2, 1), (2, 1, 0)),
        (Replica(Role.LEADER, 2, 1), (2, 1, 0)),  # its CONFIG is another
        (Replica(Role.FOLLOWER, 3), (2, 1, 0)),
        (Replica(Role.FOLLOWER, 3, 2), (2, 1, 1)),
        (Replica(Role.FOLLOWER, 3), (2, 1, 1)),
        (Replica(Role.FOLLOWER, 4, 2), (2, 1, 1)),  # the same one again
        (Replica(Role.CANDIDATE, 4), (3, 1, 1)),
        (Replica(Role.LEADER, 5, 1), (3, 2, 2)),
        (Replica(Role.LEADER, 6, 1), (3, 3, 2)),
    ]
    for replica, counted in steps:
        bench.measures.group_changed(replica)  # type: ignore[arg-type]
        assert elections(bench) == counted, replica


def test_of_replicas_that_are_gone_nothing_is_kept(bench: Bench) -> None:
    kept, gone = GROUP, GroupId(TopicId(T), 1)
    for group in (kept, gone):
        bench.measures.group_changed(Replica(Role.LEADER, leader=1, id=group))  # type: ignore[arg-type]
    bench.measures.forget((), {kept: None})
    assert list(bench.measures._seen) == list(bench.measures._led) == [kept]


def test_how_transactions_were_decided_begins_at_0(bench: Bench) -> None:
    bench.measures.transaction_decided("timed_out")
    found = {how: value(bench.families, "tinymq_transactions_decided_total", how=how) for how in measures.DECIDED}
    assert found == {"committed": 0, "rolled_back": 0, "timed_out": 1, "replaced": 0, "incomplete": 0}


def test_counts_of_groups_begin_at_0_are_bounded_and_end_with_the_group(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "GROUPS_MAX", 2)
    bench.measures.know_groups(dict.fromkeys(("a", "b", "c")))
    assert bench.measures.group_tallies == {"a": GroupTally(), "b": GroupTally()}
    bench.measures.redelivered("a", 3)
    bench.measures.buried("b")
    bench.measures.rebalanced("c")
    assert bench.measures.group_tallies == {"a": GroupTally(redelivered=3), "b": GroupTally(buried=1)}
    assert bench.measures.other_groups == GroupTally(rebalances=1)
    bench.measures.know_groups(dict.fromkeys(("b", "c")))
    assert bench.measures.group_tallies == {"b": GroupTally(buried=1), "c": GroupTally()}

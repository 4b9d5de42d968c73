"""Answers of admin calls that are wrong, and ones that are only of the past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.story import LOG, Story, T, good
from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.history import Call

Spoil = Callable[[Story], None]
BROKERS = {1: "a:1", 2: "a:2", 3: "a:3"}


def quiet(s: Story) -> None:
    """Let all faults be over for long."""
    s.history.brokers = dict(BROKERS)
    s.history.calm()
    s.now_s += 4


def kept_quiet(s: Story) -> None:
    calm_s = s.history.calm_s
    s.end()
    s.history.calm_s = calm_s


def ask(s: Story, kind: str, result: Any, **args: Any) -> Call:
    call = s.begin("o", kind, **args)
    call.ok(result)
    return call


def replica(broker: int, **changed: Any) -> dict[str, Any]:
    """Return a replica of a good story as `cluster status` reports it."""
    role = "leader" if broker == 1 else "follower"
    return {
        "broker": broker, "topic": T, "partition": 0, "role": role, "term": 1, "leader": 1, "last": 4, "durable": 4,
        "commit": 4, "high_watermark": 4, "log_start": 0, "chain_crc": 0, **changed,
    }  # fmt: skip


def status(*replicas: dict[str, Any], brokers: dict[int, str] = BROKERS, leader: int = 1) -> dict[str, Any]:
    listed = [[broker, address, "running"] for broker, address in brokers.items()]
    return {"metadata_leader": leader, "level": 1, "brokers": listed, "replicas": list(replicas) or REPLICAS}


REPLICAS = [replica(broker) for broker in BROKERS]


def topic(leader: int = 1, epoch: int = 1, replicas: tuple[int, ...] = (1, 2, 3), **settings: str) -> dict[str, Any]:
    return {"topic": T, "replication": 3, "partitions": [[0, leader, epoch, list(replicas)]], "settings": settings}


def a_topic_whose_leader_lost(s: Story) -> None:
    ask(s, "topics", [topic(leader=2)])


def a_status_whose_leader_lost(s: Story) -> None:
    ask(s, "status", status(replica(2, leader=2)))


def a_status_of_a_leader_that_lost(s: Story) -> None:
    ask(s, "status", status(replica(2, role="leader")))


def a_commit_behind_the_end(s: Story) -> None:
    ask(s, "status", status(replica(2, commit=5)))


def a_sync_behind_the_end(s: Story) -> None:
    ask(s, "status", status(replica(2, durable=5)))


def a_start_behind_the_high_watermark(s: Story) -> None:
    ask(s, "status", status(replica(2, log_start=5)))


def a_high_watermark_behind_the_commit(s: Story) -> None:
    s.history.commits[LOG] = [(0.0, 3)]
    ask(s, "status", status(replica(2)))
    s.history.commits[LOG].append((s.now_s + 1, 4))


def another_checksum(s: Story) -> None:
    s.stored("q-3")
    s.send("q-3", by="q").unknown("OutcomeUnknown")
    crc = s.replica(1).entries[2].header_crc
    ask(s, "status", status(replica(2, commit=3, chain_crc=crc ^ 1)))


def a_missing_broker(s: Story) -> None:
    quiet(s)
    ask(s, "status", status(brokers={1: "a:1", 2: "a:2"}))
    kept_quiet(s)


def a_missing_replica(s: Story) -> None:
    quiet(s)
    ask(s, "status", status(*REPLICAS[:2]))
    kept_quiet(s)


def another_leader_of_the_metadata(s: Story) -> None:
    s.history.led(("", 0), 1, 1)
    quiet(s)
    ask(s, "status", status(leader=2))
    kept_quiet(s)


def too_few_replicas(s: Story) -> None:
    ask(s, "topics", [topic(replicas=(1, 2))])


def a_replica_twice(s: Story) -> None:
    ask(s, "topics", [topic(replicas=(1, 2, 2))])


def a_leader_without_a_replica(s: Story) -> None:
    ask(s, "topics", [topic(leader=4, epoch=9)])


def no_leader_in_quiet_times(s: Story) -> None:
    quiet(s)
    ask(s, "topics", [topic(leader=0)])
    kept_quiet(s)


def a_setting_that_nobody_altered(s: Story) -> None:
    ask(s, "topics", [topic(max_bytes="none")])
    ask(s, "topics", [topic(max_bytes="1")])


def a_setting_that_was_not_given(s: Story) -> None:
    s.history.topics[T] = {"segment_ms": "1000"}
    ask(s, "topics", [topic(segment_ms="2000")])


def a_missing_partition(s: Story) -> None:
    ask(s, "add_partition", 1, topic=T)
    ask(s, "topics", [topic()])


def a_deleted_partition(s: Story) -> None:
    ask(s, "delete_partition", None, topic=T, partition=0)
    ask(s, "topics", [topic()])


def a_broker_elsewhere(s: Story) -> None:
    s.history.brokers = dict(BROKERS)
    ask(s, "brokers", [[1, "a:1"], [2, "a:9"]])


def a_broker_from_nowhere(s: Story) -> None:
    s.history.brokers = dict(BROKERS)
    ask(s, "brokers", [[4, "a:4"]])


def a_broker_that_is_not_listed(s: Story) -> None:
    quiet(s)
    ask(s, "brokers", [[1, "a:1"], [2, "a:2"]])
    kept_quiet(s)


def a_level_that_falls(s: Story) -> None:
    ask(s, "feature_level", 2)
    ask(s, "feature_level", 1)


def more_than_was_committed(s: Story) -> None:
    s.history.commits[LOG] = [(0.0, 4)]
    ask(s, "kept", [[0, 5, 100]], topic=T)


def fewer_than_were_acknowledged(s: Story) -> None:
    s.history.commits[LOG] = [(0.0, 4)]
    quiet(s)
    ask(s, "kept", [[0, 2, 100]], topic=T)
    kept_quiet(s)


def other_bytes_than_are_stored(s: Story) -> None:
    s.history.commits[LOG] = [(0.0, 4)]
    s.history.weights[LOG] = [(2, 100), (3, 150), (4, 200)]
    ask(s, "kept", [[0, 4, 300]], topic=T)


def a_hold_that_nobody_made(s: Story) -> None:
    ask(s, "hold", None, topic=T, partition=0, hold="h", offset=2, lease_s=60.0)
    ask(s, "holds", [[0, "h", 3]], topic=T)


def a_hold_that_is_missing(s: Story) -> None:
    quiet(s)
    ask(s, "hold", None, topic=T, partition=0, hold="h", offset=2, lease_s=60.0)
    ask(s, "holds", [], topic=T)
    kept_quiet(s)


def a_scan_that_is_cut_short(s: Story) -> None:
    ask(s, "scan", [["p-0", "p-1", "q-0"], 3, 3], topic=T, partition=0, end=4)


def a_scan_that_no_broker_counts(s: Story) -> None:
    quiet(s)
    ask(s, "scan", [["p-0", "p-1", "q-0"], 0, 0], topic=T, partition=0, end=3)
    kept_quiet(s)


SPOILS: list[Spoil] = [
    a_topic_whose_leader_lost, a_status_whose_leader_lost, a_status_of_a_leader_that_lost, a_commit_behind_the_end,
    a_sync_behind_the_end, a_start_behind_the_high_watermark, a_high_watermark_behind_the_commit, another_checksum,
    a_missing_broker, a_missing_replica, another_leader_of_the_metadata, too_few_replicas, a_replica_twice,
    a_leader_without_a_replica, no_leader_in_quiet_times, a_setting_that_nobody_altered, a_setting_that_was_not_given,
    a_missing_partition, a_deleted_partition, a_broker_elsewhere, a_broker_from_nowhere, a_broker_that_is_not_listed,
    a_level_that_falls, more_than_was_committed, fewer_than_were_acknowledged, other_bytes_than_are_stored,
    a_hold_that_nobody_made, a_hold_that_is_missing, a_scan_that_is_cut_short, a_scan_that_no_broker_counts,
]  # fmt: skip
BAD: list[tuple[Spoil, AnomalyKind]] = [(spoil, AnomalyKind.WRONG_ANSWER) for spoil in SPOILS]


def test_good_answers_are_good() -> None:
    story = good()
    story.history.led(("", 0), 1, 1)
    story.history.commits[LOG] = [(0.0, 4)]
    quiet(story)
    chain_crc = story.replica(1).entries[3].header_crc
    ask(story, "status", status(*(replica(broker, chain_crc=chain_crc) for broker in BROKERS)))
    ask(story, "topics", [topic(max_bytes="none")])
    ask(story, "brokers", [[broker, address] for broker, address in BROKERS.items()])
    ask(story, "kept", [[0, 4, 100]], topic=T)
    ask(story, "hold", None, topic=T, partition=0, hold="h", offset=2, lease_s=60.0)
    ask(story, "holds", [[0, "h", 2]], topic=T)
    ask(story, "scan", [["p-0", "p-1", "q-0"], 3, 3], topic=T, partition=0, end=3)
    kept_quiet(story)
    assert story.kinds() == set()


@pytest.mark.parametrize(
    "spoil", [a_missing_broker, a_missing_replica, no_leader_in_quiet_times, a_hold_that_is_missing]
)
def test_while_faults_last_an_answer_may_be_incomplete(spoil: Spoil, monkeypatch: pytest.MonkeyPatch) -> None:
    story = good()
    monkeypatch.setitem(globals(), "quiet", lambda s: s.history.calm())
    spoil(story)
    assert story.kinds() == set()


def revived(s: Story) -> None:
    """The partition of a weak topic loses its last record, of 50 bytes, and gets another one, of 10."""
    for end, size in ((2, 100), (3, 50), (4, 50)):
        s.history.committed(LOG, end)
        s.history.weighed(LOG, end, size)
    s.now_s += 1
    s.history.revived(LOG, 3)
    s.now_s += 1
    s.history.committed(LOG, 4)
    s.history.weighed(LOG, 4, 10)


@pytest.mark.parametrize(("size", "found"), [(160, set()), (200, {AnomalyKind.WRONG_ANSWER})])
def test_after_a_revival_the_bytes_of_the_present_records_count(size: int, found: set[AnomalyKind]) -> None:
    story = good()
    revived(story)
    ask(story, "kept", [[0, 4, size]], topic=T)
    assert story.kinds() & {AnomalyKind.WRONG_ANSWER} == found


def test_a_topic_that_is_made_just_now_elects_its_first_leader() -> None:
    story = good()
    quiet(story)
    made = {"topic": "new#" + "1f" * 16, "replication": 3, "partitions": [[0, 0, 0, [1, 2, 3]]], "settings": {}}
    ask(story, "topics", [made])
    kept_quiet(story)
    assert story.kinds() == {AnomalyKind.WRONG_ANSWER}
    ask(story, "create_topic", None, name="new", partitions=1)
    assert story.kinds() == set()


def test_an_altered_setting_may_have_both_values() -> None:
    story = good()
    ask(story, "topics", [topic(max_bytes="none")])
    ask(story, "alter_topic", None, topic=T, settings={"max_bytes": "1"})
    ask(story, "topics", [topic(max_bytes="1")])
    story.end()
    assert story.kinds() == set()

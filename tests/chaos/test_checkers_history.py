"""Histories are values that can be stored, and records name themselves."""

from __future__ import annotations

import pytest

from tinymq_chaos.history import METADATA, FinalReplica, History, Outcome, StoredEntry, topic_key
from tinymq_chaos.records import CHANGED, VALUE_BYTES_MIN, make_value, name_in


def a_history() -> History:
    times = iter(range(100))
    history = History(lambda: float(next(times)))
    topic = topic_key("t", bytes(16))
    history.invoke("p1", "send", 5.0, topic=topic, partition=0, records=["p1-0", "p1-1"]).ok([0, 0])
    history.invoke("p1", "send", 9.0, topic=topic, partition=0, records=["p1-2"]).unknown("OutcomeUnknown")
    history.invoke("a1", "create_topic", 9.0, name="t", partitions=1).failed("TopicExists")
    history.invoke("r1", "poll", 9.0, reader="r1", topic=topic)
    history.led(METADATA, 1, 2)
    history.led(METADATA, 1, 2)
    entry = StoredEntry(1, 1, 0, 0, 77, ("p1-0", "p1-1"))
    history.replicas.append(
        FinalReplica((topic, 0), 1, "leader", high_watermark=2, commit_index=1, log_start=0, entries=(entry,))
    )
    span = history.fault_began("pause", "broker 2 for 6 s")
    history.fault_began("latency", "50 ms everywhere")
    history.fault_ended(span)
    history.calm()
    history.end()
    return history


def test_a_history_is_kept_as_lines() -> None:
    history = a_history()
    lines = list(history.lines())
    again = History.read(lines)
    assert again.calls == history.calls
    assert [c.outcome for c in again.calls] == [Outcome.OK, Outcome.UNKNOWN, Outcome.FAILED, Outcome.PENDING]
    assert again.replicas == history.replicas
    assert again.leaders == history.leaders
    assert again.faults == history.faults
    assert [(f.kind, f.began_s, f.ended_s) for f in again.faults] == [("pause", 8.0, 10.0), ("latency", 9.0, None)]
    assert (again.calm_s, again.ended_s) == (history.calm_s, history.ended_s)
    assert list(again.lines()) == lines
    assert "#1 p1 send" in str(again.calls[1])


def test_a_call_ends_once() -> None:
    call = History().invoke("p", "send", 1.0)
    call.ok()
    with pytest.raises(AssertionError):
        call.failed("NotLeader")


def test_the_first_observation_of_a_leader_counts() -> None:
    history = a_history()
    assert [led.at_s for led in history.leaders.values()] == [7.0]


@pytest.mark.parametrize("size", [0, VALUE_BYTES_MIN, 49, 1000])
def test_a_value_names_its_record(size: int) -> None:
    value = make_value("p1-17", size)
    assert len(value) >= size
    assert name_in(value) == "p1-17"


@pytest.mark.parametrize("at", [0, 1, 6, 9, 12, 99])
def test_a_changed_value_names_no_record(at: int) -> None:
    value = bytearray(make_value("p1-17", 100))
    value[at] ^= 1
    assert name_in(bytes(value)).startswith(CHANGED)


@pytest.mark.parametrize("value", [None, b"", b"p1-17", b"p1-17 48 ", make_value("p1-17", 100)[:-1], b"\xff 1 2"])
def test_other_bytes_name_no_record(value: bytes | None) -> None:
    assert name_in(value).startswith(CHANGED)

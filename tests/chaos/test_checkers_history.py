"""Histories are values that can be stored, and records name themselves."""

from __future__ import annotations

import pytest

from tinymq_chaos.history import METADATA, FinalReplica, History, Outcome, StoredEntry, topic_key
from tinymq_chaos.records import (
    CHANGED,
    LOOKS,
    STAMPED_LATE_US,
    VALUE_BYTES_MIN,
    Content,
    Headers,
    fields_in,
    make_content,
    make_value,
    name_in,
    name_in_fields,
)


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


NOW_US = 1_700_000_000_000_000


def contents(own_clock: bool = True) -> list[Content]:
    return [make_content(f"p1-{n}", 64, NOW_US, own_clock=own_clock) for n in range(600)]


def named(content: Content, **changed: object) -> str:
    """Return the name of a record of which some fields were changed."""
    stamped_us = NOW_US if content.timestamp_us is None else content.timestamp_us
    fields = {"key": content.key, "value": content.value, "headers": content.headers, "timestamp_us": stamped_us}
    return name_in_fields(**{**fields, **changed})  # type: ignore[arg-type]


def test_records_have_all_keys_headers_and_kinds_of_timestamps() -> None:
    made = contents()
    assert {c.key is None for c in made} == {True, False}
    assert b"" in {c.key for c in made}
    assert len({c.headers for c in made}) == len({headers for _, headers in LOOKS})
    times = [c.timestamp_us for c in made if c.timestamp_us is not None]
    assert 0 < len(times) < len(made)
    assert min(times) < NOW_US < max(times)
    assert max(times.count(each) for each in {*times} - {NOW_US}) > 1
    assert [named(c) for c in made] == [f"p1-{n}" for n in range(len(made))]
    assert {fields_in(c.value)[:2] for c in made} == {(c.key, c.headers) for c in made}


WRONG_KEYS: list[bytes | None] = [None, b"", b"other"]
WRONG_HEADERS: list[Headers] = [(), (("trace", b""),), (("a", b"2"), ("a", b"1"), ("", b"")), (("none", b""),)]


@pytest.mark.parametrize("key", WRONG_KEYS)
def test_a_changed_key_names_no_record(key: bytes | None) -> None:
    assert {named(c, key=key)[0] for c in contents() if c.key != key} == {CHANGED}


@pytest.mark.parametrize("headers", WRONG_HEADERS)
def test_changed_headers_name_no_record(headers: Headers) -> None:
    assert {named(c, headers=headers)[0] for c in contents() if c.headers != headers} == {CHANGED}


def test_a_changed_timestamp_names_no_record() -> None:
    given = [c for c in contents() if c.timestamp_us is not None]
    assert {named(c, timestamp_us=c.timestamp_us + by)[0] for c in given for by in (-1, 1)} == {CHANGED}  # type: ignore[operator]
    stamped = [c for c in contents() if c.timestamp_us is None]
    late_us = NOW_US + STAMPED_LATE_US
    assert {named(c, timestamp_us=at_us)[0] for c in stamped for at_us in (NOW_US - 1, late_us + 1)} == {CHANGED}
    by_broker = [c for c in contents(own_clock=False) if c.timestamp_us is None]
    assert {named(c, timestamp_us=0)[0] for c in by_broker} == {"p"}, "a broker's clock may be wrong"

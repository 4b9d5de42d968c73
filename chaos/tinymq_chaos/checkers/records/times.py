"""Times of records: append times never go back, and a look-up by time finds the first record of that time or later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import WELL, Facts
from tinymq_chaos.checkers.records.writes import acknowledged
from tinymq_chaos.history import Call, Log, Outcome

NONE_US = -1  # the timestamp in an answer that names no record


def append_times_back(facts: Facts) -> Iterator[Anomaly]:
    """An entry has an earlier append time than the entry before it."""
    for log, replicas in facts.replicas.items():
        for replica in replicas:
            for before, entry in pairwise(replica.entries):
                if before.append_time_us is None or entry.append_time_us is None:
                    continue
                back_us = before.append_time_us - entry.append_time_us
                if back_us > 0:
                    what = f"entry {entry.index} was appended {back_us} us before entry {before.index}"
                    offsets = (before.base_offset, entry.base_offset)
                    yield Anomaly(AnomalyKind.TIME_BACK, what, log, offsets=offsets, brokers=(replica.broker,))


def wrong_append_times(facts: Facts) -> Iterator[Anomaly]:
    """A send is answered with another append time than the log has for its record."""
    appended: dict[Log, dict[int, int]] = {}
    for log, replicas in facts.replicas.items():
        at = appended[log] = {}
        for entry in (e for r in replicas if r.role in WELL for e in r.entries):
            if entry.append_time_us is not None:
                at.update(dict.fromkeys(range(entry.base_offset, entry.end_offset), entry.append_time_us))
    for call in acknowledged(facts):
        partition, offset, *rest = call.result
        log = call.args["topic"], partition
        stored_us = appended.get(log, {}).get(offset)
        if rest and stored_us is not None and rest[0] != stored_us:
            what = f"answered with append time {rest[0]}, and the log has {stored_us}"
            records = call.args["records"]
            yield Anomaly.of(AnomalyKind.WRONG_TIME, what, log, call, records=records, offsets=(offset,))


@dataclass(frozen=True, slots=True)
class FoundTime:
    """The answer to a look-up by time in one partition. None: the caller was not told."""

    call: Call
    log: Log
    time_us: int
    offset: int
    timestamp_us: int | None
    log_start: int | None
    high_watermark: int | None


def wrong_look_ups(facts: Facts) -> Iterator[Anomaly]:
    """A look-up by time names another record than the first one of that time or later, or misses it."""
    for found in _look_ups(facts):
        final = facts.finals.get(found.log)
        if final is None or not final.certain or facts.is_gone(found.log):
            continue
        what = _wrong(found, facts.timestamps(found.log), _kept_from(facts, found))
        if what:
            what = f"looked up {found.time_us}: {what}"
            yield Anomaly.of(AnomalyKind.WRONG_TIME, what, found.log, found.call, offsets=(found.offset,))


def _look_ups(facts: Facts) -> Iterator[FoundTime]:
    for call in facts.of("find_time"):
        for partition, *answer in call.result if call.outcome is Outcome.OK else ():
            yield FoundTime(call, (call.args["topic"], partition), call.args["time_us"], *answer)


def _kept_from(facts: Facts, found: FoundTime) -> int:
    """Return an offset from which on all records existed during the call: some may go while a broker looks, and a
    replica in memory whose head was removed may be filled again from one that has it.
    """
    ends = [r.log_start if r.shown_start is None else r.shown_start for r in facts.replicas.get(found.log, ())]
    return max([found.log_start or 0, facts.history.heads.get(found.log, 0), *ends])


def _wrong(found: FoundTime, timestamps: dict[int, int], kept_from: int) -> str:
    """Return what is wrong with an answer; "" if nothing is."""
    for offset in range(kept_from, found.offset):
        if timestamps.get(offset, found.time_us - 1) >= found.time_us:
            return f"offset {found.offset} is the answer, and record {offset} has {timestamps[offset]}"
    stored_us = timestamps.get(found.offset)
    if found.high_watermark is None:
        return ""  # the answer may be the end that a follower knew
    if found.offset > found.high_watermark:
        return f"offset {found.offset} lies behind the end, {found.high_watermark}"
    if found.offset == found.high_watermark:
        stored_us = NONE_US
    elif stored_us is not None and stored_us < found.time_us:
        return f"offset {found.offset} is the answer, and has {stored_us}"
    if None not in (stored_us, found.timestamp_us) and stored_us != found.timestamp_us:
        return f"offset {found.offset} is said to have {found.timestamp_us}, and has {stored_us}"
    return ""

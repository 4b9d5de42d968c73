"""Compare replicas: each has one history, all have the same, and a term has at most one leader."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import WELL, Facts, has_sent_records
from tinymq_chaos.history import FaultChange, FinalReplica, LeaderSpan, Log
from tinymq_chaos.records import CHANGED

LINGER_S = 2.0  # an isolated leader has stepped down
LINGER_LATE_S = 0.5
CAUSE_S = 5.0  # a fault may cause changes of leaders for so long
CHANGES_MAX = 2  # of a log's leader without a cause


def gaps(facts: Facts) -> Iterator[Anomaly]:
    """In a replica, indexes and offsets are in a row, terms never go back, and each entry has the checksum of the one
    before it.
    """
    for log, replicas in facts.replicas.items():
        for replica in replicas:
            yield from _gaps_in(log, replica)


def _gaps_in(log: Log, replica: FinalReplica) -> Iterator[Anomaly]:
    at = (replica.broker,)
    for before, entry in zip(replica.entries, replica.entries[1:], strict=False):
        due = before.base_offset + len(before.records)
        if entry.index != before.index + 1:
            yield Anomaly(AnomalyKind.GAP, f"entry {entry.index} comes after {before.index}", log, brokers=at)
        elif entry.base_offset != due:
            what = f"entry {entry.index} begins at offset {entry.base_offset}, not at {due}"
            yield Anomaly(AnomalyKind.GAP, what, log, offsets=(due, entry.base_offset), brokers=at)
        elif entry.term < before.term:
            what = f"entry {entry.index} is of term {entry.term}, the one before of {before.term}"
            yield Anomaly(AnomalyKind.BROKEN_CHAIN, what, log, brokers=at)
        elif entry.prev_crc != before.header_crc:
            what = f"entry {entry.index} does not name entry {before.index} as the one before it"
            yield Anomaly(AnomalyKind.BROKEN_CHAIN, what, log, brokers=at)


def replicas_differ(facts: Facts) -> Iterator[Anomaly]:
    """Hash chains are equal up to the lowest commit index."""
    for log, replicas in facts.replicas.items():
        known = [r for r in replicas if r.entries]
        if len(known) < 2:
            continue
        upto = min(r.commit_index for r in known)
        chosen = {e.index: (e, known[0]) for e in known[0].entries if e.index <= upto}
        for other in known[1:]:
            for entry in other.entries:
                one, first = chosen.get(entry.index, (entry, other))
                if one.header_crc == entry.header_crc:
                    if entry.index <= upto:
                        chosen[entry.index] = entry, other  # may be below the first entry of the replicas before
                    continue
                what = (
                    f"entry {entry.index}, committed on both, is of term {one.term} with {_records(one.records)} on "
                    f"broker {first.broker}, of term {entry.term} with {_records(entry.records)} on {other.broker}"
                )
                brokers = (first.broker, other.broker)
                yield Anomaly(AnomalyKind.REPLICAS_DIFFER, what, log, offsets=(entry.base_offset,), brokers=brokers)
                break


def _records(names: tuple[str, ...]) -> str:
    return f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}" if names else "no record"


def damaged_entries(facts: Facts) -> Iterator[Anomaly]:
    """No replica passes damaged bytes off as what was written."""
    for log, replicas in facts.replicas.items():
        if not has_sent_records(log):
            continue
        for replica in replicas:
            for entry in replica.entries:
                if entry.records and entry.records[0].startswith(CHANGED):
                    what = f"entry {entry.index} is damaged, and was read without an error"
                    yield Anomaly(AnomalyKind.CHANGED_RECORD, what, log, entry.records, brokers=(replica.broker,))


def high_watermarks(facts: Facts) -> Iterator[Anomaly]:
    """A high watermark is an end of committed records."""
    for log, replicas in facts.replicas.items():
        for replica in replicas:
            committed = [e for e in replica.entries if e.index <= replica.commit_index]
            end = committed[-1].base_offset + len(committed[-1].records) if committed else replica.log_start
            if replica.high_watermark > end:
                what = f"shows up to {replica.high_watermark}, and {end} is committed"
                yield Anomaly(AnomalyKind.HIGH_WATERMARK, what, log, brokers=(replica.broker,))


def innocent_damage(facts: Facts) -> Iterator[Anomaly]:
    """Kills and power cuts damage nothing and take nothing acknowledged, so no replica has to be repaired. (Its peers
    would repair it, and hide the cause.)
    """
    for found in facts.history.found:
        what = f"no fault touched its disk, and it reports: {found.reason}"
        yield Anomaly(AnomalyKind.INNOCENT_DAMAGE, what, found.log, brokers=(found.broker,), times_s=(found.at_s,))


def not_healed(facts: Facts) -> Iterator[Anomaly]:
    """When all faults have been over for a while, every replica takes part, and each log has one leader."""
    if facts.history.calm_s is None:
        return
    for log, replicas in facts.replicas.items():
        for replica in replicas:
            if replica.role not in WELL:
                yield Anomaly(AnomalyKind.NOT_HEALED, f"the replica is {replica.role}", log, brokers=(replica.broker,))
        lagging = {r.high_watermark for r in replicas if r.role in WELL}
        if len(lagging) > 1:
            what = f"replicas stand at {', '.join(f'{r.broker}: {r.high_watermark}' for r in replicas)}"
            yield Anomaly(AnomalyKind.NOT_HEALED, what, log, brokers=tuple(r.broker for r in replicas))


def two_leaders(facts: Facts) -> Iterator[Anomaly]:
    """A term has at most one leader."""
    known: dict[tuple[Log, int], LeaderSpan] = {}
    for led in facts.history.leaders.values():
        first = known.setdefault((led.log, led.term), led)
        if first.broker != led.broker:
            what = f"both lead term {led.term}"
            brokers, at = (first.broker, led.broker), (first.at_s, led.at_s)
            yield Anomaly(AnomalyKind.TWO_LEADERS, what, led.log, brokers=brokers, times_s=at)


def lingering_leaders(facts: Facts, late_s: float = LINGER_LATE_S) -> Iterator[Anomaly]:
    """A replaced leader leads on for LINGER_S and `late_s` at most, not counting the time for which it was stopped."""
    history = facts.history
    for log, leaders in _leaders_by_log(facts).items():
        if facts.is_gone(log):
            continue  # a leader of a deleted topic does not report its end
        for old, new in pairwise(sorted(leaders, key=lambda led: led.term)):
            until_s = min(s for s in (old.until_s, new.until_s, history.ended_s, float("inf")) if s is not None)
            if until_s == float("inf"):
                continue
            both_s = until_s - max(old.at_s, new.at_s) - _stopped_s(history.changes, old.broker, new.at_s, until_s)
            if old.term < new.term and old.broker != new.broker and both_s > LINGER_S + late_s:
                what = f"broker {old.broker} led term {old.term} for {both_s:.1f} s beside {new.broker} in {new.term}"
                brokers, at = (old.broker, new.broker), (new.at_s, until_s)
                yield Anomaly(AnomalyKind.LINGERING_LEADER, what, old.log, brokers=brokers, times_s=at)


def _stopped_s(changes: list[FaultChange], broker: int, start_s: float, end_s: float) -> float:
    """Return for how long `broker` was stopped between two times.

    After a stop the broker needs LINGER_S more to find out.
    """
    stopped_s = 0.0
    for change, after in pairwise([*changes, FaultChange(end_s, "end")]):
        if broker in change.paused:
            overlap_s = min(after.at_s, end_s) - max(change.at_s, start_s)
            stopped_s += overlap_s + LINGER_S if overlap_s > 0 else 0.0
    return stopped_s


def restless(facts: Facts) -> Iterator[Anomaly]:
    """Leaders change only for a cause: a lasting fault causes elections when it begins, and none later."""
    changes = [change.at_s for change in facts.history.changes]
    if not changes:
        return
    end_s = math.inf if facts.history.ended_s is None else facts.history.ended_s  # brokers stop then
    for log, leaders in _leaders_by_log(facts).items():
        leaders = [led for led in leaders if led.at_s <= end_s and not _by_hand(facts, led)]
        causeless: dict[int, list[LeaderSpan]] = {}
        for led in sorted(leaders, key=lambda led: led.at_s)[1:]:
            window = bisect_right(changes, led.at_s)
            if window and led.at_s - changes[window - 1] > CAUSE_S:
                causeless.setdefault(window, []).append(led)
        for window, found in causeless.items():
            if len(found) > CHANGES_MAX:
                last = facts.history.changes[window - 1]
                what = f"{len(found)} changes of leader, and nothing has happened since {last.what}"
                at = (last.at_s, found[0].at_s, found[-1].at_s)
                brokers = tuple(led.broker for led in found)
                yield Anomaly(AnomalyKind.RESTLESS, what, log, brokers=brokers, times_s=at)


def _by_hand(facts: Facts, led: LeaderSpan) -> bool:
    """Return whether a leadership transfer was requested at that time."""
    return any(
        (call.args["topic"], call.args["partition"]) == led.log
        and call.invoked_s <= led.at_s <= (call.ended_s or call.deadline_s) + LINGER_S
        for call in facts.of("transfer")
    )


def _leaders_by_log(facts: Facts) -> dict[Log, list[LeaderSpan]]:
    found: dict[Log, list[LeaderSpan]] = {}
    for led in facts.history.leaders.values():
        found.setdefault(led.log, []).append(led)
    return found

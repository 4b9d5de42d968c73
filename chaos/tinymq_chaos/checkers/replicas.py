"""Replicas against one another: one history each, the same one, and at most one leader of a term."""

from __future__ import annotations

from collections.abc import Iterator

from tinymq_chaos.checkers.anomaly import Anomaly, Kind
from tinymq_chaos.checkers.facts import WELL, Facts
from tinymq_chaos.history import Led, Log, Replica


def gaps(facts: Facts) -> Iterator[Anomaly]:
    """Within a replica: indexes and offsets in a row, terms that never go back, each entry chained to the last."""
    for log, replicas in facts.replicas.items():
        for replica in replicas:
            yield from _gaps_in(log, replica)


def _gaps_in(log: Log, replica: Replica) -> Iterator[Anomaly]:
    at = (replica.broker,)
    for before, entry in zip(replica.entries, replica.entries[1:], strict=False):
        due = before.base_offset + len(before.records)
        if entry.index != before.index + 1:
            yield Anomaly(Kind.GAP, f"entry {entry.index} comes after {before.index}", log, brokers=at)
        elif entry.base_offset != due:
            what = f"entry {entry.index} begins at offset {entry.base_offset}, not at {due}"
            yield Anomaly(Kind.GAP, what, log, offsets=(due, entry.base_offset), brokers=at)
        elif entry.term < before.term:
            what = f"entry {entry.index} is of term {entry.term}, the one before of {before.term}"
            yield Anomaly(Kind.BROKEN_CHAIN, what, log, brokers=at)
        elif entry.prev_crc != before.header_crc:
            what = f"entry {entry.index} does not name entry {before.index} as the one before it"
            yield Anomaly(Kind.BROKEN_CHAIN, what, log, brokers=at)


def replicas_differ(facts: Facts) -> Iterator[Anomaly]:
    """Hash chains are equal up to the lowest commit index."""
    for log, replicas in facts.replicas.items():
        known = [r for r in replicas if r.entries]
        if len(known) < 2:
            continue
        upto = min(r.commit_index for r in known)
        first = known[0]
        chosen = {e.index: e for e in first.entries if e.index <= upto}
        for other in known[1:]:
            for entry in other.entries:
                one = chosen.get(entry.index)
                if one is None or one.header_crc == entry.header_crc:
                    continue
                what = (
                    f"entry {entry.index}, committed on both, is of term {one.term} with {_records(one.records)} on "
                    f"broker {first.broker}, of term {entry.term} with {_records(entry.records)} on {other.broker}"
                )
                brokers = (first.broker, other.broker)
                yield Anomaly(Kind.REPLICAS_DIFFER, what, log, offsets=(entry.base_offset,), brokers=brokers)
                break


def _records(names: tuple[str, ...]) -> str:
    return f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}" if names else "no record"


def high_watermarks(facts: Facts) -> Iterator[Anomaly]:
    """A high watermark is an end of what is committed."""
    for log, replicas in facts.replicas.items():
        for replica in replicas:
            committed = [e for e in replica.entries if e.index <= replica.commit_index]
            end = committed[-1].base_offset + len(committed[-1].records) if committed else replica.log_start
            if replica.high_watermark > end:
                what = f"shows up to {replica.high_watermark}, and {end} is committed"
                yield Anomaly(Kind.HIGH_WATERMARK, what, log, brokers=(replica.broker,))


def not_healed(facts: Facts) -> Iterator[Anomaly]:
    """With all faults over for a while, every replica takes part, and each log has one leader."""
    if facts.history.calm_s is None:
        return
    for log, replicas in facts.replicas.items():
        for replica in replicas:
            if replica.role not in WELL:
                yield Anomaly(Kind.NOT_HEALED, f"the replica is {replica.role}", log, brokers=(replica.broker,))
        lagging = {r.high_watermark for r in replicas if r.role in WELL}
        if len(lagging) > 1:
            what = f"replicas stand at {', '.join(f'{r.broker}: {r.high_watermark}' for r in replicas)}"
            yield Anomaly(Kind.NOT_HEALED, what, log, brokers=tuple(r.broker for r in replicas))


def two_leaders(facts: Facts) -> Iterator[Anomaly]:
    """At most one leader of a term."""
    known: dict[tuple[Log, int], Led] = {}
    for led in facts.history.leaders.values():
        first = known.setdefault((led.log, led.term), led)
        if first.broker != led.broker:
            what = f"both lead term {led.term}"
            brokers, at = (first.broker, led.broker), (first.at_s, led.at_s)
            yield Anomaly(Kind.TWO_LEADERS, what, led.log, brokers=brokers, times_s=at)

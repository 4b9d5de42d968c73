"""Readers see the log and nothing else, record by record, and all of it in the end."""

from __future__ import annotations

from collections.abc import Iterator

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts, FinalPartition, ShownRecords
from tinymq_chaos.checkers.records.writes import acknowledged, place_of
from tinymq_chaos.history import Call, Log, Outcome
from tinymq_chaos.records import CHANGED


def shown_records(facts: Facts) -> Iterator[Anomaly]:
    """Every record that was ever shown is in the log where it was shown."""
    for shown in facts.shown:
        final = facts.finals.get(shown.log)
        if final is None or shown.base < final.start or final.slice(shown.base, len(shown.names)) == shown.names:
            continue
        yield from _not_in_the_log(facts, shown, final)


def _not_in_the_log(facts: Facts, shown: ShownRecords, final: FinalPartition) -> Iterator[Anomaly]:
    log = shown.log
    taken_back: list[tuple[int, str]] = []
    for offset, name in enumerate(shown.names, shown.base):
        there = final.at(offset)
        if there == name:
            continue
        places = facts.places(log)
        if name.startswith(CHANGED) or name not in facts.sent:
            kind, what = AnomalyKind.CHANGED_RECORD, "shown, and no producer sent it"
        elif name in places:
            kind, what = AnomalyKind.INCONSISTENT_OFFSET, f"shown at offset {offset}, and lies at {places[name]}"
        else:
            taken_back.append((offset, name))
            continue
        by = (shown.reader,)
        yield Anomaly.of(kind, what, log, shown.call, records=(name,), offsets=(offset,), processes=by)
    if taken_back:
        yield _taken_back(shown, final, taken_back)


def _taken_back(shown: ShownRecords, final: FinalPartition, records: list[tuple[int, str]]) -> Anomaly:
    offset, name = records[0]
    there = final.at(offset)
    instead = f"the log has {there}" if there is not None else f"the log ends at {final.end}"
    follower = shown.call.args.get("replica") == "follower"
    kind = AnomalyKind.NOT_A_PREFIX if follower and there is not None else AnomalyKind.DIRTY_READ
    what = f"{name} was shown at offset {offset}, where {instead}"
    names = tuple(name for _, name in records)
    offsets = tuple(offset for offset, _ in records)
    return Anomaly.of(kind, what, shown.log, shown.call, records=names, offsets=offsets, processes=(shown.reader,))


def shown_ends(facts: Facts) -> Iterator[Anomaly]:
    """An end that a reader was told is never taken back."""
    for call, log, log_start, high_watermark in facts.ends():
        final = facts.finals.get(log)
        if final is not None and final.certain and not facts.is_gone(log) and high_watermark > final.end:
            what = f"its end was reported as {high_watermark}, and is {final.end} at the end of the run"
            yield Anomaly.of(AnomalyKind.DIRTY_READ, what, log, call, offsets=(high_watermark,))
        if log_start > high_watermark:
            what = "a log that begins after its end"
            yield Anomaly.of(AnomalyKind.GAP, what, log, call, offsets=(log_start, high_watermark))


def skipped_fetches(facts: Facts) -> Iterator[Anomaly]:
    """A fetch of an offset returns the record there, or the first kept one behind it."""
    for call in facts.of("fetch"):
        if call.outcome is not Outcome.OK:
            continue
        message, log_start, end = call.result
        due = max(call.args["offset"], log_start)
        got = end if message is None else message[0]
        if got != due and not (message is None and due >= end):
            what = f"asked for offset {call.args['offset']} of {log_start} to {end}, and shown {message}"
            log = (call.args["topic"], call.args["partition"])
            yield Anomaly.of(AnomalyKind.SKIPPED_POLL, what, log, call, offsets=(due, got))


def steady_readers(facts: Facts) -> Iterator[Anomaly]:
    """A reader goes forward record by record, and its position is the next one that it will show."""
    expected: dict[tuple[str, Log], int] = {}
    for call in facts.of("open", "poll", "position"):
        if call.outcome is not Outcome.OK:
            continue
        reader = _reader(call)
        if call.kind == "open":
            for partition, offset in call.result:
                expected[reader, (call.args["topic"], partition)] = offset
            continue
        if call.kind == "position":
            for partition, offset in call.result:
                log = (call.args["topic"], partition)
                due = expected.get((reader, log), offset)
                if offset != due:
                    kind = AnomalyKind.NONMONOTONIC_POLL if offset < due else AnomalyKind.SKIPPED_POLL
                    what = f"a reader says that offset {offset} is next, and it is {due}"
                    yield Anomaly.of(kind, what, log, call, offsets=(due, offset), processes=(reader,))
            continue
        for partition, base, names in call.result:
            log = (call.args["topic"], partition)
            due = expected.get((reader, log), base)
            if base != due:
                back = base < due
                kind = AnomalyKind.NONMONOTONIC_POLL if back else AnomalyKind.SKIPPED_POLL
                what = f"a reader was shown offset {base} after {due - 1}" if due else f"it began at {base}, not at 0"
                yield Anomaly.of(kind, what, log, call, records=names[:1], offsets=(due, base), processes=(reader,))
            expected[reader, log] = base + len(names)


def unseen_writes(facts: Facts) -> Iterator[Anomaly]:
    """Readers that read to the end when all was quiet have seen every acknowledged record."""
    drains = [call for call in facts.of("drain") if call.outcome is Outcome.OK]
    reached = [(d, {(d.args["topic"], partition): offset for partition, offset in d.result}) for d in drains]
    if not reached:
        return
    for call in acknowledged(facts):
        log, base, names = place_of(call)
        for drain, ends in reached:
            end = ends.get(log)
            if end is not None and end < base + len(names) and call.ended_s is not None:
                if call.ended_s > drain.invoked_s:
                    continue
                what = f"acknowledged, and never shown to {_reader(drain)}, which read up to the end, {end}"
                yield Anomaly.of(AnomalyKind.UNSEEN_WRITE, what, log, call, drain, records=names, offsets=(base,))


def _reader(call: Call) -> str:
    reader: str = call.args["reader"]
    return reader

"""The outcome of every send: acknowledged records are there once, unchanged and in order; failed ones are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts, FinalPartition
from tinymq_chaos.history import Call, Log, Outcome
from tinymq_chaos.records import CHANGED


def lost_writes(facts: Facts) -> Iterator[Anomaly]:
    """A quorum acknowledged a record, and it is not at the reported offset, or nowhere."""
    for call in acknowledged(facts):
        log, base, names = place_of(call)
        final = facts.finals.get(log)
        if facts.is_gone(log):
            continue
        if facts.history.replicas and log not in facts.replicas:
            yield _lost(call, log, tuple(names), "acknowledged, and no replica of the partition is left")
            continue
        if final is None:
            continue
        if base < final.start or final.slice(base, len(names)) == names:
            continue
        if not final.certain and base + len(names) > final.end:
            continue  # no reader got so far: UNSEEN_WRITE judges it
        yield from _misplaced(facts, call, final)


def _misplaced(facts: Facts, call: Call, final: FinalPartition) -> Iterator[Anomaly]:
    log, base, names = place_of(call)
    places = facts.places(log)
    lost = []
    for offset, name in enumerate(names, base):
        there = final.at(offset)
        if there == name or (there is None and not final.certain):
            continue
        if name in places:
            offsets = (offset, places[name])
            what = f"acknowledged at offset {offset}, and lies at {places[name]}"
            yield Anomaly.of(AnomalyKind.INCONSISTENT_OFFSET, what, log, call, records=(name,), offsets=offsets)
        else:
            lost.append((offset, name, there))
    if lost:
        offset, name, there = lost[0]
        instead = f"the log has {there}" if there is not None else f"the log ends at {final.end}"
        records = tuple(name for _, name, _ in lost)
        yield _lost(call, log, records, f"acknowledged at offset {offset}, where {instead}")


def _lost(call: Call, log: Log, records: tuple[str, ...], what: str) -> Anomaly:
    return Anomaly.of(AnomalyKind.LOST_WRITE, what, log, call, records=records)


def aborted_reads(facts: Facts) -> Iterator[Anomaly]:
    """A send failed for certain, and its record is in the log, or was shown."""
    failed = {name: c for c in facts.sends if c.outcome is Outcome.FAILED for name in c.args["records"]}
    if not failed:
        return
    found: dict[str, tuple[Log, int, str]] = {}
    for log, final in facts.finals.items():
        for name in failed.keys() & facts.places(log).keys():
            found[name] = (log, facts.places(log)[name], "is in the log" if final.certain else "was read")
    for name, (log, offset, how) in sorted(found.items()):
        call = failed[name]
        what = f"its send failed with {call.error}, and it {how}"
        yield Anomaly.of(AnomalyKind.ABORTED_READ, what, log, call, records=(name,), offsets=(offset,))


def changed_records(facts: Facts) -> Iterator[Anomaly]:
    """The log has a record that no producer sent there."""
    for log, final in facts.finals.items():
        for offset, name in enumerate(final.names, final.start):
            if name is None or ((call := facts.sent.get(name)) is not None and call.args["topic"] == log[0]):
                continue
            if (call := facts.sent_by_name.get(name)) is not None and call.args["name"] == log[0].partition("#")[0]:
                continue
            what = (
                "damaged"
                if name.startswith(CHANGED)
                else "one that no producer sent"
                if call is None
                else "sent elsewhere"
            )
            yield Anomaly(AnomalyKind.CHANGED_RECORD, f"a record that is {what}", log, (name,), (offset,))


def duplicates(facts: Facts) -> Iterator[Anomaly]:
    """An idempotent send is in its topic twice."""
    by_topic: dict[str, list[str | None]] = {}
    for log, final in facts.finals.items():
        by_topic.setdefault(log[0], []).extend(final.names)
    for topic, names in by_topic.items():
        if len(set(names)) == len(names):
            continue
        for name, count in Counter(names).items():
            call = facts.sent.get(name) if name is not None else None
            if count > 1 and call is not None and name is not None and call.args.get("idempotent"):
                at = [(log, o) for log, f in facts.finals.items() if log[0] == topic for o in _offsets(f, name)]
                what = f"sent once, and there {count} times"
                offsets = tuple(offset for _, offset in at)
                yield Anomaly.of(AnomalyKind.DUPLICATE, what, at[0][0], call, records=(name,), offsets=offsets)


def _offsets(final: FinalPartition, name: str) -> list[int]:
    return [offset for offset, there in enumerate(final.names, final.start) if there == name]


def reordered(facts: Facts) -> Iterator[Anomaly]:
    """The records of an idempotent producer are in a partition in the order of its sends, whatever the outcome of
    each."""
    sent = facts.sent
    for log, final in facts.finals.items():
        newest: dict[str, Call] = {}
        for offset, name in enumerate(final.names, final.start):
            call = sent.get(name) if name is not None else None
            if call is None or not call.args.get("idempotent"):
                continue
            producer = call.args.get("producer", call.process)
            before = newest.get(producer)
            if before is None or call.number > before.number:
                newest[producer] = call
            elif call.number < before.number:
                first = before.args["records"][0]
                what = f"lies after {first}, which {producer} sent later"
                yield Anomaly.of(
                    AnomalyKind.REORDERED,
                    what,
                    log,
                    call,
                    before,
                    records=(str(name),),
                    offsets=(offset,),
                    processes=(producer,),
                )
        yield from _inside_batches(facts, log, final)
        yield from _skipped(facts, log, final)


def _skipped(facts: Facts, log: Log, final: FinalPartition) -> Iterator[Anomaly]:
    """Of the records of one row of sequences, the first ones are stored, up to some number: none is missing before a
    stored one."""
    if final.start:
        return  # a missing record may have been removed
    places, known = facts.places(log), (final.names.index(None) if None in final.names else final.end)
    missing: dict[str, Call] = {}
    for call in facts.sends:
        row = call.args.get("row")
        if row is None or (call.args["topic"], call.args["partition"]) != log:
            continue
        offset = places.get(call.args["records"][0])
        if offset is None:
            missing.setdefault(row, call)
        elif row in missing and offset < known:
            before = missing.pop(row)
            what = f"is there, and {before.args['records'][0]}, which comes before it in row {row}, is not"
            names = tuple(call.args["records"])
            yield Anomaly.of(AnomalyKind.REORDERED, what, log, before, call, records=names, offsets=(offset,))


def _inside_batches(facts: Facts, log: Log, final: FinalPartition) -> Iterator[Anomaly]:
    """The records of a batch are in a row."""
    for call in facts.sends:
        names = call.args["records"]
        if len(names) < 2 or call.args["topic"] != log[0] or call.outcome is Outcome.OK:
            continue  # `lost_writes` judges acknowledged ones
        offset = facts.places(log).get(names[0])
        if offset is None or not call.args.get("idempotent"):
            continue
        if final.certain and final.slice(offset, len(names)) != names:
            what = "a batch that is not in a row, or not whole"
            yield Anomaly.of(AnomalyKind.REORDERED, what, log, call, records=names, offsets=(offset,))


def nonmonotonic_sends(facts: Facts) -> Iterator[Anomaly]:
    """A later send of a producer to a partition has a lower offset than an earlier one."""
    last: dict[tuple[Log, str], tuple[int, Call]] = {}
    for call in acknowledged(facts):
        log, base, names = place_of(call)
        who = call.args.get("producer", call.process)
        before = last.get((log, who))
        if before is not None and base <= before[0]:
            end, other = before
            records = (other.args["records"][-1], names[0])
            what = "a later send got the same or an earlier offset"
            yield Anomaly.of(
                AnomalyKind.NONMONOTONIC_SEND,
                what,
                log,
                other,
                call,
                records=records,
                offsets=(end, base),
                processes=(who,),
            )
        else:
            last[log, who] = (base + len(names) - 1, call)


def acknowledged(facts: Facts) -> Iterator[Call]:
    """Return the sends that were answered after a quorum had synced them, in the order of invocation."""
    for call in facts.sends:
        if call.outcome is Outcome.OK and call.args.get("acks", "quorum") == "quorum":
            yield call


def place_of(call: Call) -> tuple[Log, int, list[str]]:
    partition, base, *_ = call.result
    return (call.args["topic"], partition), base, call.args["records"]

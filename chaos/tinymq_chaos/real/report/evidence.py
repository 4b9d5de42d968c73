"""The evidence of an anomaly: the calls that touched its records, and where each replica has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tinymq_chaos.checkers.common.anomaly import Anomaly
from tinymq_chaos.history import Call, FinalReplica, History, Log

RECORDS_MAX = 20  # of one anomaly
CALLS_MAX = 40  # of one anomaly: the first ones


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where a record is. A replica that does not have it has no offset."""

    record: str
    log: Log
    offsets: Mapping[int, tuple[int, ...]]  # by broker, of all replicas that were collected; (): it is not there


@dataclass(frozen=True, slots=True)
class Evidence:
    anomaly: Anomaly
    calls: Sequence[Call]
    calls_more: int  # more calls than those
    places: Sequence[RecordPlace]
    records_more: int


def evidence(history: History, anomalies: Iterable[Anomaly]) -> Iterator[Evidence]:
    """Return the evidence of each anomaly, from one pass over the history."""
    anomalies = list(anomalies)
    wanted = {record for anomaly in anomalies for record in anomaly.records[:RECORDS_MAX]}
    touched: dict[str, list[Call]] = defaultdict(list)
    if wanted:
        for call in history.calls:
            for record in wanted.intersection(records_of(call)):
                touched[record].append(call)
    stored = _stored(history.replicas, wanted)
    for anomaly in anomalies:
        records = anomaly.records[:RECORDS_MAX]
        calls = {call.number: call for record in records for call in touched[record]}
        first = [calls[number] for number in sorted(calls)[:CALLS_MAX]]
        places = [place for record in records for place in _places(stored, history.replicas, record, anomaly.log)]
        yield Evidence(anomaly, first, len(calls) - len(first), places, len(anomaly.records) - len(records))


def records_of(call: Call) -> set[str]:
    """Return the names of the records that the call sent, or was shown."""
    records = set(call.args.get("records", ()))
    if call.kind == "poll" and call.result:
        records.update(record for _, _, names in call.result for record in names)
    if call.kind == "consume" and call.result:
        records.add(call.result[1])
    return records


_Stored = dict[tuple[str, Log, int], list[int]]


def _stored(replicas: Iterable[FinalReplica], wanted: set[str]) -> _Stored:
    """Return the offsets of wanted records, by record, partition and broker, below and above the replica's visible
    end."""
    found: _Stored = defaultdict(list)
    if wanted:
        for replica in replicas:
            for entry in replica.entries:
                for offset, record in enumerate(entry.records, entry.base_offset):
                    if record in wanted:
                        found[record, replica.log, replica.broker].append(offset)
    return found


def _places(stored: _Stored, replicas: Iterable[FinalReplica], record: str, log: Log | None) -> Iterator[RecordPlace]:
    """Return the places in the anomaly's own partition, and everywhere else where the record is."""
    logs = {where for name, where, _ in stored if name == record} | ({log} if log is not None else set())
    for where in sorted(logs):
        brokers = sorted(replica.broker for replica in replicas if replica.log == where)
        if brokers:
            yield RecordPlace(record, where, {b: tuple(stored.get((record, where, b), ())) for b in brokers})

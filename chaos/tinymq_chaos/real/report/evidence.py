"""What a history knows of an anomaly's records: the calls that touched them, and where each replica has them."""

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
    """Where a record lies. An offset stands for itself; of a replica that does not have it, there is none."""

    record: str
    log: Log
    offsets: Mapping[int, tuple[int, ...]]  # by broker, of all replicas that were collected; (): it is not there


@dataclass(frozen=True, slots=True)
class Evidence:
    anomaly: Anomaly
    calls: Sequence[Call]
    calls_more: int  # that are not among them
    places: Sequence[RecordPlace]
    records_more: int


def evidence(history: History, anomalies: Iterable[Anomaly]) -> Iterator[Evidence]:
    """For each anomaly; the history is walked once."""
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
    """Names of records that it sent, or was shown."""
    records = set(call.args.get("records", ()))
    if call.kind == "poll" and call.result:
        records.update(record for _, _, names in call.result for record in names)
    if call.kind == "consume" and call.result:
        records.add(call.result[1])
    return records


_Stored = dict[tuple[str, Log, int], list[int]]


def _stored(replicas: Iterable[FinalReplica], wanted: set[str]) -> _Stored:
    """Offsets of wanted records, by record, partition and broker, as far as a replica's log is shown or not yet."""
    found: _Stored = defaultdict(list)
    if wanted:
        for replica in replicas:
            for entry in replica.entries:
                for offset, record in enumerate(entry.records, entry.base_offset):
                    if record in wanted:
                        found[record, replica.log, replica.broker].append(offset)
    return found


def _places(stored: _Stored, replicas: Iterable[FinalReplica], record: str, log: Log | None) -> Iterator[RecordPlace]:
    """In the anomaly's own partition, whether it is there or not, and wherever else it lies."""
    logs = {where for name, where, _ in stored if name == record} | ({log} if log is not None else set())
    for where in sorted(logs):
        brokers = sorted(replica.broker for replica in replicas if replica.log == where)
        if brokers:
            yield RecordPlace(record, where, {b: tuple(stored.get((record, where, b), ())) for b in brokers})

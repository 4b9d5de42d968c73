"""The history of a run, as plain values: every call of every client, and every replica at the end.

A workload writes it, on virtual time or on a real clock; checkers read it; it can be kept as JSON lines. This module
knows neither tinymq's client nor a simulator, and judges nothing.

    history = History(clock.monotonic)
    call = history.invoke("producer 1", "send", deadline_s=now + 5, topic="t#1f", partition=0, records=["p1-0"])
    call.ok([0, 17])                                     # or .failed(code), .unknown(code)

Kinds of calls, their arguments and results (all of it JSON values; TOPIC is `topic_key(name, topic_id)`, RECORDS are
names, see records.py):

    kind          arguments                                        result when ok
    send          topic, partition, records, idempotent, acks      [partition, base offset, append time (if told)];
                                                                   offset -1: acks="none"
    schedule      topic, partition, RECORDS (one), idempotent      [partition, schedule id, due time in us]
    cancel        topic, partition, RECORDS, schedule_id           whether it is canceled
    transact      topic, transactional_id, parts, RECORDS (of all  whether all partitions show the records
                  parts), idempotent; parts are [[partition,
                  RECORDS], ...]
    begin_transaction  transactional_id                            null; a part of transact, as the next two
    commit_transaction  transactional_id, RECORDS, wait, attempt   whether all partitions show the records
    abort_transaction  transactional_id                            null
    last_transfer  transactional_id                                null: one was committed after the last fault
    unfinished    ids                                              [[id, number, state], ...] of what is not over
    open          reader, topic, partitions, replica               [[partition, offset], ...] where the reader stands
    poll          reader, topic, replica                           [[partition, base offset, RECORDS], ...]
    position      reader, topic                                    [[partition, offset], ...]: shown next
    drain         reader, topic, replica                           [[partition, end], ...]: all up to there was polled
    offsets       topic                                            [[partition, log start, high watermark], ...]
    find_time     topic, time_us                                   [[partition, offset, its timestamp, log start, high
                                                                   watermark], ...]; the last three may be null
    create_topic  name, partitions                                 topic id, hex
    delete_topic  name                                             null
    add_partition topic                                            its number
    delete_partition  topic, partition                             null
    get_topic     name                                             topic id, hex
    list_topics   prefix                                           {name: topic id, hex} of all that begin so
    open_channel  topic, partition, channel                        position: of its cursor, the next offset to be read
    commit        topic, partition, channel, offset                position
    seek          topic, partition, channel, offset                position
    channels      topic                                            [[partition, channel, position], ...]
    handed_out    topic, group                                     [[partition, offset], ...]
    assigned      topic, group                                     [partition, ...]; also revoked, lost_partitions
    group_commit  topic, group, offsets                            null; offsets are [[partition, offset], ...]
    group_lag     topic, group                                     [[partition, position], ...]
    job, settle, group_seek ...                                    see workloads/groups/workers.py
    caught_up ...                                                  see workloads/transactions/processors.py
    half, check_half, end_half, halves_over                        see workloads/transactions/halves.py
    consume       topic, partition, channel, request, reads        [offset, record], or null: there was none
    fetch         topic, partition, offset                         [[offset, record] or null, log start, high watermark]
    size          topic, partition, channel                        messages kept, or (channel not "") not taken yet
    trim          topic, partition, before                         log start
    alter_topic   topic, settings                                  null
    settings      topic                                            {name: value}
    transfer      topic, partition, to                             the broker that leads
    status        -                                                see workloads/observers.py, status_values
    topics        -                                                [topic_values, ...] (same module)
    brokers       -                                                [[broker, address], ...]
    feature_level -                                                the cluster's level
    kept          topic                                            [[partition, records, bytes], ...]
    holds         topic                                            [[partition, hold, offset], ...]
    scan          topic, partition, end                            [RECORDS from 0 up to end, records that the brokers
                                                                   count, the same in the list of scans]
    hold          topic, partition, hold, offset, lease_s          null
    release       topic, partition, hold                           null
    send_by_name  name, partition, records                         as send; into any topic of that name
    open_by_name  name                                             null; a reader from the beginning
    poll_by_name  name                                             as poll
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from tinymq_chaos.broker_changes import FilledReplica, FoundDamage, QuorumRecovery, TwinSpan
from tinymq_chaos.group_changes import LeaseChange, QueueChange, read_lease, read_queue
from tinymq_chaos.group_changes import Log as Log

METADATA: Log = ("", 0)


def topic_key(name: str, topic_id: bytes) -> str:
    """Return the name of a topic in histories. A topic that is created again under its old name has another one."""
    return f"{name}#{topic_id.hex()}"


class Outcome(StrEnum):
    """How a call ended."""

    PENDING = "pending"  # it has not ended
    OK = "ok"
    FAILED = "failed"  # certainly without effect
    UNKNOWN = "unknown"  # it may have taken effect, or may do so later


@dataclass(slots=True)
class Call:
    """One call of one client. Times are in seconds of the history's clock."""

    number: int  # in the order of invocation
    process: str  # the caller; calls of one process may overlap
    kind: str
    args: dict[str, Any]
    invoked_s: float
    deadline_s: float  # by which it has to end
    outcome: Outcome = Outcome.PENDING
    ended_s: float | None = None
    result: Any = None
    error: str = ""  # code of the error that ended it
    _now: Callable[[], float] | None = field(default=None, repr=False, compare=False)

    def ok(self, result: Any = None) -> None:
        self._end(Outcome.OK, result, "")

    def failed(self, error: str) -> None:
        self._end(Outcome.FAILED, None, error)

    def unknown(self, error: str) -> None:
        self._end(Outcome.UNKNOWN, None, error)

    def _end(self, outcome: Outcome, result: Any, error: str) -> None:
        assert self.outcome is Outcome.PENDING, f"{self} has ended before"
        assert self._now is not None, "a call read from a file does not go on"
        self.outcome, self.result, self.error, self.ended_s = outcome, result, error, self._now()

    def __str__(self) -> str:
        args = " ".join(f"{k}={v}" for k, v in self.args.items() if k != "records")
        end = f"{self.outcome}{f' {self.error}' if self.error else ''}"
        ended = "" if self.ended_s is None else f"..{self.ended_s:.3f}"
        return f"#{self.number} {self.process} {self.kind} {args} [{self.invoked_s:.3f}{ended} s] {end}"


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry in a replica's log."""

    index: int
    term: int
    base_offset: int
    prev_crc: int
    header_crc: int
    records: tuple[str, ...]  # names; () of entries without records
    timestamps: tuple[int, ...] = ()  # of the records, in microseconds since 1970; () if not known
    append_time_us: int | None = None  # None: not known

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.records)


@dataclass(frozen=True, slots=True)
class FinalReplica:
    """A replica's log at the end: what readers see of it, and the entries as far as they were collected."""

    log: Log
    broker: int
    role: str
    high_watermark: int
    commit_index: int
    log_start: int  # offset of the first stored record
    entries: tuple[StoredEntry, ...]  # in a row, up to commit_index at least
    shown_start: int | None = None  # offset below which no reader is shown a record; None: not observed


@dataclass(slots=True)
class LeaderSpan:
    """A broker was observed to lead a group: from when, and until when (None: to the end)."""

    log: Log
    term: int
    broker: int
    at_s: float
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class FaultChange:
    """The faults changed: one began or ended. `paused`: these brokers do nothing from now on."""

    at_s: float
    what: str
    paused: tuple[int, ...] = ()


@dataclass(slots=True)
class FaultSpan:
    """A fault, from its beginning to its end (None: the run ended first)."""

    kind: str  # its name in the table of faults
    what: str  # a description: its parameters and the brokers that it strikes
    began_s: float
    ended_s: float | None = None
    effect: str | None = None  # as observed, in words with numbers; "": it had none; None: not observed


class History:
    """Calls in the order of invocation, and all other observations."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        """Make an empty history. `now` returns seconds that never go back."""
        self.now = now
        self.calls: list[Call] = []
        self.leaders: dict[tuple[Log, int, int], LeaderSpan] = {}  # by (log, term, broker)
        self.changes: list[FaultChange] = []  # in order
        self.faults: list[FaultSpan] = []  # in the order of their beginnings; they may overlap
        self.found: list[FoundDamage] = []  # damage without a cause
        self.revivals: list[QuorumRecovery] = []
        self.filled: list[FilledReplica] = []  # of topics with weaker durability
        self.twins: list[TwinSpan] = []  # in order
        self.topics: dict[str, dict[str, str]] = {}  # by TOPIC: settings that are not the defaults
        self.replicas: list[FinalReplica] = []  # at the end
        self.leases: list[LeaseChange] = []  # of queue groups, in order; so are the next
        self.queues: list[QueueChange] = []
        self.commits: dict[Log, list[tuple[float, int]]] = {}  # (when, end offset), as first known to any replica
        # (end offset of a batch, bytes of all records up to it), since the last revival
        self.weights: dict[Log, list[tuple[int, int]]] = {}
        self.heads: dict[Log, int] = {}  # below it, a fault removed the head of some replica
        self.brokers: dict[int, str] = {}  # the address of each broker that exists; {}: not known
        self.link_s = 0.0  # the least time of a message on its link, without faults
        self.calm_s: float | None = None  # when the last fault ended
        self.ended_s: float | None = None  # when the run ended

    def invoke(self, process: str, kind: str, deadline_s: float, **args: Any) -> Call:
        """Begin a call now. The caller has to end it with `ok`, `failed` or `unknown`."""
        call = Call(len(self.calls), process, kind, args, self.now(), deadline_s, _now=self.now)
        self.calls.append(call)
        return call

    def led(self, log: Log, term: int, broker: int) -> None:
        """`broker` reports that it leads `log` in `term`. Repeated reports change nothing."""
        if (log, term, broker) not in self.leaders:
            self.leaders[log, term, broker] = LeaderSpan(log, term, broker, self.now())

    def leads_no_more(self, broker: int, log: Log | None = None) -> None:
        """`broker` leads `log` no more; without a log, it leads nothing, because its process is gone."""
        for led in self.leaders.values():
            if led.broker == broker and led.until_s is None and log in (None, led.log):
                led.until_s = self.now()

    def changed(self, what: str, paused: Iterable[int] = ()) -> None:
        """A fault begins or ends. `paused` are all brokers that are stopped now and will go on later."""
        self.changes.append(FaultChange(self.now(), what, tuple(paused)))

    def fault_began(self, kind: str, what: str) -> FaultSpan:
        """Record a fault for the report to people. (`changed` records what checkers need.)"""
        self.faults.append(FaultSpan(kind, what, self.now()))
        return self.faults[-1]

    def fault_ended(self, span: FaultSpan) -> None:
        assert span.ended_s is None, f"{span} has ended before"
        span.ended_s = self.now()

    def damaged(self, log: Log, broker: int, reason: str) -> None:
        """A replica reports that its log is damaged.

        Do not call it for disks that a fault damaged, wiped or made fail: kills and power cuts alone damage nothing.
        """
        self.found.append(FoundDamage(self.now(), log, broker, reason))

    def revived(self, log: Log, end_offset: int = 0) -> None:
        """A group in memory, or one that is synced at intervals, recovers with the rest of its log, which ends at
        `end_offset`. Report later commits as usual.
        """
        self.revivals.append(QuorumRecovery(self.now(), log))
        if log in self.commits:
            self.commits[log].append((self.now(), end_offset))
        if log in self.weights:
            self.weights[log] = [weight for weight in self.weights[log] if weight[0] <= end_offset]

    def caught_up(self, log: Log, broker: int) -> None:
        """A broker's replica has applied all that was committed, for the first time since it started."""
        self.filled.append(FilledReplica(self.now(), log, broker))

    def committed(self, log: Log, end_offset: int) -> None:
        """All records below `end_offset` are committed now, and some replica has applied them."""
        commits = self.commits.setdefault(log, [])
        if not commits or end_offset > commits[-1][1]:
            commits.append((self.now(), end_offset))

    def weighed(self, log: Log, end_offset: int, size: int) -> None:
        """A batch of `size` stored bytes ends at `end_offset`. Repeated reports change nothing."""
        weights = self.weights.setdefault(log, [])
        last = weights[-1] if weights else (0, 0)
        if end_offset > last[0]:
            weights.append((end_offset, last[1] + size))

    def calm(self) -> None:
        """The last fault has ended now."""
        self.calm_s = self.now()

    def end(self) -> None:
        self.ended_s = self.now()

    def of(self, *kinds: str) -> Iterator[Call]:
        return (call for call in self.calls if call.kind in kinds)

    def lines(self) -> Iterator[str]:
        """Return everything as lines of JSON."""
        times = {"calm_s": self.calm_s, "ended_s": self.ended_s, "link_s": self.link_s}
        yield _line("run", {**times, "heads": list(self.heads.items())})
        yield _line("brokers", {"brokers": list(self.brokers.items())})
        for topic, settings in self.topics.items():
            yield _line("topic", {"topic": topic, "settings": settings})
        for call in self.calls:
            yield _line("call", {name: getattr(call, name) for name in _CALL})
        for led in self.leaders.values():
            yield _line("led", asdict(led))
        for change in self.changes:
            yield _line("change", asdict(change))
        for fault in self.faults:
            yield _line("fault", asdict(fault))
        for found in self.found:
            yield _line("found", asdict(found))
        for revival in self.revivals:
            yield _line("revival", asdict(revival))
        for filled in self.filled:
            yield _line("filled", asdict(filled))
        for twin in self.twins:
            yield _line("twin", asdict(twin))
        for log, commits in self.commits.items():
            yield _line("commits", {"log": log, "commits": commits})
        for log, weights in self.weights.items():
            yield _line("weights", {"log": log, "weights": weights})
        for lease in self.leases:
            yield _line("lease", asdict(lease))
        for queue in self.queues:
            yield _line("queue", asdict(queue))
        for replica in self.replicas:
            yield _line("replica", asdict(replica))

    @classmethod
    def read(cls, lines: Iterable[str]) -> History:
        """Read a history from the output of `lines`."""
        history = cls()
        for line in lines:
            values = json.loads(line)
            kind = values.pop("line")
            if "log" in values:
                values["log"] = _log(values["log"])
            if kind == "run":
                history.calm_s, history.ended_s = values["calm_s"], values["ended_s"]
                history.link_s = values["link_s"]
                history.heads = {_log(log): offset for log, offset in values.get("heads", ())}
            elif kind == "brokers":
                history.brokers = dict(values["brokers"])
            elif kind == "topic":
                history.topics[values["topic"]] = values["settings"]
            elif kind == "call":
                history.calls.append(Call(**values | {"outcome": Outcome(values["outcome"])}))
            elif kind == "lease":
                history.leases.append(read_lease(values))
            elif kind == "queue":
                history.queues.append(read_queue(values))
            elif kind == "revival":
                history.revivals.append(QuorumRecovery(**values))
            elif kind == "twin":
                history.twins.append(TwinSpan(**values))
            elif kind == "filled":
                history.filled.append(FilledReplica(**values))
            elif kind == "found":
                history.found.append(FoundDamage(**values))
            elif kind == "commits":
                history.commits[values["log"]] = [(at_s, end) for at_s, end in values["commits"]]
            elif kind == "fault":
                history.faults.append(FaultSpan(**values))
            elif kind == "weights":
                history.weights[values["log"]] = [(end, size) for end, size in values["weights"]]
            elif kind == "change":
                history.changes.append(FaultChange(**values | {"paused": tuple(values["paused"])}))
            elif kind == "led":
                led = LeaderSpan(**values)
                history.leaders[led.log, led.term, led.broker] = led
            else:
                entries = tuple(
                    StoredEntry(**e | {"records": tuple(e["records"]), "timestamps": tuple(e["timestamps"])})
                    for e in values["entries"]
                )
                history.replicas.append(FinalReplica(**values | {"entries": entries}))
        return history


_CALL = ("number", "process", "kind", "args", "invoked_s", "deadline_s", "outcome", "ended_s", "result", "error")


def _log(value: list[Any]) -> Log:
    return value[0], value[1]


def _line(line: str, values: dict[str, Any]) -> str:
    return json.dumps({"line": line, **values}, separators=(",", ":"))

"""The facts that checkers of records share: how each record was sent, and what the logs hold in the end."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tinymq_chaos.history import METADATA, Call, FinalReplica, History, Log, Outcome

REMOVES_HEADS = re.compile(r"FAULT (trim:|crash_at_.*at: (head|install),)")
CLOCKS = 0.1  # clocks may differ by this share of any time
WRONG_CLOCKS = ("wall_jump", "wrong_start")
SETTLED_S = 3.0  # after the last fault every broker serves, and knows all leaders
INTERNAL = "__"  # the beginning of the names of the cluster's topics
DEAD_LETTERS = ".dlq"  # the end of the names of topics with dead letters
WELL = ("leader", "follower", "observer")  # roles of replicas that take part


@dataclass(frozen=True, slots=True)
class FinalPartition:
    """A partition's records at the end of the run."""

    start: int  # the first offset
    names: list[str | None]  # from `start` on; None: no observer saw that record
    certain: bool  # read from replicas, not assembled from what readers were shown

    @property
    def end(self) -> int:
        return self.start + len(self.names)

    def slice(self, base: int, count: int) -> Sequence[str | None]:
        """Return up to `count` records from offset `base` on, which is not below `start`."""
        return self.names[base - self.start : base - self.start + count]

    def at(self, offset: int) -> str | None:
        return self.names[offset - self.start] if self.start <= offset < self.end else None


@dataclass(frozen=True, slots=True)
class ShownRecords:
    """Records that a client was shown, in a row."""

    call: Call
    log: Log
    base: int  # offset of the first
    names: list[str]

    @property
    def reader(self) -> str:
        who: str = self.call.args.get("reader", self.call.process)
        return who


class Facts:
    """Indexes over one history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._by_kind: dict[str, list[Call]] = {}
        for call in history.calls:
            self._by_kind.setdefault(call.kind, []).append(call)
        self.sends = self.of("send")
        self.polls = [c for c in self.of("poll") if c.outcome is Outcome.OK]
        self.sent: dict[str, Call] = {  # at once, delayed, in a transaction, or as a half message
            name: call for call in self.of("send", "schedule", "transact", "half") for name in call.args["records"]
        }
        self.sent_by_name: dict[str, Call] = {r: call for call in self.of("send_by_name") for r in call.args["records"]}
        self.shown = [*self._polled(), *self._fetched(), *self._scanned()]
        self.replicas = _by_log(history.replicas)
        self.maybe_deleted = {c.args["name"] for c in self.of("delete_topic") if c.outcome is not Outcome.FAILED}
        self.maybe_deleted_logs = {
            (c.args["topic"], c.args["partition"])
            for c in self.of("delete_partition")
            if c.outcome is not Outcome.FAILED
        }
        self.finals = self._finals()
        self._places: dict[Log, dict[str, int]] = {}
        self._timestamps: dict[Log, dict[int, int]] = {}

    def of(self, *kinds: str) -> list[Call]:
        """Return the calls of these kinds, in the order of invocation."""
        if len(kinds) == 1:
            return self._by_kind.get(kinds[0], [])
        return sorted((c for kind in kinds for c in self._by_kind.get(kind, ())), key=lambda call: call.number)

    @property
    def heads_removed(self) -> bool:
        """Return whether faults removed heads of logs, with kept, held or unread records."""
        return any(REMOVES_HEADS.match(change.what) for change in self.history.changes)

    def is_gone(self, log: Log) -> bool:
        """Return whether nothing is promised of a partition at the end, because it was deleted, or may have been."""
        return log not in self.replicas and self._maybe_deleted(log)

    def is_whole(self, log: Log) -> bool:
        """Return whether all records that a partition ever had are known from replicas: a missing one was not there."""
        final = self.finals.get(log)
        return final is not None and final.certain and not final.start

    def committed_by(self, log: Log, call: Call) -> int | None:
        """Return the end of the commit when `call` ended; None if no observer looked, or if a deletion may have come
        between.
        """
        commits = self.history.commits.get(log)
        if commits is None or call.ended_s is None or self._maybe_deleted(log):
            return None
        at = bisect_right(commits, call.ended_s, key=lambda commit: commit[0])
        return commits[at - 1][1] if at else 0

    def ends(self) -> Iterator[tuple[Call, Log, int, int]]:
        """Return every answer with the bounds of a partition: (call, partition, log start, high watermark)."""
        for call in self.of("offsets"):
            if call.outcome is Outcome.OK:
                for partition, log_start, end in call.result:
                    yield call, (call.args["topic"], partition), log_start, end
        for call in self.of("fetch"):
            if call.outcome is Outcome.OK:
                yield call, (call.args["topic"], call.args["partition"]), *call.result[1:]

    def weight(self, log: Log, start: int, end: int, at_s: float) -> int | None:
        """Return the stored bytes of all batches that ended between two offsets at this time; None where they are not
        known. A revival since may have put other batches at these offsets.
        """
        weights = self.history.weights.get(log)
        revived = any(each.log == log and at_s <= each.at_s for each in self.history.revivals)
        return None if weights is None or revived else _below(weights, end) - _below(weights, start)

    def largest(self, log: Log) -> int:
        """Return the bytes of the largest batch."""
        weights = [size for _, size in self.history.weights.get(log, [])]
        return max((b - a for a, b in pairwise([0, *weights])), default=0)

    def _maybe_deleted(self, log: Log) -> bool:
        return log[0].partition("#")[0] in self.maybe_deleted or log in self.maybe_deleted_logs

    def _polled(self) -> Iterator[ShownRecords]:
        for call in self.polls:
            for partition, base, names in call.result:
                yield ShownRecords(call, (call.args["topic"], partition), base, names)

    def _fetched(self) -> Iterator[ShownRecords]:
        for call in self.of("fetch"):
            if call.outcome is Outcome.OK and call.result[0] is not None:
                offset, name = call.result[0]
                yield ShownRecords(call, (call.args["topic"], call.args["partition"]), offset, [name])

    def _scanned(self) -> Iterator[ShownRecords]:
        for call in self.of("scan"):
            if call.outcome is Outcome.OK and call.result[0]:
                yield ShownRecords(call, (call.args["topic"], call.args["partition"]), 0, call.result[0])

    def quiet(self, call: Call) -> bool:
        """Return whether all faults were long over when the call began."""
        calm_s = self.history.calm_s
        return calm_s is not None and call.invoked_s >= calm_s + SETTLED_S

    def places(self, log: Log) -> dict[str, int]:
        """Return the offset of each record; the last one, if there are two."""
        if log not in self._places:
            final = self.finals.get(log)
            known = enumerate(final.names, final.start) if final is not None else ()
            self._places[log] = {name: offset for offset, name in known if name is not None}
        return self._places[log]

    def timestamps(self, log: Log) -> dict[int, int]:
        """Return the timestamps of a partition's records by offset, as far as healthy replicas hold them."""
        if log not in self._timestamps:
            self._timestamps[log] = {
                offset: timestamp_us
                for replica in self.replicas.get(log, ())
                if replica.role in WELL
                for entry in replica.entries
                for offset, timestamp_us in enumerate(entry.timestamps, entry.base_offset)
            }
        return self._timestamps[log]

    def _finals(self) -> dict[Log, FinalPartition]:
        finals = {log: _longest(replicas) for log, replicas in self.replicas.items() if has_sent_records(log)}
        shown: dict[Log, dict[int, str]] = {}
        for poll in self.polls:
            for partition, base, names in poll.result:
                log = (poll.args["topic"], partition)
                if log not in finals:
                    at = shown.setdefault(log, {})
                    for offset, name in enumerate(names, base):
                        at.setdefault(offset, name)
        for log, at in shown.items():
            start = min(at)
            finals[log] = FinalPartition(start, [at.get(offset) for offset in range(start, max(at) + 1)], certain=False)
        return finals


def has_sent_records(log: Log) -> bool:
    """Return whether clients send the records of a log. Brokers send dead letters, and what members of groups say."""
    name = log[0].partition("#")[0]
    return log != METADATA and not name.endswith(DEAD_LETTERS) and not name.startswith(INTERNAL)


def _below(weights: list[tuple[int, int]], offset: int) -> int:
    at = bisect_right(weights, offset, key=lambda weight: weight[0])
    return weights[at - 1][1] if at else 0


def _by_log(replicas: list[FinalReplica]) -> dict[Log, list[FinalReplica]]:
    found: dict[Log, list[FinalReplica]] = {}
    for replica in replicas:
        found.setdefault(replica.log, []).append(replica)
    return found


def _longest(replicas: list[FinalReplica]) -> FinalPartition:
    """Return the content of the replica that shows most, preceded by what other replicas hold from before its log
    start. (Another checker compares the replicas.)
    """
    best = max(replicas, key=lambda r: (r.role in WELL, r.high_watermark))
    start = _start(best)
    names = _names(best, start, best.high_watermark)
    for other in sorted(replicas, key=_start):
        if other.role in WELL and _start(other) < start <= other.high_watermark:
            return FinalPartition(_start(other), _names(other, _start(other), start) + names, certain=True)
    return FinalPartition(start, names, certain=True)


def _start(replica: FinalReplica) -> int:
    """Return the first offset of what was read: the head may have gone after the log start was asked for."""
    return max(replica.log_start, replica.entries[0].base_offset) if replica.entries else replica.log_start


def _names(replica: FinalReplica, start: int, end: int) -> list[str | None]:
    """Return the names of records from `start`, which may lie inside an entry, to `end`."""
    return [
        name
        for entry in replica.entries
        if entry.base_offset + len(entry.records) > start and entry.base_offset < end
        for name in entry.records[max(0, start - entry.base_offset) :]
    ]

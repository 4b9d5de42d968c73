"""An anomaly: an event in a history that tinymq promises never to happen, with what a person needs to find it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tinymq_chaos.history import METADATA, Call, Log


class AnomalyKind(StrEnum):
    """The kinds of anomalies. The value is the name that people read."""

    LOST_WRITE = "lost write"  # an acknowledged record is not in the log
    CHANGED_RECORD = "changed record"  # bytes that no producer sent
    REORDERED = "reordered"  # records of one producer are in another order than it sent them
    DUPLICATE = "duplicate"  # of an idempotent send
    ABORTED_READ = "aborted read"  # a send that failed for certain is in the log
    TORN = "torn"  # a part of a transaction is visible, and another part is not
    TWO_DECISIONS = "two decisions"  # on one transaction, or on one half message
    UNDECIDED = "undecided"  # a half message is visible that nobody has committed
    UNPROCESSED = "unprocessed"  # a group has passed a record, and no output of it is there
    PROCESSED_TWICE = "processed twice"  # a record has two outputs, and the group was not moved back
    INCONSISTENT_OFFSET = "inconsistent offset"  # two records at one offset, or one record at two
    WRONG_ANSWER = "wrong answer"  # of an admin call
    TIME_BACK = "append time moved back"
    WRONG_TIME = "wrong time"  # of a record: its append time, or the answer to a look-up by time
    GAP = "gap"  # offsets or indexes are not dense
    DIRTY_READ = "dirty read"  # shown, and later taken back
    NOT_A_PREFIX = "not a prefix"  # a follower showed something other than a prefix of the log
    NONMONOTONIC_POLL = "non-monotonic poll"  # a reader went back
    SKIPPED_POLL = "skipped poll"  # a reader skipped records
    NONMONOTONIC_SEND = "non-monotonic send"  # a later send of a producer got an earlier offset
    UNSEEN_WRITE = "unseen write"  # acknowledged, and never shown to a reader that reads to the end
    REPLICAS_DIFFER = "replicas differ"  # below the lowest high watermark
    BROKEN_CHAIN = "broken chain"  # an entry that does not follow from the one before it
    HIGH_WATERMARK = "high watermark"  # beyond the commit
    INNOCENT_DAMAGE = "innocent damage"  # damage on a disk that no fault struck
    NOT_HEALED = "not healed"  # a replica does not take part after all faults are over
    TWO_LEADERS = "two leaders"  # of one term
    LINGERING_LEADER = "lingering leader"  # a leader leads on long after the election of another one
    RESTLESS = "restless"  # leaders change although nothing around them does
    TWO_ENTRIES = "two entries"  # two entries applied at one index
    TWO_VOTES = "two votes"  # of one replica in one term; or a vote that left before its sync
    NO_QUORUM = "no quorum"  # fewer than a majority of the listed replicas counted for a commit
    NOT_SYNCED = "not synced"  # a replica vouches for bytes that its disk would lose
    FORGOTTEN = "forgotten"  # a replica returns as the same one with less than it vouched for
    STATES_DIFFER = "states differ"  # of replicas that applied the same entries
    BROKEN_SEQUENCE = "broken sequence"  # of an idempotent producer: not the next sequence
    STALE = "stale"  # a linearizable read misses what was over when it began
    UNCOMMITTED = "uncommitted"  # answered or shown before any replica knows of its commit
    NOT_LINEARIZABLE = "not linearizable"  # metadata
    GIVEN_TWICE = "given twice"  # a partition's number, or a consumer's epoch
    NO_ANSWER = "no answer"  # by the deadline
    SLOW = "slow"  # writes, when all is quiet
    NO_PROGRESS = "no progress"  # soon after the last fault
    UNLISTED_VOTE = "unlisted vote"  # of a replica that no committed CONFIG has listed
    NOT_ELECTED = "not elected"  # leads without votes of a majority of the listed replicas
    INCOMPLETE_LEADER = "incomplete leader"  # leads, or serves, without a committed entry
    NOT_MOVED = "not moved"  # a requested leadership transfer
    NOT_COMMITTED = "not committed"  # an entry counts as committed and is not
    # for entries that differ from those of the term's leader; or counted by the leader without an ack
    FALSE_ACK = "false ack"
    CURSOR_BACK = "cursor moved back"  # without a seek
    CURSOR_STRAYED = "cursor strayed"  # to an offset that no call gave
    NOT_FENCED = "not fenced"  # a consumer that was replaced, or a commit from before a seek
    LOST_COMMIT = "lost commit"  # of a cursor: acknowledged, and without effect
    TAKEN_TWICE = "taken twice"  # two requests got one record, or one request got two
    TAKEN_BY_NOBODY = "taken by nobody"  # a channel passed a record that no request got
    OF_DELETED_TOPIC = "record of a deleted topic"  # it is in the topic that was made under the same name
    SETTLED_BY_NOBODY = "settled by nobody"  # a queue group is done with a record that no worker settled
    STUCK = "stuck"  # a record of a queue group is not delivered any more, or too late
    LEASED_TWICE = "leased twice"  # two workers have a record, or records of one key in a group with keyed order
    KEY_OUT_OF_ORDER = "key out of order"  # a record was settled before an earlier one of its key
    DEAD_LETTERS = "dead letters"  # one is missing, or there twice
    TOO_EARLY = "too early"  # a record was delivered, or delivered again, before its time
    NOT_STARTED = "not started"  # a delivery that no worker has begun counts as failed
    MISCOUNTED = "miscounted"  # the size of a queue
    CHARGED = "charged"  # a delivery counts as failed whose ack was in a transaction
    REMOVED_EARLY = "removed early"  # by retention or capacity
    KEPT_TOO_LONG = "kept too long"  # past its retention
    OVER_CAPACITY = "over capacity"  # more records than the bounds of the topic
    REFUSED = "refused"  # as full, although there was room
    TRIMMED_READ = "trimmed read"  # of records that were trimmed before the read began
    BROKEN_HOLD = "broken hold"  # held records are gone
    NEEDLESS_LOSS = "needless loss"  # a group recovered without a majority whose replicas had lost nothing
    SECOND_BROKER = "second broker"  # of one number takes part beside the first one, or is not told of it
    TOO_MUCH = "too much"  # bytes in one message, or in flight to one follower of one group


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding. Fields that do not apply are empty."""

    kind: AnomalyKind
    what: str  # a sentence
    log: Log | None = None
    records: tuple[str, ...] = ()
    offsets: tuple[int, ...] = ()
    processes: tuple[str, ...] = ()
    times_s: tuple[float, ...] = ()
    brokers: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        kind: AnomalyKind,
        what: str,
        log: Log | None,
        *calls: Call,
        records: Iterable[str] = (),
        offsets: tuple[int, ...] = (),
        processes: tuple[str, ...] = (),
    ) -> Anomaly:
        """Return an anomaly that these calls show, with their times, and by their processes unless others are named."""
        times_s = tuple(call.invoked_s if call.ended_s is None else call.ended_s for call in calls)
        by = processes or tuple(dict.fromkeys(call.process for call in calls))
        return cls(kind, what, log, tuple(records), offsets=offsets, processes=by, times_s=times_s)

    def __str__(self) -> str:
        where = "" if self.log is None else f"{log_name(self.log)}: "
        parts = [
            _list("records", self.records),
            _list("offsets", self.offsets),
            _list("brokers", self.brokers),
            _list("by", self.processes),
            _list("at", [f"{t:.3f} s" for t in self.times_s]),
        ]
        facts = "; ".join(part for part in parts if part)
        return f"{self.kind}: {where}{self.what}{f' ({facts})' if facts else ''}"


def log_name(log: Log) -> str:
    """Return the name of a log for people: the topic's name and enough of its id to tell topics of that name apart."""
    if log == METADATA:
        return "metadata"
    name, _, topic_id = log[0].partition("#")
    return f"{name}#{topic_id[:6]}/{log[1]}" if topic_id else f"{name}/{log[1]}"


def _list(word: str, values: object) -> str:
    shown = [str(value) for value in values]  # type: ignore[attr-defined]
    if not shown:
        return ""
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return f"{word} {', '.join(shown[:8])}{more}"

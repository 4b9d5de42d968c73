"""An anomaly: something in a history that tinymq promises never happens. A value that tells a person where to look."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tinymq_chaos.history import METADATA, Call, Log


class AnomalyKind(StrEnum):
    """What can be found. The value is how it is said."""

    LOST_WRITE = "lost write"  # acknowledged, and not there
    CHANGED_RECORD = "changed record"  # bytes that no producer sent
    REORDERED = "reordered"  # one producer's records lie in another order than they were sent
    DUPLICATE = "duplicate"  # of an idempotent send
    ABORTED_READ = "aborted read"  # what failed for certain is there
    INCONSISTENT_OFFSET = "inconsistent offset"  # two records at one offset, or one record at two
    GAP = "gap"  # offsets or indexes are not dense
    DIRTY_READ = "dirty read"  # shown, and later taken back
    NOT_A_PREFIX = "not a prefix"  # a follower showed something else than the log begins with
    NONMONOTONIC_POLL = "non-monotonic poll"  # a reader was taken back
    SKIPPED_POLL = "skipped poll"  # a reader was taken past records
    NONMONOTONIC_SEND = "non-monotonic send"  # a later send of a producer was given an earlier offset
    UNSEEN_WRITE = "unseen write"  # acknowledged, and never shown to a reader that reads to the end
    REPLICAS_DIFFER = "replicas differ"  # below the lowest high watermark
    BROKEN_CHAIN = "broken chain"  # an entry that does not follow from the one before it
    HIGH_WATERMARK = "high watermark"  # beyond what is committed
    INNOCENT_DAMAGE = "innocent damage"  # found on a disk to which nothing was done
    NOT_HEALED = "not healed"  # a replica does not take part when all faults are over
    TWO_LEADERS = "two leaders"  # of one term
    LINGERING_LEADER = "lingering leader"  # leads on long after another one was elected
    RESTLESS = "restless"  # leaders come and go, and nothing around them changes
    TWO_ENTRIES = "two entries"  # were applied at one index
    TWO_VOTES = "two votes"  # of one replica in one term, or one that went out before it was synced
    NO_QUORUM = "no quorum"  # fewer than a majority of listed replicas was counted for a commit
    NOT_SYNCED = "not synced"  # a replica vouches for what its disk would lose
    FORGOTTEN = "forgotten"  # a replica comes back with less than it vouched for, and as the same one
    STATES_DIFFER = "states differ"  # of replicas that applied the same entries
    BROKEN_SEQUENCE = "broken sequence"  # of an idempotent producer: not the number that comes next
    STALE = "stale"  # a linearizable read of what was over when it began
    UNCOMMITTED = "uncommitted"  # answered or shown, and nobody has it committed yet
    NOT_LINEARIZABLE = "not linearizable"  # metadata
    GIVEN_TWICE = "given twice"  # a partition's number, or a consumer's epoch
    NO_ANSWER = "no answer"  # by the deadline
    SLOW = "slow"  # writes, when all is quiet
    NO_PROGRESS = "no progress"  # soon after the last fault
    UNLISTED_VOTE = "unlisted vote"  # of a replica that no committed CONFIG ever listed
    NOT_ELECTED = "not elected"  # leads without votes of a majority of listed replicas
    INCOMPLETE_LEADER = "incomplete leader"  # leads, or serves, without what is committed
    NOT_MOVED = "not moved"  # a leader, by hand, as it was to be
    NOT_COMMITTED = "not committed"  # and taken for it
    FALSE_ACK = "false ack"  # of what is not there as the leader of that term has it, or counted and never said
    CURSOR_BACK = "cursor moved back"  # and nobody sought
    CURSOR_STRAYED = "cursor strayed"  # to where nobody put it
    NOT_FENCED = "not fenced"  # a consumer that was replaced, or a commit from before a seek
    LOST_COMMIT = "lost commit"  # of a cursor: acknowledged, and not there
    TAKEN_TWICE = "taken twice"  # one record by two requests, or two by one
    TAKEN_BY_NOBODY = "taken by nobody"  # a channel has passed it
    MISCOUNTED = "miscounted"  # the size of a queue
    REMOVED_EARLY = "removed early"  # by retention or capacity
    KEPT_TOO_LONG = "kept too long"  # though its time is over
    OVER_CAPACITY = "over capacity"  # more records than the topic has room for
    REFUSED = "refused"  # for want of room that there was
    TRIMMED_READ = "trimmed read"  # of what was trimmed before it began
    BROKEN_HOLD = "broken hold"  # records are gone that were held
    NEEDLESS_LOSS = "needless loss"  # a group went on without a majority of its replicas, which had lost nothing
    TOO_MUCH = "too much"  # bytes in one message, or on their way to one follower of one group


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding. What does not apply is left empty."""

    kind: AnomalyKind
    what: str  # a sentence
    log: Log | None = None
    records: tuple[str, ...] = ()
    offsets: tuple[int, ...] = ()
    processes: tuple[str, ...] = ()
    times_s: tuple[float, ...] = ()
    brokers: tuple[int, ...] = ()

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
    """For people: the topic's name and enough of its id to tell it from others of that name."""
    if log == METADATA:
        return "metadata"
    name, _, topic_id = log[0].partition("#")
    return f"{name}#{topic_id[:6]}/{log[1]}" if topic_id else f"{name}/{log[1]}"


def times(*calls: Call) -> tuple[float, ...]:
    """When these calls ended (or began, if they have not)."""
    return tuple(call.invoked_s if call.ended_s is None else call.ended_s for call in calls)


def _list(word: str, values: object) -> str:
    shown = [str(value) for value in values]  # type: ignore[attr-defined]
    if not shown:
        return ""
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return f"{word} {', '.join(shown[:8])}{more}"

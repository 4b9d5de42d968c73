"""The decisions of a partition's leader on staged batches and on the ends of transactions. Pure; one object per term.
Offsets of stream groups and acks of queue groups follow the rules of batches: a transaction numbers them as batches of
two more writers.

The leader decides by the applied state *and* by what it has appended since. It remembers no ended transactions. Instead
it asks the coordinator before it appends the first batch of a transaction. The question must be newer than the
transaction's end here. Suppose that the leader asks, the answer is *open*, and the transaction ends before the answer
arrives: a batch appended now would stay staged for good, because nobody sends a second end. So an end voids all earlier
questions about its transaction.

A batch that has no end, in the applied state or behind it, may be copied to the end of the log. An end that is appended
behind a copy names the copy: once both are applied, nothing keeps the earlier entry in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from tinymq.broker.state.staged import NOTHING, StagedBatch, StagedEntry, StagedTransactions, TransactionId, Waiting
from tinymq.broker.state.transactional.staged_acks import StagedAcks
from tinymq.broker.state.transactional.staged_offsets import StagedOffsets

OFFSETS_WRITER, ACKS_WRITER = -1, -2  # of what a transaction stages by commands; the writers of batches begin at 0


class Step(Enum):
    """The leader's decision on a batch."""

    APPEND = "append"
    DUPLICATE = "duplicate"  # the batch is here already: answer as for the first copy, once that is committed
    ASK = "ask"  # ask the coordinator, and decide again when it has answered
    WAIT = "wait"  # a question to the coordinator is under way: decide again when it is answered
    ENDED = "ended"  # refuse, because the transaction has ended: TransactionAborted, or Fenced
    GAP = "gap"  # refuse, because an earlier batch of the writer is missing: OutOfOrderSequence


class EndStep(Enum):
    """The leader's decision when it is told to end a transaction."""

    APPEND = "append"
    WAIT = "wait"  # the end is appended already: confirm once it is applied
    CONFIRM = "confirm"  # nothing is staged here: the transaction ended earlier, or never began here


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the coordinator: is this transaction open, with this partition in it?"""

    transaction: TransactionId
    serial: int


class _Copy(NamedTuple):
    """A copy that this leader has appended and not applied yet."""

    replaced_index: int


@dataclass(slots=True)
class _Tail:
    """The entries of one transaction that this leader has appended and not applied yet."""

    entries: dict[StagedBatch, StagedEntry] = field(default_factory=dict)
    next_numbers: dict[int, int] = field(default_factory=dict)  # number of the next batch, by writer
    waiting: Waiting = NOTHING  # invariant: what `entries` take
    copies: dict[int, int] = field(default_factory=dict)  # by index of an applied entry: that of the copy of its batch
    end_index: int | None = None  # of the PUBLISH or DISCARD; no batch of the transaction is appended behind it


class Staging:
    """One leader's view of what is staged. The arguments go on changing as entries are applied."""

    def __init__(
        self, applied: StagedTransactions, offsets: StagedOffsets | None = None, acks: StagedAcks | None = None
    ) -> None:
        """Without `offsets` or `acks`, no transaction stages any."""
        self._applied = applied
        self._commands: Mapping[int, StagedOffsets | StagedAcks] = {
            OFFSETS_WRITER: StagedOffsets() if offsets is None else offsets,
            ACKS_WRITER: StagedAcks() if acks is None else acks,
        }
        self._tails: dict[TransactionId, _Tail] = {}
        # All entries of tails: (index, transaction, its batch, a copy, or None for an end, what it adds to the bounds).
        self._order: deque[tuple[int, TransactionId, StagedBatch | _Copy | None, Waiting]] = deque()
        self._more = NOTHING  # invariant: the sum of what the entries of tails add
        self._asked: dict[TransactionId, Question] = {}
        self._serial = 0

    @property
    def asked(self) -> Mapping[TransactionId, Question]:
        """The questions that are under way and not void."""
        return MappingProxyType(self._asked)

    # ---- batches

    def judge(self, batch: StagedBatch, answer: Question | None = None, *, is_open: bool = False) -> Step:
        """Decide about a batch. If the coordinator has just answered a question, that is `answer`, with `is_open`."""
        transaction, tail = batch.transaction, self._tails.get(batch.transaction)
        if tail is not None and tail.end_index is not None:
            return Step.ENDED
        if tail is None and not self.held(transaction):  # the first batch: the coordinator is asked
            if answer is None or not self._counts(answer):
                return Step.WAIT if transaction in self._asked else Step.ASK
            if not is_open:
                return Step.ENDED
        following = self._next_number(batch)
        if batch.number == following:
            return Step.APPEND
        return Step.DUPLICATE if batch.number < following else Step.GAP

    def ask(self, transaction: TransactionId) -> Question:
        """Make a new question about a transaction. It voids the previous one."""
        self._serial += 1
        question = self._asked[transaction] = Question(transaction, self._serial)
        return question

    def answered(self, question: Question) -> None:
        """Forget a question, once every batch that waited for it was judged."""
        if self._counts(question):
            del self._asked[question.transaction]

    def _counts(self, question: Question) -> bool:
        """Whether the answer counts: the question is the newest one, and the transaction has not ended here since."""
        return self._asked.get(question.transaction) == question

    def index_of(self, batch: StagedBatch) -> int | None:
        """The Raft index of a batch; None: the batch is not here. 0 stands for any command that is applied."""
        tail, staged = self._tails.get(batch.transaction), self._applied.get(batch.transaction)
        if tail is not None and batch in tail.entries:
            return tail.entries[batch].entry_index
        if batch.writer in self._commands:
            return 0  # the command is applied; only the applied state knows whether it took effect
        return None if staged is None else staged.index_of(batch.writer, batch.number)

    # ---- ends

    def judge_end(self, transaction: TransactionId) -> EndStep:
        """Decide about a PUBLISH or DISCARD of the coordinator.

        Before the leader confirms it, it must have applied the first entry of its own term, and a majority must have
        confirmed since the request that it leads. Otherwise it may not know all staged batches.
        """
        self._void(transaction)
        tail = self._tails.get(transaction)
        if tail is not None and tail.end_index is not None:
            return EndStep.WAIT
        return EndStep.APPEND if tail is not None or self.held(transaction) else EndStep.CONFIRM

    def end_index(self, transaction: TransactionId) -> int:
        """The Raft index of an end that this leader has appended and not applied yet."""
        index = self._tails[transaction].end_index
        assert index is not None, "the end of the transaction is not in the tail"
        return index

    def held(self, transaction: TransactionId, sets: Collection[int] | None = None) -> int:
        """How many batches, offsets and acks of a transaction are applied: of all its writers, or of some, which are
        sets of Spark's sink. The coordinator's decision counts applied entries only, because others may still be
        lost."""
        if sets is not None:
            return self._applied.held(transaction, sets)
        return self._applied.held(transaction) + sum(each.held(transaction) for each in self._commands.values())

    def entries_of(self, transaction: TransactionId, sets: Collection[int] | None = None) -> Sequence[StagedEntry]:
        """The entries with batches that the end of a transaction publishes, in order. It drops all others.

        These are all that the transaction has in the log, applied or not, or those of some sets of Spark's sink.
        """
        tail, staged = self._tails.get(transaction), self._applied.get(transaction)
        entries: Sequence[StagedEntry] = ()
        if staged is not None:
            entries = staged.entries if sets is None else staged.entries_of(sets)
        if tail is None:
            return entries
        copies = tail.copies
        if copies:
            entries = [
                entry._replace(entry_index=copies.get(entry.entry_index, entry.entry_index)) for entry in entries
            ]
        if sets is not None:  # their batches were applied before the coordinator decided
            return entries
        return [*entries, *(entry for batch, entry in tail.entries.items() if batch.writer not in self._commands)]

    def movable(self, batch: StagedBatch) -> StagedEntry | None:
        """The applied entry that has a batch, if a copy of it may be appended now. None: the transaction ends, or has
        ended; or a copy is under way."""
        tail, entry = self._tails.get(batch.transaction), self._applied.entry_of(batch)
        if entry is None or (tail is not None and (tail.end_index is not None or entry.entry_index in tail.copies)):
            return None
        return entry

    def waiting_of(self, transaction: TransactionId) -> Waiting:
        """The room that the transaction's entries in the log take."""
        tail, staged = self._tails.get(transaction), self._applied.get(transaction)
        applied = NOTHING if staged is None else staged.waiting
        return applied if tail is None else applied.plus(tail.waiting)

    @property
    def waiting(self) -> Waiting:
        """The room that staged batches take, including batches that this leader has appended and not applied yet."""
        return self._applied.waiting.plus(self._more)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction has anything here, applied or not."""
        return not self._tails and not len(self._applied) and not any(map(len, self._commands.values()))

    def undecided(self) -> list[TransactionId]:
        """The staged transactions without an end here. The leader asks the coordinator about them from time to time."""
        tails, staged = self._tails, dict.fromkeys(chain(self._applied, *self._commands.values()))
        return [each for each in staged if each not in tails or tails[each].end_index is None]

    def is_behind(self, transaction: TransactionId) -> bool:
        """Whether an earlier transaction of the producer, whose records come first, has no end here.

        A coordinator publishes the transactions of a producer in order (rules.is_next). The exception is one that an
        operator commits: after a loss, the coordinator does not know which partitions it has.
        """
        return any(each.producer_id == transaction.producer_id and each < transaction for each in self.undecided())

    def coordinator_of(self, transaction: TransactionId) -> int:
        """The number of the partition of `__coordinator` that has a transaction; 0 if nothing of it is applied."""
        places = (self._applied, *self._commands.values())
        return next((found.coordinator for each in places if (found := each.get(transaction)) is not None), 0)

    # ---- the log

    def appended(self, batch: StagedBatch, entry: StagedEntry) -> None:
        """Note a STAGED entry that this leader has appended."""
        tail = self._tails.setdefault(batch.transaction, _Tail())
        assert tail.end_index is None, "a batch was appended behind the end of its transaction"
        tail.entries[batch] = entry
        tail.next_numbers[batch.writer] = batch.number + 1
        is_command = batch.writer in self._commands  # it takes no room: their number is bounded
        taken = NOTHING if is_command else Waiting(1, entry.record_count, entry.length)
        tail.waiting = tail.waiting.plus(taken)
        self._note(entry.entry_index, batch.transaction, batch, taken)

    def copied(self, batch: StagedBatch, replaced_index: int, index: int) -> None:
        """Note a STAGED entry that this leader has appended as a copy of a batch: it takes no room."""
        tail = self._tails.setdefault(batch.transaction, _Tail())
        assert tail.end_index is None, "a batch was copied behind the end of its transaction"
        tail.copies[replaced_index] = index
        self._note(index, batch.transaction, _Copy(replaced_index), NOTHING)

    def end_appended(self, index: int, transaction: TransactionId) -> None:
        """Note a PUBLISH or DISCARD entry that this leader has appended."""
        self._void(transaction)
        freed = NOTHING.minus(self.waiting_of(transaction))
        self._tails.setdefault(transaction, _Tail()).end_index = index
        self._note(index, transaction, None, freed)

    def _note(self, index: int, transaction: TransactionId, noted: StagedBatch | _Copy | None, more: Waiting) -> None:
        self._order.append((index, transaction, noted, more))
        self._more = self._more.plus(more)

    def applied(self, index: int) -> None:
        """Forget the entries up to `index`, which the applied state has now."""
        while self._order and self._order[0][0] <= index:
            _, transaction, noted, more = self._order.popleft()
            self._more = self._more.minus(more)
            tail = self._tails[transaction]
            if noted is None:
                tail.end_index = None
                self._void(transaction)
            elif isinstance(noted, _Copy):
                del tail.copies[noted.replaced_index]
            else:
                del tail.entries[noted]
                tail.waiting = tail.waiting.minus(more)
            if tail.end_index is None and not tail.entries and not tail.copies:
                del self._tails[transaction]

    def _void(self, transaction: TransactionId) -> None:
        """Void the question about a transaction, so that its answer does not count."""
        self._asked.pop(transaction, None)

    def _next_number(self, batch: StagedBatch) -> int:
        """The number of the writer's next batch."""
        tail, staged = self._tails.get(batch.transaction), self._applied.get(batch.transaction)
        if tail is not None and batch.writer in tail.next_numbers:
            return tail.next_numbers[batch.writer]
        if batch.writer in self._commands:
            return self._commands[batch.writer].held(batch.transaction)
        return 0 if staged is None else staged.next_number(batch.writer)

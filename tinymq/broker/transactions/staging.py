"""The decisions of a partition's leader on staged batches and on the ends of transactions. Pure; one object per term.

The leader decides over what is applied *and* what it has appended since. It has to remember nothing of transactions
that have ended, because it asks the coordinator before it appends the first batch of a transaction. The answer must be
newer than every end: an answer *open* that was asked for before the transaction ended here would bring back a batch of
an ended transaction, for which nobody would ever send another end. So an end makes the questions before it void.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from tinymq.broker.state.staged import StagedBatch, StagedTransactions, TransactionId


class Step(Enum):
    """What the leader does with a batch."""

    APPEND = "append"
    DUPLICATE = "duplicate"  # answer as for the first copy, when that is committed
    ASK = "ask"  # ask the coordinator, and decide again when it has answered
    WAIT = "wait"  # the coordinator is asked already
    ENDED = "ended"  # the transaction has ended: TransactionAborted, or Fenced
    GAP = "gap"  # a batch before it is missing: OutOfOrderSequence


class EndStep(Enum):
    """What the leader does when it is told to end a transaction."""

    APPEND = "append"
    WAIT = "wait"  # its end is appended: confirm when that is applied
    CONFIRM = "confirm"  # nothing of it is here: it has ended before, or never began


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the coordinator: is this transaction open, with this partition in it?"""

    transaction: TransactionId
    serial: int


@dataclass(slots=True)
class _Tail:
    """What this leader has appended of one transaction and not applied yet."""

    indexes: dict[StagedBatch, int] = field(default_factory=dict)
    next_numbers: dict[int, int] = field(default_factory=dict)  # by writer, if it has a batch here
    end_index: int | None = None  # of its PUBLISH or DISCARD; no batch of it is appended behind that


class Staging:
    """One leader's view of what is staged. `applied` goes on changing as entries are applied."""

    def __init__(self, applied: StagedTransactions) -> None:
        self._applied = applied
        self._tails: dict[TransactionId, _Tail] = {}
        self._order: deque[tuple[int, TransactionId, StagedBatch | None]] = deque()  # of the tails' entries
        self._asked: dict[TransactionId, Question] = {}
        self._serial = 0

    @property
    def asked(self) -> Mapping[TransactionId, Question]:
        """The questions whose answers count."""
        return MappingProxyType(self._asked)

    # ---- batches

    def judge(self, batch: StagedBatch, answer: Question | None = None, *, is_open: bool = False) -> Step:
        """Decide about a batch. `answer`: the question that has just been answered, with `is_open`."""
        transaction, tail = batch.transaction, self._tails.get(batch.transaction)
        if tail is not None and tail.end_index is not None:
            return Step.ENDED
        if tail is None and not self._applied.held(transaction):  # the first batch: the coordinator is asked
            if answer is None or not self._counts(answer):
                return Step.WAIT if transaction in self._asked else Step.ASK
            if not is_open:
                return Step.ENDED
        following = self._next_number(batch)
        if batch.number == following:
            return Step.APPEND
        return Step.DUPLICATE if batch.number < following else Step.GAP

    def ask(self, transaction: TransactionId) -> Question:
        """A new question about a transaction. It replaces the one before."""
        self._serial += 1
        question = self._asked[transaction] = Question(transaction, self._serial)
        return question

    def answered(self, question: Question) -> None:
        """Forget a question, once every batch that waited for it was judged."""
        if self._counts(question):
            del self._asked[question.transaction]

    def _counts(self, question: Question) -> bool:
        """Whether the transaction has not ended here since the question."""
        return self._asked.get(question.transaction) == question

    def index_of(self, batch: StagedBatch) -> int | None:
        """The Raft index of a batch that is here; None: it is not."""
        tail, staged = self._tails.get(batch.transaction), self._applied.get(batch.transaction)
        if tail is not None and batch in tail.indexes:
            return tail.indexes[batch]
        return None if staged is None else staged.index_of(batch.writer, batch.number)

    # ---- ends

    def judge_end(self, transaction: TransactionId) -> EndStep:
        """Decide about a PUBLISH or DISCARD of the coordinator. To confirm it, the leader has applied the first entry
        of its own term, and a majority has confirmed since the request that it leads: a deposed leader, or one that
        has not applied everything, may not know what is staged."""
        self._void(transaction)
        tail = self._tails.get(transaction)
        if tail is not None and tail.end_index is not None:
            return EndStep.WAIT
        return EndStep.APPEND if tail is not None or self._applied.held(transaction) else EndStep.CONFIRM

    def held(self, transaction: TransactionId) -> int:
        """How many batches of it are applied, for the coordinator's decision. What is only appended may be lost."""
        return self._applied.held(transaction)

    def undecided(self) -> list[TransactionId]:
        """What is staged and has no end here: the leader asks about each, from time to time."""
        tails = self._tails
        return [each for each in self._applied if each not in tails or tails[each].end_index is None]

    # ---- the log

    def appended(self, index: int, batch: StagedBatch) -> None:
        """Note a STAGED entry that this leader has appended."""
        tail = self._tails.setdefault(batch.transaction, _Tail())
        assert tail.end_index is None, "a batch was appended behind the end of its transaction"
        tail.indexes[batch] = index
        tail.next_numbers[batch.writer] = batch.number + 1
        self._order.append((index, batch.transaction, batch))

    def end_appended(self, index: int, transaction: TransactionId) -> None:
        """Note a PUBLISH or DISCARD entry that this leader has appended."""
        self._void(transaction)
        self._tails.setdefault(transaction, _Tail()).end_index = index
        self._order.append((index, transaction, None))

    def applied(self, index: int) -> None:
        """Drop what is in the applied state by now."""
        while self._order and self._order[0][0] <= index:
            _, transaction, batch = self._order.popleft()
            tail = self._tails[transaction]
            if batch is None:
                tail.end_index = None
                self._void(transaction)
            else:
                del tail.indexes[batch]
            if tail.end_index is None and not tail.indexes:
                del self._tails[transaction]

    def _void(self, transaction: TransactionId) -> None:
        """Have the answers to all questions so far count for nothing."""
        self._asked.pop(transaction, None)

    def _next_number(self, batch: StagedBatch) -> int:
        """The number of the writer's next batch."""
        tail, staged = self._tails.get(batch.transaction), self._applied.get(batch.transaction)
        if tail is not None and batch.writer in tail.next_numbers:
            return tail.next_numbers[batch.writer]
        return 0 if staged is None else staged.next_number(batch.writer)

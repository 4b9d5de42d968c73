"""A leader's decisions on staged batches: over what is applied and what it has appended."""

from __future__ import annotations

from tinymq.broker.state.staged import StagedBatch, StagedEntry, StagedTransactions, TransactionId
from tinymq.broker.transactions.staging import EndStep, Staging, Step

T = TransactionId(7, 0, 1)


def batch(number: int, writer: int = 0, transaction: TransactionId = T) -> StagedBatch:
    return StagedBatch(transaction, writer, number)


def entry(index: int) -> StagedEntry:
    return StagedEntry(index, record_count=1, length=100, max_timestamp_us=0, batch_crc=0)


def with_first_applied() -> tuple[StagedTransactions, Staging]:
    applied = StagedTransactions()
    applied.stage(batch(0), entry(1), 0)
    return applied, Staging(applied)


def test_the_first_batch_waits_for_the_coordinator_and_the_others_for_the_same_answer() -> None:
    staging = Staging(StagedTransactions())
    assert staging.judge(batch(0)) is Step.ASK
    question = staging.ask(T)
    assert staging.judge(batch(1)) is Step.WAIT
    assert staging.judge(batch(0), question, is_open=False) is Step.ENDED
    assert staging.judge(batch(0), question, is_open=True) is Step.APPEND
    staging.appended(batch(0), entry(1))
    assert staging.judge(batch(1), question, is_open=True) is Step.APPEND
    staging.answered(question)
    assert not staging.asked


def test_an_answer_from_before_the_end_counts_for_nothing() -> None:
    staging = Staging(StagedTransactions())
    question = staging.ask(T)
    assert staging.judge_end(T) is EndStep.CONFIRM
    assert staging.judge(batch(0), question, is_open=True) is Step.ASK


def test_batches_are_numbered_for_each_writer_in_the_log_and_behind_it() -> None:
    applied, staging = with_first_applied()
    assert staging.judge(batch(0)) is Step.DUPLICATE
    assert staging.judge(batch(2)) is Step.GAP
    assert staging.judge(batch(0, writer=1)) is Step.APPEND
    staging.appended(batch(1), entry(2))
    assert staging.judge(batch(1)) is Step.DUPLICATE
    assert [staging.index_of(batch(number)) for number in range(3)] == [1, 2, None]
    assert staging.held(T) == 1  # what is appended may be lost
    applied.stage(batch(1), entry(2), 0)
    staging.applied(2)
    assert staging.held(T) == 2
    assert staging.judge(batch(1)) is Step.DUPLICATE
    assert staging.judge(batch(2)) is Step.APPEND


def test_an_end_is_appended_once_and_confirmed_when_it_is_applied() -> None:
    applied, staging = with_first_applied()
    assert staging.undecided() == [T]
    assert staging.judge_end(T) is EndStep.APPEND
    staging.end_appended(2, T)
    assert staging.undecided() == []
    assert staging.judge_end(T) is EndStep.WAIT
    assert staging.judge(batch(1)) is Step.ENDED
    ended = applied.end(T)
    assert ended is not None
    assert ended.entries == [entry(1)]
    staging.applied(2)
    assert staging.judge_end(T) is EndStep.CONFIRM


def test_a_batch_is_copied_once_at_a_time_and_not_behind_its_end() -> None:
    applied, staging = with_first_applied()
    staging.appended(batch(1), entry(2))
    assert staging.movable(batch(0)) == entry(1)
    assert staging.movable(batch(1)) is None, "it is at the end of the log"
    assert staging.movable(batch(0, transaction=TransactionId(8, 0, 1))) is None
    before = staging.waiting
    staging.copied(batch(0), 1, 3)
    assert staging.waiting == before
    assert staging.movable(batch(0)) is None
    assert staging.entries_of(T) == [entry(3), entry(2)]
    assert staging.entries_of(T, [0]) == [entry(3)]
    assert (staging.held(T), staging.judge(batch(2))) == (1, Step.APPEND)
    applied.stage(batch(1), entry(2), 0)
    applied.carry(batch(0), 1, 3, 0)
    staging.applied(3)
    assert staging.movable(batch(0)) == entry(3)
    assert staging.entries_of(T) == [entry(3), entry(2)]
    staging.end_appended(4, T)
    assert staging.movable(batch(0)) is None
    applied.end(T)
    staging.applied(4)
    assert (staging.is_idle, staging.waiting.batches) == (True, 0)


def test_a_new_leader_knows_what_is_applied_and_asks_again() -> None:
    staging = Staging(StagedTransactions())
    staging.appended(batch(0), entry(1))
    later = Staging(StagedTransactions())  # the entry went with its leader
    assert later.judge(batch(0)) is Step.ASK


def test_what_is_staged_keeps_its_segments() -> None:
    applied, _ = with_first_applied()
    other = TransactionId(8, 0, 1)
    applied.stage(batch(0, transaction=other), entry(5), 0)
    assert applied.lowest_index == 1
    applied.end(T)
    assert applied.lowest_index == 5
    assert (len(applied), list(applied)) == (1, [other])
    applied.end(other)
    assert applied.lowest_index is None


def test_an_entry_that_says_nothing_new_changes_nothing() -> None:
    """`apply` is total: what a leader should not have appended counts on no replica."""
    applied, _ = with_first_applied()
    applied.stage(batch(0), entry(2), 0)
    applied.stage(batch(3), entry(3), 0)
    applied.stage(batch(1, transaction=TransactionId(8, 0, 1)), entry(4), 0)
    assert (applied.held(T), len(applied)) == (1, 1)
    assert applied.end(TransactionId(9, 0, 1)) is None

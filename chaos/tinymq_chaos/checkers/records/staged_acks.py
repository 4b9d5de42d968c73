"""Acks of queue groups in transactions: the record belongs to the transaction alone until that is decided, and a
rollback gives it back uncharged.

That each job has exactly one visible result is checked as for all that is read, processed and written (outputs.py), and
that nobody but a worker settles a record with all other settlements (queue_groups.py). These checkers read what an
observer saw of brokers.
"""

from __future__ import annotations

from collections.abc import Iterator

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.records.queue_groups import grants, same_generation, seen, steps
from tinymq_chaos.group_changes import Place, QueueChange


def granted_while_staged(facts: Facts) -> Iterator[Anomaly]:
    """The newest leader grants a record whose ack a transaction has staged."""
    if facts.heads_removed:
        return
    newest: dict[Place, QueueChange] = {}
    queues = iter(facts.history.queues)
    waiting = next(queues, None)
    for _, change in grants(facts):
        while waiting is not None and waiting.at_s <= change.at_s:
            newest[waiting.place] = waiting
            waiting = next(queues, None)
        now = newest.get((change.log, change.group, change.group_id))
        if now is not None and now.generation == change.generation and change.offset in now.staged:
            what = f"group {change.group}: a record is granted to {change.session[:8]}, and a transaction has its ack"
            yield Anomaly(
                AnomalyKind.LEASED_TWICE, what, change.log, offsets=(change.offset,),
                times_s=(now.at_s, change.at_s), brokers=(change.broker,),
            )  # fmt: skip


def charged_while_staged(facts: Facts) -> Iterator[Anomaly]:
    """A delivery counts as failed while a transaction has the ack of its record, or by the rollback that gives the
    record back."""
    for before, now in steps(facts):
        if not before.staged or not same_generation(before, now):
            continue
        known, failed = _deliveries(before), _deliveries(now)
        for offset in before.staged:
            if failed.get(offset, 0) > known.get(offset, 0):
                what = f"group {now.group}: delivery {failed[offset]} counts as failed, and a transaction had its ack"
                yield seen(AnomalyKind.CHARGED, what, now, offset)


def _deliveries(change: QueueChange) -> dict[int, int]:
    return {offset: deliveries for offset, deliveries, *_ in change.failures}

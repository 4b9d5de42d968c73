"""The checkers: one pure function for each promise, and `check`, which runs all of them over a history.

A checker takes `Facts` and yields anomalies. A new feature adds its checkers to CHECKERS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from tinymq_chaos.checkers.bounds import capacity, retention, sizes, stale_reads, trims
from tinymq_chaos.checkers.cluster import answers, deadlines, metadata, moves, twins, unique_numbers
from tinymq_chaos.checkers.cluster.ledger import Ledger
from tinymq_chaos.checkers.common import settings
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.records import (
    cursors,
    early_answers,
    half_messages,
    members,
    outputs,
    queue_groups,
    reads,
    recreated,
    replicas,
    scheduled,
    staged_acks,
    times,
    transactions,
    weak_topics,
    writes,
)
from tinymq_chaos.history import History

Checker = Callable[[Facts], Iterator[Anomaly]]

CHECKERS: tuple[Checker, ...] = (
    writes.lost_writes,
    writes.aborted_reads,
    writes.changed_records,
    writes.duplicates,
    writes.reordered,
    writes.nonmonotonic_sends,
    early_answers.early_answers,
    early_answers.early_reads,
    reads.shown_records,
    reads.shown_ends,
    reads.steady_readers,
    reads.skipped_fetches,
    reads.unseen_writes,
    times.append_times_back,
    times.wrong_append_times,
    times.wrong_look_ups,
    replicas.two_leaders,
    replicas.lingering_leaders,
    replicas.restless,
    moves.moved_elsewhere,
    moves.slow_moves,
    replicas.gaps,
    replicas.replicas_differ,
    replicas.damaged_entries,
    replicas.high_watermarks,
    replicas.innocent_damage,
    replicas.not_healed,
    metadata.not_linearizable,
    settings.settings_of_the_past,
    recreated.records_of_the_deleted,
    recreated.new_topics_begin_at_zero,
    recreated.lost_in_the_last_topic,
    recreated.refused_by_the_last_topic,
    unique_numbers.given_twice,
    twins.copies_let_in,
    twins.copies_untold,
    answers.wrong_leaders,
    answers.wrong_statuses,
    answers.missing_replicas,
    answers.wrong_topics,
    answers.wrong_partitions,
    answers.wrong_brokers,
    answers.levels_back,
    answers.wrong_sizes,
    answers.wrong_holds,
    answers.wrong_scans,
    cursors.moved_back,
    cursors.strayed,
    cursors.not_fenced,
    cursors.taken_twice,
    cursors.taken_by_nobody,
    cursors.taken_as_stored,
    members.skipped_by_the_group,
    members.group_moved_back,
    members.two_owners_commit,
    queue_groups.settled_by_nobody,
    queue_groups.acks_are_kept,
    queue_groups.position_back,
    queue_groups.leased_twice,
    queue_groups.keys_out_of_order,
    queue_groups.dead_letters,
    queue_groups.rejected_and_delivered,
    queue_groups.acked_and_delivered,
    queue_groups.delivered_too_early,
    queue_groups.delivered_too_late,
    queue_groups.charged_unstarted,
    staged_acks.granted_while_staged,
    staged_acks.charged_while_staged,
    scheduled.delivered_before_due,
    scheduled.canceled_and_delivered,
    scheduled.scheduled_and_lost,
    transactions.torn_transactions,
    transactions.torn_ends,
    transactions.aborted_transactions,
    transactions.lost_transactions,
    transactions.commits_shown_early,
    transactions.two_decisions,
    transactions.commits_of_fenced,
    transactions.transactions_out_of_order,
    transactions.unfinished_transactions,
    half_messages.shown_undecided,
    half_messages.rolled_back_and_shown,
    half_messages.committed_and_lost,
    half_messages.two_outcomes,
    half_messages.halves_shown_early,
    half_messages.halves_left_open,
    outputs.unprocessed,
    outputs.processed_twice,
    outputs.not_caught_up,
    sizes.miscounted,
    stale_reads.stale_reads,
    retention.removed_early,
    retention.kept_too_long,
    retention.removed_of_the_last_bytes,
    retention.kept_too_much,
    capacity.over_capacity,
    capacity.dropped_too_much,
    capacity.refused_with_room,
    trims.trimmed_reads,
    trims.trims_undone,
    trims.removed_untrimmed,
    retention.broken_holds,
    weak_topics.needless_losses,
    deadlines.unanswered,
    deadlines.no_progress,
    deadlines.slow_writes,
)

OF_A_KIND_MAX = 5  # anomalies that `check` returns; the first ones tell enough


def check(history: History, ledger: Ledger | None = None, checkers: Iterable[Checker] = CHECKERS) -> list[Anomaly]:
    """Return what is wrong with a run: at most OF_A_KIND_MAX anomalies of each kind."""
    facts = Facts(history)
    found = list(ledger.anomalies) if ledger is not None else []
    for checker in checkers:
        found.extend(checker(facts))
    found = [anomaly for anomaly in found if not weak_topics.is_excused(facts, anomaly)]
    counts: Counter[AnomalyKind] = Counter()
    kept = []
    for anomaly in found:
        counts[anomaly.kind] += 1
        if counts[anomaly.kind] <= OF_A_KIND_MAX:
            kept.append(anomaly)
    return kept


__all__ = ["CHECKERS", "Anomaly", "AnomalyKind", "Checker", "Facts", "History", "Ledger", "check"]

"""The checkers that judge a run of real processes, and the slack of each. Both are here and nowhere else.

A simulator knows when an entry is committed, and its clocks stop while it computes. The harness observes from outside:
calls, the brokers' log lines, and the content of their disks at the end; and all of it shares one machine with other
work. Facts that cannot be known from outside are listed and not judged; the simulator judges them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from tinymq_chaos.checkers import CHECKERS, Checker
from tinymq_chaos.checkers.cluster.deadlines import no_progress, slow_writes, unanswered
from tinymq_chaos.checkers.records.half_messages import halves_left_open
from tinymq_chaos.checkers.records.outputs import not_caught_up
from tinymq_chaos.checkers.records.recreated import refused_by_the_last_topic
from tinymq_chaos.checkers.records.replicas import lingering_leaders, restless
from tinymq_chaos.checkers.records.transactions import unfinished_transactions

CROWD_MAX = 4.0
CROWD_FAIR = 8.0  # tasks for each processor: above it, a slow cluster cannot be told from a slow machine
CROWD_CALM_MAX = 2.0  # after the faults, calls have many seconds anyway

NOT_JUDGED: Mapping[str, str] = {
    "early_answers": "needs to know when each entry was first committed anywhere; the brokers' commits are not seen "
    "one by one from outside. What was answered and then lost is still found, at the end (lost_writes)",
    "early_reads": "as early_answers. What was shown and then taken back is found at the end (shown_records)",
    "commits_shown_early": "as early_answers. A commit that was acknowledged and lost is found at the end "
    "(lost_transactions, torn_transactions)",
    **dict.fromkeys(
        ("settled_by_nobody", "acks_are_kept", "position_back", "leased_twice", "keys_out_of_order"),
        "needs to see leases and the replicated states of groups. acked_and_delivered needs calls alone",
    ),
    **dict.fromkeys(
        ("granted_while_staged", "charged_while_staged"),
        "needs to see grants and the replicated states of groups. A job with two results is found by processed_twice",
    ),
    "halves_shown_early": "as early_answers. A commit that was confirmed and lost is found at the end "
    "(committed_and_lost)",
    "charged_unstarted": "needs to see grants: after three workers that died with a record, it is granted alone, and "
    "then counts as started though nobody was handed it out",
    "needless_losses": "is about topics that are in memory or synced at intervals, and needs to know when a group went "
    "on without a majority: workloads volatile, delayed and toggled do not run here",
}
"""By the checker's name: why it does not judge runs of real processes."""

SPEED_CHECKERS = (
    lingering_leaders, restless, no_progress, slow_writes, refused_by_the_last_topic, unfinished_transactions,
    not_caught_up, halves_left_open,
)  # fmt: skip
SPEED = tuple(checker.__name__ for checker in SPEED_CHECKERS)


@dataclass(frozen=True, slots=True)
class Slack:
    """Seconds beyond the promised times."""

    answer_s: float = 0.5  # the loop of the harness, which runs all clients, notices a call's end late
    linger_s: float = 1.0  # roles are observed when a line is read: twice the interval of reads, and a busy machine
    progress_s: float = 10.0  # kill -9 of all: Python has to start as many times as there are brokers
    write_s: float = 0.5  # half of all writes are slower than this only if the disk or the machine is slow
    fair: bool = True  # speed is judged at all

    def of(self, lag_s: float, crowd: float, crowd_calm: float) -> Slack:
        """Return the slack for a busy machine.

        The harness waited for the processor for `lag_s` in the worst ten seconds, so its observations may be late by so
        much. `crowd` tasks wanted each processor at worst, and `crowd_calm` from the last fault on: brokers are slower
        by that factor. Times are extended by at most CROWD_MAX, and after the faults by at most CROWD_CALM_MAX. Beyond
        CROWD_FAIR, speed is not judged. Every run measures these values and reports them.
        """
        many, after = times(crowd), min(CROWD_CALM_MAX, times(crowd_calm))
        return Slack(
            self.answer_s * many + lag_s, self.linger_s * many + lag_s,
            self.progress_s * after + lag_s, self.write_s * after + lag_s, crowd <= CROWD_FAIR,
        )  # fmt: skip


def times(crowd: float) -> float:
    """Return the factor for times on a machine where so many tasks wanted each processor."""
    return min(CROWD_MAX, max(1.0, crowd))


def checkers(slack: Slack) -> tuple[Checker, ...]:
    """Return the checkers that judge here."""
    slackened: dict[str, Checker] = {
        unanswered.__name__: partial(unanswered, late_s=slack.answer_s),
        lingering_leaders.__name__: partial(lingering_leaders, late_s=slack.linger_s),
        no_progress.__name__: partial(no_progress, within_s=slack.progress_s),
        slow_writes.__name__: partial(slow_writes, slow_s=slack.write_s),
    }
    silent = not_judged(slack)
    return tuple(slackened.get(name_of(c), c) for c in CHECKERS if name_of(c) not in silent)


def not_judged(slack: Slack) -> Mapping[str, str]:
    """By the checker's name: why it does not judge this run."""
    busy = f"the machine was too busy: more than {CROWD_FAIR:g} tasks for each processor"
    return NOT_JUDGED if slack.fair else {**NOT_JUDGED, **dict.fromkeys(SPEED, busy)}


def name_of(checker: Checker) -> str:
    name: str = getattr(checker, "func", checker).__name__
    return name

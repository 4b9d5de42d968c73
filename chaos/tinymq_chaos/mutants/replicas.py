"""Mutants of broker/replicas: automatic quorum recovery, preferred leaders, and errors that report a loss.

Most of these rules matter in rare cases (a majority ends while the last holder is silent), or prevent harmless but
unwelcome moves of a leader. A simulated run shows neither for certain, so tests of the suite catch them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from tinymq.base.errors import TinymqError
from tinymq.broker.replicas import preferred_leaders
from tinymq.broker.replicas.preferred_leaders import PreferredLeaders
from tinymq.broker.replicas.quorum_watch import QuorumWatch
from tinymq.broker.replicas.transfers import Transfers
from tinymq.broker.serve import fetch
from tinymq.broker.state.epoch_cache import EpochCache
from tinymq.log.broker_files.durability_marks import DurabilityMark
from tinymq.raft.replica.forced_leadership import ForcedLeadership
from tinymq.raft.roles.leadership import Leadership
from tinymq.raft.roles.leadership_transfer import LeadershipTransfer
from tinymq.raft.rules import automatic_recovery
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.membership import Replica
from tinymq.raft.rules.quorum_loss import QuorumLost, ReplicaReport, can_win, lost
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant, replaces

REVIVAL = "tests/broker/replicas/test_quorum_watch.py::test_"
ALTERED = "tests/broker/replicas/test_quorum_watch_altered.py::test_"
DECISION = "tests/raft/rules/test_automatic_recovery.py::test_"
HOME = "tests/broker/replicas/test_preferred_leaders.py::test_"
HANDING = "tests/raft/roles/test_leadership_transfer.py::test_"


@mutant(
    "a group recovers when every member's broker has answered: a silent one may know more",
    test=f"{REVIVAL}in_memory_no_group_recovers_while_a_replica_is_silent",
)
def the_silent_are_not_waited_for(p: Patches) -> None:
    async def reports(self: QuorumWatch, group: Any, members: Sequence[int]) -> list[ReplicaReport]:
        return await real_reports(self, group, [b for b in members if b == self._broker_id or self._host.alive(b)])

    async def ask(self: QuorumWatch, broker_id: int, group: Any, term: int) -> Any:
        try:
            return await real_ask(self, broker_id, group, term)
        except TinymqError:
            return None

    def plan_recovery(
        reports: Sequence[ReplicaReport | None], members: Sequence[int], **rest: Any
    ) -> QuorumLost | None:
        there = [report for report in reports if report is not None]
        return None if any(can_win(r, there) for r in there) else lost(there, members)

    real_reports, real_ask = QuorumWatch.collect_reports, QuorumWatch.ask_promise
    p.replace(QuorumWatch.all_alive, lambda self, members: True)
    p.replace(QuorumWatch.collect_reports, reports)
    p.replace(QuorumWatch.ask_promise, ask)
    p.replace(automatic_recovery.plan_recovery, plan_recovery)


@mutant(
    "a group recovers when no replica can be elected, and not before",
    test=f"{DECISION}two_that_are_listed_elect_one_of_them",
)
def electable_groups_recover(p: Patches) -> None:
    p.replace(can_win, lambda report, reports: False, within=[automatic_recovery])


@mutant(
    "22: a recovering replica promises durably to take part in no lower term",
    test=f"{REVIVAL}a_recovery_grant_is_durable_and_given_once",
)
@replaces(ForcedLeadership.promise_term)
def promises_are_forgotten(_: Any, self: ForcedLeadership, term: int, promised: Any) -> None:
    self.promised_term = term
    promised()


@mutant(
    "a recovery waits for a replaced disk, which may come back", test=f"{REVIVAL}recovery_waits_for_a_replaced_disk"
)
def replaced_disks_are_not_waited_for(p: Patches) -> None:
    p.replace(automatic_recovery.is_present_or_risked, lambda listed, present, risky_now: True)


@mutant(
    "the setting when an entry was written decides whether it was at risk, not the present one",
    test=f"{ALTERED}a_group_recovers_although_sync_was_altered_to_always_since",
)
def the_present_setting_decides(p: Patches) -> None:
    real = QuorumWatch.stuck_groups
    p.replace(QuorumWatch.stuck_groups, lambda self: [group for group in real(self) if group.log.config.takes_risks])


@mutant(
    "a group that lost entries by a fault waits for an operator: they were promised to be safe",
    test=f"{ALTERED}a_majority_that_lost_its_files_never_recovers_automatically",
)
@replaces(automatic_recovery.is_present_or_risked)
def faults_are_risks(
    real: Callable[..., bool], listed: Replica, present: dict[int, ReplicaReport], risky_now: bool
) -> bool:
    return real(listed, {b: replace(r, fault_count=0) for b, r in present.items()}, risky_now)


@mutant(
    "nothing is committed under a CONFIG older than one that any replica has applied",
    test=f"{DECISION}configs_before_the_newest_applied_one_do_not_count",
)
def old_configs_count(p: Patches) -> None:
    p.replace(automatic_recovery.age_of, lambda membership: (0, 0))


@mutant(
    "the cause of a raised count is stored with it",
    test="tests/log/broker_files/test_durability_marks.py::test_the_cause_of_a_raised_count",
)
def causes_are_forgotten(p: Patches) -> None:
    p.replace(
        DurabilityMark.raised_by_fault,
        lambda self, flags=0: replace(self, count=self.count + 1, flags=self.flags | flags),
    )


@mutant(
    "a recovery waits for damaged and failed replicas",
    test=f"{DECISION}a_damaged_or_failed_member_may_know_a_majority",
)
@replaces(automatic_recovery.plan_recovery)
def the_damaged_are_not_waited_for(
    real: Callable[..., QuorumLost | None], reports: Sequence[ReplicaReport], members: Sequence[int], **rest: Any
) -> QuorumLost | None:
    return real([replace(report, healthy=True) for report in reports], members, **rest)


@mutant(
    "a reader of lost records is told of the loss, whatever replaced them",
    test="tests/broker/serve/test_fetch.py::test_every_replica_refuses_a_lost_offset",
)
def readers_are_not_told_of_a_loss(p: Patches) -> None:
    p.replace(EpochCache.divergence_offset, lambda self, known: None)


@mutant(
    "a replica that is behind a loss does not answer a reader that knows of it",
    test="tests/broker/serve/test_fetch.py::test_every_replica_refuses_a_lost_offset",
)
@replaces(fetch.divergence_error)
def replicas_of_the_past_answer(real: Any, partition: Any, offset: int, recovery_term: int) -> TinymqError | None:
    return None if recovery_term > partition.state.epoch_cache.newest_term else real(partition, offset, recovery_term)


# Mutants of broker/replicas: automatic quorum recovery, preferred leaders, and errors that report a loss. | Most of
# these rules matter in rare cases (a majority ends while the last holder is silent), or prevent harmless but unwelcome
# moves of a leader. A simulated run shows neither for certain, so tests of the suite catch them.


@mutant(
    "a leader returns to a broker that has been up for a while",
    test=f"{HOME}a_broker_that_has_been_back_for_a_while_gets_its_leadership",
)
def leaders_return_at_once(p: Patches) -> None:
    real = preferred_leaders.may_return
    p.replace(preferred_leaders.may_return, lambda away, home, now_s, return_s: real(away, home, now_s, 0.0))


@mutant(
    "a leader returns to a replica that can lead at once",
    test=f"{HOME}the_election_waits_for_missing_conditions_and_checks_again",
)
def leaders_return_to_lagging_replicas(p: Patches) -> None:
    real = PreferredLeaders.misplaced
    p.replace(PreferredLeaders.misplaced, lambda self: [replace(away, ready=True) for away in real(self)])


@mutant(
    "a broker that does not keep its leaderships gets none for a time, longer each time",
    test=f"{HOME}a_leadership_given_away_by_a_live_preferred_broker_stays_for_a_while",
)
def backoff_is_ignored(p: Patches) -> None:
    p.replace(PreferredLeaders.back_off, lambda self, broker_id: None)


@mutant(
    "a leadership that an operator moved stays",
    test=f"{HOME}a_manual_transfer_stays_until_the_preferred_broker_restarts",
)
@replaces(preferred_leaders.may_return)
def operator_moves_are_undone(
    real: Callable[..., bool], misplaced: preferred_leaders.Misplaced, *rest: Any, **named: Any
) -> bool:
    return real(replace(misplaced, origin=LeadershipOrigin.TRANSFERRED), *rest, **named)


@mutant(
    "a hand-over that is not taken in its time is given up",
    test=f"{HANDING}a_transfer_that_takes_too_long_is_abandoned",
)
def transfers_never_end(p: Patches) -> None:
    p.replace(LeadershipTransfer.is_over, lambda self, now: False)


@mutant(
    "a leadership goes to a replica that lacks little of the log",
    test=f"{HANDING}a_dead_lagging_or_hanging_follower_is_not_ready",
)
def anybody_is_ready(p: Patches) -> None:
    p.replace(Leadership.transfer_obstacle, lambda self, peer: "")


@mutant(
    "a requested transfer is answered when another broker leads",
    Focus(faults=("pause", "isolate", "latency"), workloads=("moved",), pace=0.3),
)
@replaces(Transfers.transfer)
async def moves_are_answered_early(
    real: Callable[..., Awaitable[tuple[int, int]]], self: Transfers, queue: Any, to: int, timeout_s: float
) -> tuple[int, int]:
    group = self._host.groups.get(queue.group)
    if group is None or not group.is_leader or to == self._host.broker_id:
        return await real(self, queue, to, timeout_s)
    successor = self._successor(queue, group, to)
    self._host.transfer(group.id, successor, within_s=self._within_s, manual=True)
    return successor, group.term

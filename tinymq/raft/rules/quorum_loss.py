"""Recovery of a group that has lost its quorum for good: whether and how it may continue. Pure.

A group whose listed identities can still elect a leader is never changed. Otherwise, once an operator accepts the loss,
the reachable replica with the best log leads without an election, under a forced CONFIG. That CONFIG lists every
reachable replica of a member's broker under its present identity. For each broker that is gone it lists NOBODY (an
incarnation of zeros), so that the broker comes back without a vote. A majority of the members must be reachable, and
holds the CONFIG before it counts. So nothing is ever acknowledged on less than a majority of disks. Two forced
leaderships never share a term, because each term belongs to one place in the list of members. Of two of them, the one
with the higher recovery epoch continues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tinymq.base.quantity import quantity
from tinymq.base.types import GroupId
from tinymq.raft.rules.membership import Membership, Replica

NOBODY = bytes(16)  # an incarnation that no data directory has

UNSEEN_TERMS_MAX = 1_500_000  # how many terms above the known ones the lost replicas may have seen


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica, as its broker describes it to a recovery."""

    replica: Replica
    healthy: bool  # its log is open, and no damage or failure is known
    leads: bool
    term: int
    last_term: int
    last_index: int
    high_watermark: int
    applied: Membership
    newest: Membership  # in its log, committed or not
    before_forced: tuple[int, int]  # `position` without a forced leadership that it does not know to be committed
    reason: str = ""
    fault_count: int | None = None  # see Mark.fault_count; None: its broker's version does not report it

    @property
    def broker_id(self) -> int:
        return self.replica.broker_id

    @property
    def position(self) -> tuple[int, int]:
        """(last term, last index): of two logs, the greater one has every committed entry of the other."""
        return self.last_term, self.last_index


@dataclass(frozen=True, slots=True)
class Healthy:
    """The group has a leader, or enough replicas to elect one."""

    leader: int | None


@dataclass(frozen=True, slots=True)
class QuorumLost:
    """No quorum is left. With `accept-loss` the group continues with `survivor`'s log, as `replicas`, in `term`."""

    survivor: ReplicaReport
    replicas: tuple[Replica, ...]
    term: int

    @property
    def gone(self) -> list[int]:
        """The brokers whose replica is counted as lost."""
        return [r.broker_id for r in self.replicas if r.incarnation == NOBODY]


@dataclass(frozen=True, slots=True)
class RecoveryOrder:
    """An order to lead `group` in `term` with the log that ends at `position`. The group is `replicas` from then on."""

    group: GroupId
    term: int
    position: tuple[int, int]  # (last term, last index)
    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class Unrecoverable:
    """No quorum is left, and too little is reachable to continue."""

    why: str


RecoveryVerdict = Healthy | QuorumLost | Unrecoverable


def judge(reports: Sequence[ReplicaReport], members: Sequence[int], unasked: Collection[int] = ()) -> RecoveryVerdict:
    """Decide whether and how a group can continue.

    `members`: its brokers, the preferred leader first. `unasked`: brokers that others call alive and that gave no
    report, so nobody knows what they hold.
    """
    reports = [r for r in reports if not members or r.broker_id in members]  # observers never count
    leaders = [r for r in reports if r.leads and r.healthy]
    if leaders:
        return Healthy(max(leaders, key=lambda r: r.term).broker_id)
    if any(can_win(r, reports) for r in reports):
        return Healthy(None)
    if not members:
        return Unrecoverable("no broker has it open")
    blind = [broker_id for broker_id in members if broker_id in unasked]
    if blind:
        alive = "is alive and was" if len(blind) == 1 else "are alive and were"
        address = "its address" if len(blind) == 1 else "their addresses"
        return Unrecoverable(f"{_named_brokers(blind)} {alive} not asked: name {address}, too")
    healthy = {r.broker_id: r for r in reports if r.healthy}
    majority = len(members) // 2 + 1
    if len(healthy) < majority:
        return Unrecoverable(_too_few(reports, members, majority))
    return lost(reports, members)


def lost(reports: Sequence[ReplicaReport], members: Sequence[int]) -> QuorumLost:
    """Choose the log with which the group continues. The caller has made sure that it cannot elect a leader."""
    healthy = {r.broker_id: r for r in reports if r.healthy}
    survivor = max(healthy.values(), key=_merit(reports, members))
    replicas = tuple(healthy[b].replica if b in healthy else Replica(b, NOBODY) for b in members)
    return QuorumLost(
        survivor, replicas, _own_term(max(r.term for r in reports), members.index(survivor.broker_id), members)
    )


def forced_membership(newest: Membership, taker: int, replicas: Iterable[Replica]) -> Membership:
    """Return the CONFIG of a forced leadership of the broker `taker`. It follows `newest`, the newest CONFIG in that
    broker's log.

    Of two forced leaderships one has the higher recovery epoch, even if neither knew of the other: the lower 32 bits
    are the broker's id.
    """
    recovery_epoch = ((newest.recovery_epoch >> 32) + 1) << 32 | taker
    return replace(newest.replacing(replicas), recovery_epoch=recovery_epoch)


def _own_term(above: int, place: int, members: Sequence[int]) -> int:
    """Return a term in which only the member at `place` may lead unelected, and that no lost replica has seen.

    The lost replicas may have had leaders that the others never heard of. In such a term, an old disk would pass for a
    log that matches.
    """
    above += UNSEEN_TERMS_MAX
    return above + 1 + (place - above - 1) % len(members)


def can_win(candidate: ReplicaReport, reports: Sequence[ReplicaReport]) -> bool:
    """Could the reachable replicas elect this one?"""
    newest = candidate.newest
    if not (candidate.healthy and candidate.applied.has(candidate.replica) and newest.has(candidate.replica)):
        return False
    voters = [r for r in reports if newest.has(r.replica) and _may_vote(r, candidate)]
    return sum(r.position <= candidate.position for r in voters) >= newest.quorum


def _may_vote(voter: ReplicaReport, candidate: ReplicaReport) -> bool:
    """Does the voter know that it is listed: by what it applied, or by a CONFIG that the candidate vouches for?"""
    known = voter.newest.epoch <= candidate.applied.epoch and voter.newest.has(voter.replica)
    return voter.healthy and (voter.applied.has(voter.replica) or known)


def _merit(
    reports: Sequence[ReplicaReport], members: Sequence[int]
) -> Callable[[ReplicaReport], tuple[int, int, bool, int]]:
    """Return the key by which the best log is the greatest.

    Entries of a forced leadership that no majority can hold do not count. That leadership failed, and another log may
    hold more of the entries before it.
    """
    unknown = len(members) - len(reports)
    recovery_epochs = [r.newest.recovery_epoch for r in reports]

    def merit(report: ReplicaReport) -> tuple[int, int, bool, int]:
        held = sum(g >= report.newest.recovery_epoch for g in recovery_epochs) + unknown > len(members) // 2
        term, index = report.position if held else report.before_forced
        return term, index, report.applied.has(report.replica), -members.index(report.broker_id)

    return merit


def _too_few(reports: Sequence[ReplicaReport], members: Sequence[int], majority: int) -> str:
    there = {r.broker_id for r in reports}
    missing = [b for b in members if b not in there]
    damaged = [f"broker {r.broker_id} has no whole log ({r.reason})" for r in reports if not r.healthy]
    empty = f"{_named_brokers(missing)} must run, with an empty data directory if its disk is lost" if missing else ""
    return f"{majority} of {quantity(len(members), 'replica')} must be there: " + "; ".join(
        filter(None, [empty, *damaged])
    )


def _named_brokers(ids: Sequence[int]) -> str:
    return ("broker " if len(ids) == 1 else "brokers ") + ", ".join(map(str, sorted(ids)))

"""Automatic quorum recovery: decides whether a group without a quorum may go on without an operator, and with which
log. Pure.

A replica in memory gets a new identity (a higher incarnation count) when its process ends. A replica that is synced at
intervals gets one when its machine loses power. Either may then lack entries that it acknowledged. If this happens to a
majority of the listed replicas, no CONFIG is left under which a leader could be elected. The topic's setting put the
lost entries at risk, and waiting does not bring them back, so the group goes on by itself (docs/adr/0016). It uses the
same forced leadership as `tinymq cluster recover` (quorum_loss.py), under narrower conditions:

- every member's broker answers, because a silent one may know more, and none of their replicas is damaged or failed
- every listed identity that is missing has ended for certain: its data directory reports a higher count. If the broker
  has another data directory now, the disk with the old one may come back, so the group waits for it
- every missing identity ended by a risk that the topic accepted, and by nothing else (docs/adr/0029). Each replica
  stores, with its count, the count at which a fault last raised it: lost files, lost votes. Entries that a fault took
  were promised to be safe, so a group that lost some waits for an operator
- no replica can be elected, and no leader can commit, because a majority of the replicas in its applied CONFIG is gone

The topic's present setting decides nothing here. The setting under which a replica acknowledged its entries decides.

CONFIGs older than the newest one that any replica has applied do not count. Nothing can be committed under them any
more, so identities that only they list are ignored.

Two brokers may decide so at the same time. A broker that leads unelected first makes every member promise, durably,
to take part in no lower term. Then it decides again by the reports that come with the promises. They include the
effects of any other forced leadership.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tinymq.raft.rules.membership import Membership, Replica, has_quorum
from tinymq.raft.rules.quorum_loss import NOBODY, QuorumLost, ReplicaReport, can_win, lost


def plan_recovery(
    reports: Sequence[ReplicaReport], members: Sequence[int], *, risky_now: bool = False
) -> QuorumLost | None:
    """Return the recovery that resumes the group, or None if the group can, or may be able to, continue without one.

    `risky_now`: the group's present setting accepts risks. It decides for brokers that do not report how their replicas
    ended.
    """
    present = {r.broker_id: r for r in reports}
    if set(present) != set(members) or not all(r.healthy for r in reports):
        return None
    if not all(is_present_or_risked(replica, present, risky_now) for replica in _listed(reports)):
        return None
    if any(r.leads and has_quorum(r.applied, _alive(r.applied, present)) for r in reports):
        return None
    if any(can_win(r, reports) for r in reports):
        return None
    return lost(reports, members)


def _listed(reports: Sequence[ReplicaReport]) -> Iterator[Replica]:
    """Every identity that may have taken part in the newest commit."""
    newest_applied = max(age_of(r.applied) for r in reports)
    for report in reports:
        for membership in (report.applied, report.newest):
            if age_of(membership) >= newest_applied:
                yield from membership.replicas


def age_of(membership: Membership) -> tuple[int, int]:
    return membership.recovery_epoch, membership.epoch


def is_present_or_risked(listed: Replica, present: dict[int, ReplicaReport], risky_now: bool) -> bool:
    """Is this identity present, or has it ended for certain by a risk that its topic accepted?"""
    there = present[listed.broker_id]
    if listed.incarnation == NOBODY or listed == there.replica:
        return True
    if listed.incarnation != there.replica.incarnation or listed.count > there.replica.count:
        return False
    return risky_now if there.fault_count is None else there.fault_count <= listed.count


def _alive(membership: Membership, present: dict[int, ReplicaReport]) -> list[int]:
    return [broker_id for broker_id, report in present.items() if membership.has(report.replica)]

"""Automatic quorum recovery: may a group that lost its quorum go on without an operator, and with which log. Pure.

A replica in memory becomes another one (a higher incarnation count) when its process ends, and so does one that is
synced at intervals when its machine loses power: each may lack what it acknowledged. When that happened to a majority
of the listed replicas, no CONFIG is left under which a leader could be elected. What they lost was at risk by the
topic's setting, and waiting brings nothing back, so the group goes on by itself (docs/adr/0016). It does so by the same
take-over as `tinymq cluster recover` (recovering.py), under narrower conditions:

- every member's broker answers, and none of their replicas is damaged or failed: one that is silent may know more
- a listed identity that is not there has ended for certain: its data folder is there, with a higher count. Another
  folder's disk may come back, and is waited for
- it ended by a risk that was taken, and by nothing else (docs/adr/0029). Each replica keeps, with its count, the count
  at which a fault last raised it: lost files, lost votes. What a fault took was promised to be safe
- no replica can be elected, and a leader can commit nothing: of what it has applied, a majority is gone

The topic's present setting decides nothing here: what counts is how a replica kept what it acknowledged at that time.

CONFIGs that are older than the newest one that any replica has applied are over. Nothing can be committed under them,
so identities that only they list are neither waited for nor missed.

Two brokers at once may each decide so. The one that takes over first has every member promise, durably, to take part in
no lower term, and judges again by the reports that come with the promises: they include what another take-over did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tinymq.raft.membership import Membership, Replica, has_quorum
from tinymq.raft.recovering import NOBODY, Lost, Report, can_win, lost


def revive(reports: Sequence[Report], members: Sequence[int], *, risky_now: bool = False) -> Lost | None:
    """How the group goes on, if it cannot by itself; None when it can, or when that is not certain. `risky_now`: its
    present setting takes risks, which answers for brokers that do not say how their replicas ended."""
    present = {r.broker_id: r for r in reports}
    if set(present) != set(members) or not all(r.healthy for r in reports):
        return None
    if not all(_is_there_or_risked(replica, present, risky_now) for replica in _listed(reports)):
        return None
    if any(r.leads and has_quorum(r.applied, _alive(r.applied, present)) for r in reports):
        return None
    if any(can_win(r, reports) for r in reports):
        return None
    return lost(reports, members)


def _listed(reports: Sequence[Report]) -> Iterator[Replica]:
    """Every identity that may have a part in the newest commit."""
    newest_applied = max(_age(r.applied) for r in reports)
    for report in reports:
        for membership in (report.applied, report.newest):
            if _age(membership) >= newest_applied:
                yield from membership.replicas


def _age(membership: Membership) -> tuple[int, int]:
    return membership.generation, membership.epoch


def _is_there_or_risked(listed: Replica, present: dict[int, Report], risky_now: bool) -> bool:
    """Is this identity there, or has it ended for good by a risk that its topic took?"""
    there = present[listed.broker_id]
    if listed.incarnation == NOBODY or listed == there.replica:
        return True
    if listed.incarnation != there.replica.incarnation or listed.count > there.replica.count:
        return False
    return risky_now if there.fault_count is None else there.fault_count <= listed.count


def _alive(membership: Membership, present: dict[int, Report]) -> list[int]:
    return [broker_id for broker_id, report in present.items() if membership.has(report.replica)]

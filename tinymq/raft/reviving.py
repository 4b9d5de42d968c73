"""Groups that come back by themselves: those in memory, and those that are synced at intervals. Pure.

Their replicas become others when a process, or a machine, ends. When a majority of the listed ones has ended so, no
CONFIG is left under which anybody could be elected or anything be committed, for good: what was lost with them is lost,
and waiting brings nothing back. So no operator is asked (adr/0016). It is the same take-over as his, decided alike
(recovering.py), under narrower conditions:

- every member's broker answers, and none of their replicas is damaged or failed. Who is silent may know more
- a listed identity that is not there has ended for certain: its data folder is there, with a higher count. Another
  folder's, whose disk may come back, is waited for
- nobody can be elected, and who leads can commit nothing: of what it has applied, a majority is gone

Two at once would each think so. Who takes over first has every member promise, durably, to take part in no lower term,
and judges again by what they say with that: whatever another one got done before is in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinymq.log.log_config import LogConfig
from tinymq.raft.membership import Membership, Replica, has_quorum
from tinymq.raft.recovering import NOBODY, Lost, Report, can_win, lost
from tinymq.topic_config import Storage


def comes_back(config: LogConfig) -> bool:
    """Is a log that is kept like this one that may be revived without an operator?"""
    return config.storage is Storage.MEMORY or config.sync_interval_s > 0


def revive(reports: Sequence[Report], members: Sequence[int]) -> Lost | None:
    """How the group goes on, if it cannot by itself; None when it can, or when that is not certain."""
    present = {r.broker_id: r.replica for r in reports}
    if set(present) != set(members) or not all(r.healthy for r in reports):
        return None
    if not all(_known(listed, present) for r in reports for listed in (*r.applied.replicas, *r.newest.replicas)):
        return None
    if any(r.leads and has_quorum(r.applied, _alive(r.applied, present)) for r in reports):
        return None
    if any(can_win(r, reports) for r in reports):
        return None
    return lost(reports, members)


def _known(listed: Replica, present: dict[int, Replica]) -> bool:
    """Is it there, or has it ended for good?"""
    there = present[listed.broker_id]
    return listed.incarnation == NOBODY or (listed.incarnation == there.incarnation and listed.count <= there.count)


def _alive(membership: Membership, present: dict[int, Replica]) -> list[int]:
    return [broker_id for broker_id, replica in present.items() if membership.has(replica)]

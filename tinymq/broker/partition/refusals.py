"""The errors of a replica that accepts no writes."""

from __future__ import annotations

from tinymq.base.errors import DiskFull, NotLeader, TinymqError
from tinymq.broker.partition.group_port import RaftGroup


def refusal(name: str, group: RaftGroup, not_leader: NotLeader) -> TinymqError:
    """The error of a replica that does not lead. DiskFull if a full disk keeps the group from having a leader, so that
    an operator learns of it."""
    failure = group.failure
    if isinstance(failure, DiskFull) and not group.leader:
        return DiskFull(f"{name}: this replica stopped: {failure.message}")
    return not_leader


def transferring(name: str, term: int) -> NotLeader:
    """The error of a leader whose leadership is being transferred."""
    return NotLeader(f"{name}: the leadership is being transferred", leader_epoch=term)

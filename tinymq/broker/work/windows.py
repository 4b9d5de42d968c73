"""What keeps the leader of a queue group from granting more: full windows, and keys that hold others back. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from tinymq.broker.groups.lease_values import QueueSettings
from tinymq.broker.groups.queue_leases import QueueLeases
from tinymq.broker.state.queue_group import STATE_BYTES_MAX, QueueGroup

SHARE_BYTES_MIN = 8 << 10


class Obstacle(Enum):
    """Why a group grants nothing more, or does not bury."""

    PAUSED = "paused"
    WINDOW_FULL = "window_full"
    KEY_BLOCKED = "key_blocked"
    BURIAL_BLOCKED = "burial_blocked"


class Blocked(NamedTuple):
    """An obstacle, and what it is about."""

    by: Obstacle
    reason: str
    offset: int | None = None  # the record that holds back those of its key


def has_room(group: QueueGroup, groups: int) -> bool:
    """Whether a group has not used up its share of the state of a partition with that many groups."""
    return group.state_bytes < max(SHARE_BYTES_MIN, STATE_BYTES_MAX // max(1, groups))


def full_window(leases: QueueLeases, group: QueueGroup, settings: QueueSettings, *, has_room: bool) -> Blocked | None:
    """Why no further record is granted; None: nothing hinders."""
    if len(leases.leases) >= settings.leased_max:
        return Blocked(Obstacle.WINDOW_FULL, f"{len(leases.leases)} records are leased: leased_max")
    keys = leases.keys
    if keys is not None and keys.held >= settings.held_max:
        offset, count = keys.longest()
        reason = f"{keys.held} records wait for earlier ones of their keys, {count - 1} of one key"
        return Blocked(Obstacle.KEY_BLOCKED, reason, offset)
    if len(group.failures) >= settings.waiting_max:
        return Blocked(Obstacle.WINDOW_FULL, f"{len(group.failures)} records wait for another delivery: waiting_max")
    if not has_room:
        return Blocked(Obstacle.WINDOW_FULL, "the group has used up its share of the partition's state")
    return None

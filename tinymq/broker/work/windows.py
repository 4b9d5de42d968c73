"""Why the leader of a queue group grants no more: a window is full, or a key holds records back. Pure."""

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
    """An obstacle, with the reason for people."""

    by: Obstacle
    reason: str
    offset: int | None = None  # with KEY_BLOCKED: the record for which the others of its key wait


def has_room(group: QueueGroup, groups: int) -> bool:
    """Whether a group has room left in its share of the partition's state, which `groups` groups divide."""
    return group.state_bytes < max(SHARE_BYTES_MIN, STATE_BYTES_MAX // max(1, groups))


def full_window(leases: QueueLeases, group: QueueGroup, settings: QueueSettings, *, has_room: bool) -> Blocked | None:
    """The full window that keeps the group from granting more; None: there is room."""
    if len(leases.leases) + len(group.staged) >= settings.leased_max:
        staged = f", {len(group.staged)} have an ack in an open transaction" if group.staged else ""
        return Blocked(Obstacle.WINDOW_FULL, f"{len(leases.leases)} records are leased{staged}: leased_max")
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

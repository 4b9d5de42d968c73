"""The rule by which leases of a queue group run out. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tinymq.broker.groups.lease_values import Grant, Lease


class Expiry(NamedTuple):
    """The leases that ran out, each with its session."""

    asked: list[tuple[bytes, Grant]]  # their workers are asked to extend them
    charged: list[tuple[bytes, Grant]]  # over: their workers had begun the records, so the deliveries failed
    freed: list[tuple[bytes, Grant]]  # over: their workers had not begun the records, and must not


def expire_leases(leases: Mapping[int, Lease], now_s: float, ask_s: float) -> Expiry:
    """Find the leases that are over at `now_s`. When a lease runs out, its worker is asked, and keeps it by an `extend`
    within `ask_s`. Sets that deadline in the lease."""
    expiry = Expiry([], [], [])
    for lease in leases.values():
        if now_s < lease.until_s:
            continue
        found = lease.session, lease.grant
        if lease.asked_until_s is None:
            lease.asked_until_s = now_s + ask_s
            expiry.asked.append(found)
        elif now_s >= lease.asked_until_s:
            (expiry.charged if lease.started else expiry.freed).append(found)
    return expiry

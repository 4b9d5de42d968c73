"""Leases of registrations, as their keeper sees them: soft state, on the keeper's own clock. Pure.

A renewal is no command: a log that grew by heartbeats would never be idle. Only the end of a lease is one.
"""

from __future__ import annotations

from collections.abc import Mapping

from tinymq.registry.state.values import BrokerRecord


class Leases:
    """When each registration was last renewed, in the keeper's monotonic seconds."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._renewed_s: dict[tuple[int, int], float] = {}  # by (broker id, session)

    def reset(self) -> None:
        """A new keeper has heard nobody yet: every registration gets a whole lease from when it is first looked at."""
        self._renewed_s.clear()

    def renew(self, broker: BrokerRecord, now_s: float) -> None:
        self._renewed_s[broker.broker_id, broker.session] = now_s

    def expired(self, brokers: Mapping[int, BrokerRecord], now_s: float) -> list[BrokerRecord]:
        """Registrations whose lease has run out. Forgets those that are no longer registered."""
        known = {(b.broker_id, b.session): b for b in brokers.values()}
        self._renewed_s = {key: self._renewed_s.get(key, now_s) for key in known}
        return [b for key, b in known.items() if now_s - self._renewed_s[key] > self._lease_s]

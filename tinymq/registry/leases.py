"""Leases of registrations: soft state of the broker that ends them, on its own clock. Pure.

A renewal is not a command, because a log that grows by heartbeats would never be idle. Only the end of a lease is one.
"""

from __future__ import annotations

from collections.abc import Mapping

from tinymq.registry.state.values import BrokerRecord


class Leases:
    """The time of each registration's last renewal, in monotonic seconds of this broker."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._renewed_s: dict[tuple[int, int], float] = {}  # by (broker id, session)

    def reset(self) -> None:
        """Forget all renewals. Every registration then gets a whole lease, from the first call of `expired` on."""
        self._renewed_s.clear()

    def renew(self, broker: BrokerRecord, now_s: float) -> None:
        self._renewed_s[broker.broker_id, broker.session] = now_s

    def expired(self, brokers: Mapping[int, BrokerRecord], now_s: float) -> list[BrokerRecord]:
        """Registrations whose lease has run out. Forgets those that are no longer registered."""
        registered = {(b.broker_id, b.session): b for b in brokers.values()}
        self._renewed_s = {key: self._renewed_s.get(key, now_s) for key in registered}
        return [b for key, b in registered.items() if now_s - self._renewed_s[key] > self._lease_s]

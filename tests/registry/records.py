"""Brokers to register."""

from __future__ import annotations

from tinymq.registry.values import BrokerRecord


def broker(number: int, session: int = 1, rack: str = "") -> BrokerRecord:
    return BrokerRecord(number, bytes([number]) * 16, session, f"h:{number}", f"h:{100 + number}", rack)

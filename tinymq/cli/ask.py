"""Questions to one broker by its address: is it up, how is it, form a cluster with it."""

from __future__ import annotations

from collections.abc import Sequence


def state(address: str, timeout_s: float) -> str | None:
    """What the broker at `address` says of itself (ClusterStatus.state); None when nobody answers in time."""
    raise NotImplementedError(address, timeout_s)


def form(addresses: Sequence[str], secret: bytes) -> bytes:
    """Form a cluster of the empty brokers at `addresses`, or complete a half-done one; return its id."""
    raise NotImplementedError(addresses, secret)

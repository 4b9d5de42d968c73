"""Holds on what was planned: many partitions of a topic at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from tinymq.types import Offset

if TYPE_CHECKING:
    from tinymq.client import Client


def hold_many(
    client: Client, topic: str, offsets: Mapping[int, int], hold_id: bytes, lease_s: float
) -> Mapping[int, int]:
    """Make or renew a hold in each of these partitions; where each begins then."""
    admin: Any = client.admin
    if hasattr(admin, "hold_many"):
        return cast(Mapping[int, int], admin.hold_many(topic, offsets, hold_id=hold_id, lease=lease_s))
    for number, offset in offsets.items():
        admin.make_hold(topic, number, Offset(offset), lease=lease_s, hold_id=hold_id)
    return {}

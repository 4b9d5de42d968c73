"""All targets by name."""

from __future__ import annotations

from tests.fuzz import arrow, disks, formats, published, transactional, wire
from tests.fuzz.driver import Target

ALL: dict[str, Target] = {
    target.name: target for room in (formats, published, wire, transactional, disks, arrow) for target in room.targets()
}  # fmt: skip


def named(prefixes: list[str]) -> list[Target]:
    """The targets with one of the prefixes; all if none is given."""
    return [t for t in ALL.values() if not prefixes or any(t.name.startswith(prefix) for prefix in prefixes)]

"""Keeps an empty partition from taking records before the groups of its topic have their cursors.

A group that began at the end would miss the first records of an added partition, and so would any group if those
records were removed before its cursor was made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tinymq.base.errors import NotReady
from tinymq.broker.state.cursor import CursorKind
from tinymq.broker.state.state import PartitionState


class ExpectedGroup(Protocol):
    """A group that reads the partition's topic (tinymq.broker.groups.definition.GroupDefinition)."""

    @property
    def name(self) -> str: ...
    @property
    def group_id(self) -> int: ...
    @property
    def cursor_kind(self) -> int: ...
    @property
    def start_us(self) -> int: ...


class GroupGate:
    """The gate of one partition, on the broker that leads it."""

    def __init__(self, name: str, state: PartitionState) -> None:
        self.expected: Callable[[], Sequence[ExpectedGroup]] = tuple  # the topic's groups, as the registry here says
        self.on_missing: Callable[[], None] = lambda: None  # has the missing cursors made
        self._name = name
        self._state = state

    def missing(self) -> list[ExpectedGroup]:
        """The groups of the topic that have no cursor in the applied state, and whose name no channel has."""
        found = []
        for group in self.expected():
            cursor = self._state.cursors.get(group.name)
            if cursor is None or (cursor.kind != CursorKind.CHANNEL and cursor.group_id < group.group_id):
                found.append(group)
        return found

    def look(self) -> None:
        """Have the missing cursors made."""
        if self.missing():
            self.on_missing()

    def check(self) -> None:
        """Raises NotReady while a cursor is missing and the partition has no record."""
        missing = self.missing() if not self._state.high_watermark else ()
        if missing:
            self.on_missing()
            names = ", ".join(group.name for group in missing[:3])
            raise NotReady(f"{self._name}: cursors of groups are being made: {names}")

"""Counts the topics and groups of each user that has a quota for them. The registry keeps the list of a user's
things."""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.access.quotas import MADE, MAKING_US, Thing, pack_made, parse_made, with_thing
from tinymq.base.clock import Clock
from tinymq.base.errors import VersionConflict
from tinymq.base.identity.quota import Quota
from tinymq.registry.service import RegistryService

GROUP_RECORD = "group"  # the kind of a group's record (tinymq/broker/groups/definition.py)
ATTEMPTS = 10  # each fails when another broker counts a thing of the same user at the same time
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Maker:
    """A user who makes a topic or a group, and the user's quota."""

    name: str
    quota: Quota

    @property
    def counted(self) -> bool:
        """Does the quota bound any count of things?"""
        return not (self.quota.topics is self.quota.partitions is self.quota.groups is None)


class Makers:
    """The makers of a cluster's topics and groups."""

    def __init__(self, registry: RegistryService, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock

    async def count(self, maker: Maker, kind: str, name: str, partitions: int = 0) -> None:
        """Count a topic or a group that is about to be made, or a topic that is about to have so many partitions.

        A thing counts for a minute although it was not made, so that many at once cannot exceed the quota. Raises
        QuotaExceeded, and as `RegistryService.put_record`.
        """
        if not maker.counted:
            return
        for attempt in range(ATTEMPTS):
            record = self._registry.get_record(MADE, maker.name)
            now_us = self._clock.wall_us()
            new = Thing(kind, name, now_us + MAKING_US, partitions)
            before = parse_made(record)
            after = with_thing(before, new, maker.quota, self._exists, now_us, maker.name)
            version = record.version if record is not None else 0
            if after == before:
                return
            try:
                await self._registry.put_record(MADE, maker.name, pack_made(after), version, TIMEOUT_S)
                return
            except VersionConflict:
                if attempt == ATTEMPTS - 1:
                    raise
                await self._registry.refresh(TIMEOUT_S)

    def owner(self, topic: str) -> str:
        """The user to whose quota a topic counts; "": none."""
        for record in self._registry.get_all_records(MADE):
            if any(thing.kind == "topic" and thing.name == topic for thing in parse_made(record)):
                return record.name
        return ""

    def partitions(self, topic: str) -> int:
        """The number of a topic's partitions; 0: there is no such topic."""
        return self._exists("topic", topic) or 0

    def _exists(self, kind: str, name: str) -> int | None:
        if kind == "topic":
            topic = self._registry.get_topic(name)
            return len(topic.queues) if topic is not None else None
        return 0 if self._registry.get_record(GROUP_RECORD, name) is not None else None

"""The groups of a cluster, as the local registry has them: parsed once per change of a record."""

from __future__ import annotations

import structlog

from tinymq.base.errors import CorruptData
from tinymq.broker.groups.definition import RECORD_KIND, GroupDefinition, parse_group
from tinymq.registry.service import RegistryService

logger = structlog.get_logger("tinymq.broker")


class GroupList:
    """All groups, by name. Reads are local, and as new as the registry's."""

    def __init__(self, registry: RegistryService) -> None:
        self._registry = registry
        self._groups: dict[str, GroupDefinition] = {}
        self._by_topic: dict[str, tuple[GroupDefinition, ...]] = {}  # cache of `of_topic`

    def start(self) -> None:
        """Follow the registry from now on."""
        self._registry.watch_records(RECORD_KIND, self._read)
        self._read()

    def get(self, name: str) -> GroupDefinition | None:
        return self._groups.get(name)

    def all(self) -> list[GroupDefinition]:
        """All groups, by name."""
        return [self._groups[name] for name in sorted(self._groups)]

    def of_topic(self, topic: str) -> tuple[GroupDefinition, ...]:
        """The groups that need a cursor in each partition of a topic."""
        if not self._groups:
            return ()
        found = self._by_topic.get(topic)
        if found is None:
            found = tuple(group for group in self._groups.values() if group.lists and group.reads(topic))
            self._by_topic[topic] = found
        return found

    def _read(self) -> None:
        before, groups = self._groups, {}
        for record in self._registry.get_all_records(RECORD_KIND):
            known = before.get(record.name)
            if known is not None and known.version == record.version:
                groups[record.name] = known
                continue
            try:
                groups[record.name] = parse_group(record)
            except CorruptData as error:  # of a newer build: this broker leaves it alone
                logger.error("group_unreadable", group=record.name, reason=error.message)
        self._groups, self._by_topic = groups, {}

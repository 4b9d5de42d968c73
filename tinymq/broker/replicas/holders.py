"""Tracks the brokers that hold any replica: a majority of their clocks tells the time for retention (raft/rules)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tinymq.registry.service import RegistryService
from tinymq.registry.state.effects import Effect, PartitionAdded, PartitionDeleted, Reloaded, TopicCreated, TopicDeleted
from tinymq.registry.state.values import QueueRecord


class Holders:
    """Follows the registry from `start` on, and calls `changed` with the set of these brokers whenever it differs."""

    def __init__(self, registry: RegistryService, changed: Callable[[frozenset[int]], None]) -> None:
        self._registry = registry
        self._changed = changed
        self._replicas: Counter[int] = Counter()  # by broker; invariant: above 0
        self._reported: frozenset[int] = frozenset()

    def start(self) -> None:
        self._registry.watch(self._apply)
        self._apply([Reloaded()])

    def _apply(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, TopicCreated):
                self._count(effect.topic.queues, 1)
            elif isinstance(effect, PartitionAdded):
                self._count([effect.queue], 1)
            elif isinstance(effect, TopicDeleted):
                self._count(effect.topic.queues, -1)
            elif isinstance(effect, PartitionDeleted):
                self._count([effect.queue], -1)
            elif isinstance(effect, Reloaded):
                self._replicas.clear()
                self._count([queue for topic in self._registry.get_all_topics() for queue in topic.queues], 1)
        if self._replicas.keys() != self._reported:
            self._reported = frozenset(self._replicas)
            self._changed(self._reported)

    def _count(self, queues: Iterable[QueueRecord], change: int) -> None:
        for queue in queues:
            for replica in queue.replicas:
                self._replicas[replica.broker_id] += change
                if not self._replicas[replica.broker_id]:
                    del self._replicas[replica.broker_id]

"""The applied state of a queue group in a partition that this broker leads."""

from __future__ import annotations

from tinymq.broker.partition.partition import Partition
from tinymq.broker.state.queue_group import QueueGroup


class AppliedState:
    """An AppliedQueue (tinymq/broker/groups/lease_values.py)."""

    def __init__(self, partition: Partition, name: str) -> None:
        self._partition = partition
        self._name = name

    @property
    def group(self) -> QueueGroup:
        return self._partition.state.queue_groups.by_name[self._name]

    @property
    def history(self) -> int:
        """The term of the log's newest recovery."""
        return self._partition.state.epoch_cache.newest_term

    @property
    def position(self) -> int:
        return max(self._partition.state.cursors[self._name].position, self._partition.log_start)

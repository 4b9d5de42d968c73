"""Makes room for records in a bounded partition: its leader moves the log start. capacity.py decides how far."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from tinymq.base.errors import TinymqError
from tinymq.base.topic_config import Retention, TopicConfig
from tinymq.base.types import Position
from tinymq.broker.partition.capacity import Uncommitted, is_nearly_full, room
from tinymq.broker.partition.group_port import RaftGroup
from tinymq.broker.partition.retention import acknowledged_move
from tinymq.broker.partition.soft_leases import SoftLeases
from tinymq.broker.state.staged import Waiting
from tinymq.broker.state.state import PartitionState
from tinymq.proto import partition_pb2 as pb


class BoundedPartition(Protocol):
    """The part of a partition that decides about its room."""

    @property
    def state(self) -> PartitionState: ...
    @property
    def group(self) -> Callable[[], RaftGroup]: ...
    @property
    def config(self) -> Callable[[], TopicConfig]: ...


class WithoutOffsets(Protocol):
    """The batches without offsets."""

    @property
    def waiting_now(self) -> Waiting: ...


class Room:
    """One object per replica; used while it leads."""

    def __init__(
        self,
        partition: BoundedPartition,
        uncommitted: Uncommitted,
        soft_leases: SoftLeases,
        staged: WithoutOffsets,
        propose: Callable[[list[pb.Command]], Position],
    ) -> None:
        self._partition = partition
        self._uncommitted = uncommitted
        self._soft_leases = soft_leases
        self._staged = staged
        self._propose = propose

    def make(self, records: int, size: int) -> None:
        """Move the log start so that a batch of this size fits. Raises BatchTooLarge; QuotaExceeded where the topic
        refuses that."""
        config, state, group = self._partition.config(), self._partition.state, self._partition.group()
        if config.max_records is None and config.max_bytes is None:
            return
        waiting = self._staged.waiting_now
        if config.retention is Retention.ACKNOWLEDGED and is_nearly_full(config, state, waiting):
            # Room that is made by reading counts when the move is applied, because a channel that seeks back in front
            # of the move keeps its records. So the move is proposed before the partition is full.
            with suppress(TinymqError):
                now_us = group.append_time_now_us()
                move = acknowledged_move(state, self._uncommitted, self._soft_leases, now_us)
                if move is not None:
                    self._propose([move])
        now_us = group.append_time_now_us() if len(state.holds) else 0  # only leases of holds need the time
        start = room(config, state, self._uncommitted, records, size, now_us, staged=waiting)
        if start is not None:
            move = pb.Command(move_start=pb.MoveStart(offset=start.offset, reason=pb.MoveStart.CAPACITY))
            self._uncommitted.moved(self._propose([move]).index, start)

"""The state and the log of one partition, as its delayed batches and its transactions use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tinymq.base.config import Limits
from tinymq.base.topic_config import TopicConfig
from tinymq.base.types import Position
from tinymq.broker.partition.group_port import RaftGroup
from tinymq.broker.partition.pending_acks import PendingAcks
from tinymq.broker.state.staged import Totals
from tinymq.broker.state.state import PartitionState
from tinymq.format.entry import NewEntry
from tinymq.proto import partition_pb2 as pb


class Propose(Protocol):
    """Appends an entry, and notes the room of its records: `size` bytes, or those of its payload. Raises as
    `RaftGroup.propose`."""

    def __call__(self, new: NewEntry, size: int | None = None) -> Position: ...


@dataclass(frozen=True, slots=True)
class LogPort:
    """One object per replica."""

    state: PartitionState
    pending_acks: PendingAcks
    group: Callable[[], RaftGroup]
    config: Callable[[], TopicConfig]
    check_leading: Callable[[], None]  # raises unless this replica leads
    check_groups: Callable[[], None]  # raises while the partition takes no records yet
    propose: Propose
    propose_commands: Callable[[list[pb.Command]], Position]  # appends one entry; raises as `RaftGroup.propose`
    make_room: Callable[[int, int], None]  # for so many records of so many bytes; raises as Partition.produce
    limits: Limits
    delayed_totals: Totals  # of the whole broker, as the next one
    staged_totals: Totals

"""The commands by which a leader removes what its topic no longer keeps. Pure: the leader proposes what is returned.

At most one move of the log start is under way: a slow commit must not fill the log with moves to the same offset.
"""

from __future__ import annotations

from tinymq.base.topic_config import Retention, TopicConfig
from tinymq.broker.partition.capacity import Uncommitted
from tinymq.broker.partition.soft_leases import SoftLeases
from tinymq.broker.state.message_ids import MessageIds
from tinymq.broker.state.retention import acknowledged_start, clamped, due_start
from tinymq.broker.state.state import PartitionState
from tinymq.proto import partition_pb2 as pb


def due_move(
    config: TopicConfig,
    state: PartitionState,
    uncommitted: Uncommitted,
    soft_leases: SoftLeases,
    now_us: int,
    expiry_us: int | None,
) -> pb.Command | None:
    """The move of the log start over the records that are due. `expiry_us`: as in `due_start`."""
    if config.retention is Retention.ACKNOWLEDGED:
        return acknowledged_move(state, uncommitted, soft_leases, now_us)
    start = clamped(due_start(config, state, now_us, expiry_us), soft_leases.lowest(now_us))
    if start <= state.log_start or uncommitted.proposed_start(state.applied_index) is not None:
        return None
    return pb.Command(move_start=pb.MoveStart(offset=start, reason=pb.MoveStart.RETENTION))


def acknowledged_move(
    state: PartitionState, uncommitted: Uncommitted, soft_leases: SoftLeases, now_us: int
) -> pb.Command | None:
    """The move of the log start over the records that every cursor has read."""
    upto = clamped(acknowledged_start(state, now_us), soft_leases.lowest(now_us))
    if upto <= state.log_start or uncommitted.proposed_start(state.applied_index) is not None:
        return None
    return pb.Command(remove_acknowledged=pb.RemoveAcknowledged(upto=upto))


def due_forgetting(config: TopicConfig, remembered: MessageIds, now_us: int) -> pb.Command | None:
    """The command that forgets all message ids, once the topic remembers none any more, or none came for a window.

    While ids come, each of them forgets those that are older than the window.
    """
    window_ms = config.dedupe_window_ms or 0
    if not len(remembered) or remembered.newest_us >= now_us - window_ms * 1000:
        return None
    return pb.Command(note_message_id=pb.NoteMessageId(window_ms=window_ms))

"""The commands by which a leader removes what its topic no longer keeps. Pure: the leader proposes what is returned.

At most one move of the log start is under way: a slow commit must not fill the log with moves to the same offset.
"""

from __future__ import annotations

from tinymq.base.topic_config import Retention, TopicConfig
from tinymq.broker.duplicates.message_ids import COPY_WINDOW_MS
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


def due_forgetting(config: TopicConfig, state: PartitionState, now_us: int) -> list[pb.Command]:
    """The commands that forget all ids of a kind: when the topic does not deduplicate any more, or when a whole window
    has passed without a new id.

    Otherwise no command is needed, because each new id makes the replicas forget the ids older than the window.
    """
    due = []
    window_ms = config.dedupe_window_ms or 0
    if _is_over(state.message_ids, window_ms, now_us):
        due.append(pb.Command(note_message_id=pb.NoteMessageId(window_ms=window_ms)))
    if _is_over(state.copy_ids, COPY_WINDOW_MS, now_us):
        due.append(pb.Command(note_copy=pb.NoteMessageId(window_ms=COPY_WINDOW_MS)))
    return due


def _is_over(remembered: MessageIds, window_ms: int, now_us: int) -> bool:
    return len(remembered) > 0 and remembered.newest_us < now_us - window_ms * 1000

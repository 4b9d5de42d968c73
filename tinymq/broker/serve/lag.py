"""How far a channel or a group is behind the end of its partition. Pure."""

from __future__ import annotations

from tinymq.broker.state.state import PartitionState


def lag_of(state: PartitionState, name: str, log_start: int) -> int:
    """The committed records that the channel or group of this name has still to read, or to settle.

    For a name without a cursor, all kept records.

    A queue group settles records out of order: those above its cursor that it has settled do not count.
    """
    cursor = state.cursors.get(name)
    position = log_start if cursor is None else max(cursor.position, log_start)
    queue = state.queue_groups.by_name.get(name)
    settled = queue.settled.count_from(position) if queue is not None else 0
    return max(0, state.high_watermark - position - settled)

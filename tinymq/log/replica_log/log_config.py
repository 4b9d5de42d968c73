"""How one group's log is stored: in memory or on disk, when it is synced, and when a segment is full."""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.base.config import GIB, Limits
from tinymq.base.topic_config import SEGMENT_BYTES_MIN, Storage, TopicConfig

NEVER_US = 1 << 62
SEGMENTS_KEPT_MIN = 8  # only whole segments are removed, so a bound on bytes is met to one eighth of it


@dataclass(frozen=True, slots=True)
class LogConfig:
    """`storage` never changes. Everything else may change while the log is open."""

    storage: Storage = Storage.DISK
    sync_interval_s: float = 0.0  # 0: an entry is synced before it is acknowledged; else at most this long after it
    segment_bytes: int = GIB  # a segment of this size is full; Limits.segment_bytes is an upper bound of it
    segment_us: int = NEVER_US  # a segment takes no entry that is appended this long after its first one

    @property
    def takes_risks(self) -> bool:
        """Whether the end of the process, or a power cut, may lose acknowledged entries."""
        return self.storage is Storage.MEMORY or self.sync_interval_s > 0


DISK = LogConfig()


def log_config(config: TopicConfig, limits: Limits) -> LogConfig:
    """The settings of a topic as they concern the logs of its partitions."""
    segment_bytes = min(config.segment_bytes, limits.segment_bytes)
    for bound in (config.retention_bytes, config.max_bytes):
        if bound is not None:
            segment_bytes = min(segment_bytes, max(SEGMENT_BYTES_MIN, bound // SEGMENTS_KEPT_MIN))
    segment_ms = config.segment_ms if config.retention_ms is None else min(config.segment_ms, config.retention_ms)
    return LogConfig(config.storage, config.sync_interval_ms / 1000, segment_bytes, segment_ms * 1000)

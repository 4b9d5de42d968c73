"""How one group's log is kept: where it lies, when it is synced, when its segments are full."""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.base.config import GIB, Limits
from tinymq.base.topic_config import SEGMENT_BYTES_MIN, Storage, TopicConfig

NEVER_US = 1 << 62
SEGMENTS_KEPT_MIN = 8  # only whole segments are removed: a bound on what is kept is met to this part of it


@dataclass(frozen=True, slots=True)
class LogConfig:
    """`storage` is for good; all else may change while the log is open."""

    storage: Storage = Storage.DISK
    sync_interval_s: float = 0.0  # 0: synced before it is acknowledged; else a sync begins at most this long after it
    segment_bytes: int = GIB  # of which no more than Limits.segment_bytes counts
    segment_us: int = NEVER_US  # from the append time of a segment's first entry to that of the next segment's

    @property
    def takes_risks(self) -> bool:
        """Are entries acknowledged that the end of the process, or a power cut, may lose?"""
        return self.storage is Storage.MEMORY or self.sync_interval_s > 0


DISK = LogConfig()


def log_config(config: TopicConfig, limits: Limits) -> LogConfig:
    """What a topic's settings mean for the logs of its partitions."""
    segment_bytes = min(config.segment_bytes, limits.segment_bytes)
    for bound in (config.retention_bytes, config.max_bytes):
        if bound is not None:
            segment_bytes = min(segment_bytes, max(SEGMENT_BYTES_MIN, bound // SEGMENTS_KEPT_MIN))
    segment_ms = config.segment_ms if config.retention_ms is None else min(config.segment_ms, config.retention_ms)
    return LogConfig(config.storage, config.sync_interval_ms / 1000, segment_bytes, segment_ms * 1000)

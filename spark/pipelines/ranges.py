"""Offsets that a stretch of time may lie at, partition by partition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tinymq.client import Client


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition: from start up to, and not including, end."""

    partition: int
    start: int
    end: int  # invariant: >= start

    @property
    def records(self) -> int:
        return self.end - self.start


def offsets_of(client: Client, topic: str, since: datetime, until: datetime | None) -> list[Range]:
    """From the first record at or after `since` up to the first at or after `until`; without it, up to the end.

    All records before such a start are older than `since`, whatever their order. Records behind such an end may be
    older than `until`: it is for topics whose times rise in each partition. Raises UnknownTopic.
    """
    starts = client.admin.find_offsets(topic, since)
    ends = client.admin.find_offsets(topic, until if until is not None else "latest")
    return [Range(p, starts[p], max(starts[p], ends.get(p, starts[p]))) for p in sorted(starts)]


def ends_of(client: Client, topic: str) -> dict[int, int]:
    """The offset after the last record, for each partition. Raises UnknownTopic."""
    return {partition: found.high_watermark for partition, found in client.admin.offsets(topic).items()}


def told(topic: str, offsets: Mapping[int, int]) -> str:
    """Offsets as the options startingOffsets and endingOffsets take them."""
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(offsets.items())}})

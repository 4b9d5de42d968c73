"""Finds the offsets of a stretch of time in each partition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tinymq.client import Client


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """The offsets of one partition from `start` up to, and not including, `end`."""

    partition: int
    start: int
    end: int  # invariant: >= start

    @property
    def records(self) -> int:
        return self.end - self.start


def offsets_of(client: Client, topic: str, since: datetime, until: datetime | None) -> list[OffsetSpan]:
    """Return the ranges from the first record at or after `since` to the first at or after `until`, or to the end.

    All records before such a start are older than `since`, whatever their order. Records after such an end may be older
    than `until`, so use `until` only if times rise in each partition. Raises UnknownTopic.
    """
    starts = client.admin.find_offsets(topic, since)
    ends = client.admin.find_offsets(topic, until if until is not None else "latest")
    return [OffsetSpan(p, starts[p], max(starts[p], ends.get(p, starts[p]))) for p in sorted(starts)]


def ends_of(client: Client, topic: str) -> dict[int, int]:
    """Return the offset after the last record of each partition. Raises UnknownTopic."""
    return {partition: found.high_watermark for partition, found in client.admin.offsets(topic).items()}


def offsets_json(topic: str, offsets: Mapping[int, int]) -> str:
    """Return the offsets in the form of the options startingOffsets and endingOffsets."""
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(offsets.items())}})

"""What a batch must be before its partition looks at it. Pure: no state of the broker's is read here.

Everything that costs more than a glance is done here, before the one synchronous call that decides and
appends (tinymq/broker/partition.py). Nothing refused here changes anything on disk.
"""

from __future__ import annotations

from tinymq.batch import CheckedBatch, check_batch
from tinymq.config import KIB, Limits
from tinymq.entry import crc32c
from tinymq.errors import BatchTooLarge, InvalidBatch, InvalidName

HEAVY_BYTES = 256 * KIB
"""Packed batches of this size take long enough to unpack that the loop had better do something else meanwhile."""

_CODEC_BYTE = 1  # drawn in tinymq/batch.py


def admit(payload: bytes, payload_crc: int, limits: Limits) -> CheckedBatch:
    """Every check that needs the bytes alone. Raises InvalidBatch, BatchTooLarge."""
    if len(payload) > limits.batch_bytes_max:
        raise BatchTooLarge(f"batch of {len(payload)} bytes; batch_bytes_max is {limits.batch_bytes_max}")
    if crc32c(payload) != payload_crc:
        raise InvalidBatch(
            "the batch's checksum does not match its bytes", hint="it was damaged on its way: send again"
        )
    return check_batch(payload, limits)


def is_heavy(payload: bytes) -> bool:
    """Is checking `payload` better done away from the loop?"""
    return len(payload) >= HEAVY_BYTES and payload[_CODEC_BYTE] != 0


def check_topic_id(topic_id: bytes) -> None:
    """Raises InvalidName for bytes that cannot name a user's topic."""
    if len(topic_id) != 16 or not any(topic_id):
        raise InvalidName("a topic id is 16 bytes, not all zero", hint="take it from a metadata reply")

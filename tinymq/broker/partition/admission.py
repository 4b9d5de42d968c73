"""Checks of a batch that need only its bytes. Pure: they read no state of the broker.

All expensive checks are here, before the one synchronous call that decides and appends
(tinymq/broker/partition/partition.py). A batch that is refused here has changed nothing.
"""

from __future__ import annotations

from tinymq.base.config import KIB, Limits
from tinymq.base.errors import BatchTooLarge, InvalidBatch, InvalidName
from tinymq.format.batch import CheckedBatch, Declared, check_batch, read_declared
from tinymq.format.entry import crc32c

LIGHT_UNPACKED_BYTES_MAX = 256 * KIB  # a compressed batch up to this is validated on the loop: 0.3 ms
LIGHT_VALUES_MAX = 32 * 1024  # a batch with up to so many records and headers is validated on the loop: about 1 ms
PACKED_COST = 4  # cost of a compressed batch on the loop, in uncompressed ones (tinymq/broker/serve/slices.py)


def declare(payload: bytes, payload_crc: int, limits: Limits) -> Declared:
    """Read the metadata of a batch without unpacking it. Raises InvalidBatch, BatchTooLarge."""
    try:
        return read_declared(payload, limits)
    except (InvalidBatch, BatchTooLarge):
        if len(payload) <= limits.batch_bytes_max:
            _check_crc(payload, payload_crc)  # a batch that was damaged on its way gets that error instead
        raise


def admit(payload: bytes, payload_crc: int, limits: Limits, declared: Declared | None = None) -> CheckedBatch:
    """Make every check that needs only the bytes. `declared`: the result of `declare`, if the caller has it already.

    Raises InvalidBatch, BatchTooLarge.
    """
    declared = declared or declare(payload, payload_crc, limits)
    _check_crc(payload, payload_crc)
    return check_batch(payload, limits, declared)


def _check_crc(payload: bytes, payload_crc: int) -> None:
    if crc32c(payload) != payload_crc:
        raise InvalidBatch(
            "the batch's checksum does not match its bytes", hint="it was damaged on its way: send again"
        )


def is_heavy(declared: Declared, payload_bytes: int) -> bool:
    """Whether validating this batch takes so long that it has to run in a thread.

    Arrow's metadata decides. The header's codec byte is only informative, and a few kilobytes may unpack to
    batch_uncompressed_bytes_max.
    """
    layout = declared.layout
    if layout.values > LIGHT_VALUES_MAX:
        return True
    return layout.compressed and max(layout.unpacked_bytes, payload_bytes) > LIGHT_UNPACKED_BYTES_MAX


def cost_of(declared: Declared) -> int:
    """The cost of a batch that is not heavy on the loop, in units of one small batch."""
    return PACKED_COST if declared.layout.compressed else 1


def check_topic_id(topic_id: bytes) -> None:
    """Raises InvalidName for bytes that cannot name a user's topic."""
    if len(topic_id) != 16 or not any(topic_id):
        raise InvalidName("a topic id is 16 bytes, not all zero", hint="take it from a metadata reply")

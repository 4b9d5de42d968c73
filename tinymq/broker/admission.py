"""What a batch must be before its partition looks at it. Pure: no state of the broker's is read here.

Everything that costs more than a glance is done here, before the one synchronous call that decides and
appends (tinymq/broker/partition.py). Nothing refused here changes anything on disk.
"""

from __future__ import annotations

from tinymq.batch import CheckedBatch, Declared, check_batch, read_declared
from tinymq.config import KIB, Limits
from tinymq.entry import crc32c
from tinymq.errors import BatchTooLarge, InvalidBatch, InvalidName

LIGHT_UNPACKED_BYTES_MAX = 256 * KIB  # of a compressed batch that is validated on the loop: a third of a millisecond
LIGHT_VALUES_MAX = 32 * 1024  # records and headers of a batch that is validated on the loop: about a millisecond
PACKED_COST = 4  # of a compressed batch on the loop, as many as of others (tinymq/broker/slices.py)


def declare(payload: bytes, payload_crc: int, limits: Limits) -> Declared:
    """What a batch says about itself; unpacks nothing. Raises InvalidBatch, BatchTooLarge."""
    try:
        return read_declared(payload, limits)
    except (InvalidBatch, BatchTooLarge):
        if len(payload) <= limits.batch_bytes_max:
            _check_crc(payload, payload_crc)  # what was damaged on its way says nothing about the sender
        raise


def admit(payload: bytes, payload_crc: int, limits: Limits, declared: Declared | None = None) -> CheckedBatch:
    """Every check that needs the bytes alone. `declared`: what `declare` has found, if it was called already.

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
    """Does validating this batch take so long that the loop has to do something else meanwhile?

    Decided by what Arrow's metadata declares. The header's codec byte is informative, and a few kilobytes may unpack to
    batch_uncompressed_bytes_max.
    """
    layout = declared.layout
    if layout.values > LIGHT_VALUES_MAX:
        return True
    return layout.compressed and max(layout.unpacked_bytes, payload_bytes) > LIGHT_UNPACKED_BYTES_MAX


def cost_of(declared: Declared) -> int:
    """What a batch costs the loop that is not heavy, in the cost of one small batch."""
    return PACKED_COST if declared.layout.compressed else 1


def check_topic_id(topic_id: bytes) -> None:
    """Raises InvalidName for bytes that cannot name a user's topic."""
    if len(topic_id) != 16 or not any(topic_id):
        raise InvalidName("a topic id is 16 bytes, not all zero", hint="take it from a metadata reply")

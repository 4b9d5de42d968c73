"""Small real batches."""

from __future__ import annotations

from tinymq.base.config import Limits
from tinymq.format.batch import CheckedBatch, Codec, check_batch, encode, pack_batch
from tinymq.format.entry import crc32c

TIME_US = 1_600_000_000_000_000


def payload(
    count: int = 1,
    *,
    producer: int = 0,
    epoch: int = 0,
    sequence: int = -1,
    value: bytes = b"v",
    time_us: int = TIME_US,
    codec: Codec = Codec.NONE,
) -> bytes:
    """`count` records with the timestamps `time_us`, `time_us + 1`, ..."""
    values = [value + b"%d" % i for i in range(count)]
    message = encode(None, values, None, [time_us + i for i in range(count)], codec)
    return pack_batch(
        message,
        record_count=count,
        codec=codec,
        producer_id=producer,
        producer_epoch=epoch,
        first_sequence=sequence if producer else -1,
    )


def checked(data: bytes) -> tuple[CheckedBatch, bytes, int]:
    """What `Partition.produce` takes."""
    return check_batch(data, Limits()), data, crc32c(data)

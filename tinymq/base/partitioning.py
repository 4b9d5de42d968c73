"""Where a key belongs: the same in every client, and in a broker that is handed single messages. Pure.

CRC-32 (zlib's, IEEE) of the key modulo the number of partitions: what librdkafka's default, `consistent_random`, does,
so that both kinds of client put a key in the same place. An empty key counts as none, there and here.
"""

from __future__ import annotations

from zlib import crc32


def keyed(key: bytes, partitions: int) -> int:
    """The place of `key` among `partitions`, in the order of their numbers: the same for good, everywhere."""
    return crc32(key) % partitions

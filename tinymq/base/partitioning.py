"""The partition of a key: the same in every client, and in a broker that accepts single messages. Pure.

It is the CRC-32 (zlib's, IEEE) of the key modulo the number of partitions, as with librdkafka's default,
`consistent_random`, so that both kinds of client put a key in the same partition. Both treat an empty key as none.
"""

from __future__ import annotations

from zlib import crc32


def keyed(key: bytes, partitions: int) -> int:
    """The number of the partition of `key`, if there are `partitions` of them. It is the same everywhere, for good."""
    return crc32(key) % partitions

"""The messages of the streams in the data directory of a stopped nats-server, read without NATS.

Made for 2.14, uncompressed and unencrypted, as these runs set it up (filestore.go says how it writes):

    DATA/jetstream/$G/streams/STREAM/msgs/N.blk     records one after another, blocks in the order of N

    # | length u32, bit 31: has headers | sequence u64, bit 63: erased, bit 62: tombstone | time i64 |
    # | subject length u16 | subject | [ header length u32 | headers ] | value | checksum 8 bytes |    little-endian

Checksums are not looked at: a value tells by itself whether it is unchanged (records.py).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinymq_chaos.history import StoredEntry
from tinymq_chaos.records import CHANGED, name_in

_HEAD = struct.Struct("<IQqH")
_LENGTH = struct.Struct("<I")
_CHECKSUM_BYTES = 8
_HEADERS = 1 << 31
_ERASED, _TOMBSTONE = 1 << 63, 1 << 62


@dataclass(frozen=True, slots=True)
class Message:
    sequence: int
    value: bytes


def blocks(data: Path, stream: str) -> list[Path]:
    """Return a stream's files of messages, oldest first."""
    folder = data / "jetstream" / "$G" / "streams" / stream / "msgs"
    return sorted(folder.glob("*.blk"), key=lambda path: int(path.stem))


def stored(data: Path, stream: str) -> tuple[StoredEntry, ...]:
    """Return entries for the checkers.

    NATS has no hash chain. In its place, each entry has a CRC of its message and of the CRC before it, so that replicas
    differ where their messages do.
    """
    found: list[StoredEntry] = []
    chain = 0
    for message in messages(data, stream):
        before, chain = chain, zlib.crc32(b"%d %b" % (message.sequence, message.value), chain)
        offset = message.sequence - 1
        found.append(StoredEntry(message.sequence, 0, offset, before, chain, (name_in(message.value),)))
    return tuple(found)


def messages(data: Path, stream: str) -> Iterator[Message]:
    """Return the stored messages in order, without removed ones and the records that removed them.

    An invalid record ends its block, and is returned as a value that no producer sent.
    """
    removed: set[int] = set()
    kept: list[Message] = []
    for path in blocks(data, stream):
        for sequence, value in _records(path.read_bytes()):
            if value is None:
                removed.add(sequence)
            else:
                kept.append(Message(sequence, value))
    yield from (message for message in kept if message.sequence not in removed)


def _records(block: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Yield (sequence, value); None: this sequence was removed."""
    at, last = 0, 0
    while at + _HEAD.size <= len(block):
        length, sequence, _, subject = _HEAD.unpack_from(block, at)
        headers, length = length & _HEADERS, length & ~_HEADERS
        body = at + _HEAD.size + subject
        if headers and body + _LENGTH.size <= len(block):
            body += _LENGTH.size + _LENGTH.unpack_from(block, body)[0]
        end = at + length - _CHECKSUM_BYTES
        if length < _HEAD.size + _CHECKSUM_BYTES or at + length > len(block) or body > end:
            yield last + 1, f"{CHANGED}no record at byte {at}".encode()
            return
        number = sequence & ~(_ERASED | _TOMBSTONE)
        if sequence & (_ERASED | _TOMBSTONE):
            yield number, None
        else:
            last = number
            yield number, block[body:end]
        at += length

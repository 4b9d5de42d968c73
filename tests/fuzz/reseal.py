"""Repairs checksums after damage, so that the code behind them is tested too. Each function accepts any bytes, and
fixes the checksums of everything that looks like its format. The result never comes from a disk: wrong bytes under a
valid checksum.
"""

from __future__ import annotations

import json

from tinymq.format.entry import HEADER_SIZE, crc32c

SEGMENT_HEADER_SIZE = 64


def entries(data: bytes, start: int = 0, chained: bool = True) -> bytes:
    """Frames from `start` on: payload and header checksums, and each header chained to the one before."""
    fixed = bytearray(data)
    at, before = start, 0
    while at + HEADER_SIZE <= len(fixed):
        length = int.from_bytes(fixed[at + 12 : at + 16], "little")
        if at + HEADER_SIZE + length > len(fixed):
            length = len(fixed) - at - HEADER_SIZE
        fixed[at + 4 : at + 8] = crc32c(bytes(fixed[at + HEADER_SIZE : at + HEADER_SIZE + length])).to_bytes(
            4, "little"
        )
        if chained and at > start:
            fixed[at + 8 : at + 12] = before.to_bytes(4, "little")
        before = crc32c(bytes(fixed[at + 4 : at + HEADER_SIZE]))
        fixed[at : at + 4] = before.to_bytes(4, "little")
        at += HEADER_SIZE + length
    return bytes(fixed)


def at_twelve(data: bytes, end: int | None = None) -> bytes:
    """A checksum in bytes 12 to 16 over all others up to `end`: indexes, states, segment headers."""
    whole = data[:end]
    if len(whole) < 16:
        return data
    crc = crc32c(whole[:12] + whole[16:])
    return data[:12] + crc.to_bytes(4, "little") + data[16:]


def segment(data: bytes) -> bytes:
    """A segment's header, and its frames."""
    return entries(at_twelve(data, SEGMENT_HEADER_SIZE), SEGMENT_HEADER_SIZE)


def index(data: bytes) -> bytes:
    """An index, and the frame header within."""
    fixed = bytearray(data)
    if len(fixed) >= 112:
        fixed[48:52] = crc32c(bytes(fixed[52:112])).to_bytes(4, "little")
    return at_twelve(bytes(fixed))


def rounds(data: bytes) -> bytes:
    """A file of records (marks, hard state) in a row, whatever their content."""
    fixed = bytearray(data)
    at = 0
    while at + 24 <= len(fixed):
        length = int.from_bytes(fixed[at + 4 : at + 8], "little")
        if at + 24 + length > len(fixed) or fixed[at + 8 : at + 12] == bytes(4):
            break
        fixed[at : at + 4] = crc32c(bytes(fixed[at + 4 : at + 24 + length])).to_bytes(4, "little")
        at += (24 + length + 7) // 8 * 8
    return bytes(fixed)


def leading(data: bytes) -> bytes:
    """A checksum in the first four bytes over all that follows: applied states, registry dumps."""
    return crc32c(data[4:]).to_bytes(4, "little") + data[4:]


def identity(data: bytes) -> bytes:
    """broker.json: its own checksum, when it is still an object."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(fields, dict):
        return data
    fields.pop("crc32c", None)
    packed = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**fields, "crc32c": crc32c(packed)}).encode()

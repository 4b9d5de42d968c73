"""A dead letter as the batch of one record that is stored. Pure."""

from __future__ import annotations

from tinymq.base.config import Limits
from tinymq.broker.dead_letters.letter import CUT, LOST, TRACEBACK, strip, unpack_headers
from tinymq.broker.serve.messages import StoredMessage, pack_record

Pairs = list[tuple[str, bytes | None]]


def letter_batch(record: StoredMessage, packed: bytes, limits: Limits) -> bytes:
    """The copy of a record, with the packed headers of its burial.

    A record of the maximum size has no room for more headers. If the copy would be too large, this leaves out parts of
    it, the least important first, and names them in the header CUT. Otherwise the record could never be buried.
    """
    own: Pairs = list(unpack_headers(packed))
    original = strip(record.headers)
    bare: Pairs = [(key, value) for key, value in own if key != TRACEBACK]
    tries: list[tuple[bytes | None, bytes | None, Pairs]] = [
        (record.key, record.value, original + own),
        (record.key, record.value, [*original, *bare, (CUT, b"traceback")]),
        (record.key, record.value, [*bare, (CUT, b"traceback, headers")]),
        (record.key, None, [*own, (CUT, b"headers, value")]),
    ]
    for key, value, headers in tries:
        size = len(key or b"") + len(value or b"") + sum(len(name.encode()) + len(at or b"") for name, at in headers)
        batch = pack_record(key, value, headers, record.timestamp_us)
        if size <= limits.record_bytes_max and len(batch) <= limits.batch_bytes_max:
            return batch
    return pack_record(None, None, [*own, (CUT, b"headers, key, value")], record.timestamp_us)


def lost_letter(packed: bytes, timestamp_us: int) -> bytes:
    """The copy of a record that retention has removed: its headers alone."""
    return pack_record(None, None, [*unpack_headers(packed), (LOST, b"true")], timestamp_us)

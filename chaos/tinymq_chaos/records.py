"""Records that name themselves: a value begins with its record's name, and its other bytes follow from the name.

So a history holds names alone, and every reader finds a changed record.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

VALUE_BYTES_MIN = 48  # every name fits
CHANGED = "!"  # the first character of a name that no producer gives: the value does not match its name


def make_value(name: str, size: int = VALUE_BYTES_MIN) -> bytes:
    """Return a value of at least `size` bytes for the record `name`, which has no spaces and does not begin with
    CHANGED.
    """
    assert " " not in name
    head = f"{name} {size} ".encode()
    filler = b"%08x" % zlib.crc32(head)
    missing = max(len(filler), size - len(head))
    return head + (filler * (missing // len(filler) + 1))[:missing]


@lru_cache(maxsize=1 << 16)  # several readers read a record, from every replica
def name_in(value: bytes | None) -> str:
    """Return the record's name; or CHANGED and the first bytes, if `make_value` did not make this value."""
    if value is not None:
        name, _, rest = value.partition(b" ")
        size, _, _ = rest.partition(b" ")
        if size.isdigit() and len(size) < 9 and name.isascii():
            text = name.decode()
            if make_value(text, int(size)) == value:
                return text
    return f"{CHANGED}{(value or b'')[:32]!r}"

"""Records that tell who they are: a value names its record, and its other bytes follow from the name.

So a history holds names alone, and a record that came back changed shows itself where it is read.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

VALUE_BYTES_MIN = 48  # any name fits
CHANGED = "!"  # what begins a name that no producer gives: the value was not what its name says


def make_value(name: str, size: int = VALUE_BYTES_MIN) -> bytes:
    """A value of at least `size` bytes for the record `name`, which has no spaces and does not begin with CHANGED."""
    assert " " not in name
    head = f"{name} {size} ".encode()
    filler = b"%08x" % zlib.crc32(head)
    missing = max(len(filler), size - len(head))
    return head + (filler * (missing // len(filler) + 1))[:missing]


@lru_cache(maxsize=1 << 16)  # a record is read by several readers, and from every replica
def name_in(value: bytes | None) -> str:
    """The name of the record; CHANGED and the first bytes when this is not what `make_value` made."""
    if value is not None:
        name, _, rest = value.partition(b" ")
        size, _, _ = rest.partition(b" ")
        if size.isdigit() and len(size) < 9 and name.isascii():
            text = name.decode()
            if make_value(text, int(size)) == value:
                return text
    return f"{CHANGED}{(value or b'')[:32]!r}"

r"""Escapes, in both directions: hostile characters made visible, and \t in an option made a tab. Pure.

A terminal obeys control characters wherever they come from: a record, a broker's error, a log. ESC and the C1
controls begin sequences that move the cursor, write the clipboard or answer as if the user had typed; a newline
forges a line; bidirectional controls show text in another order than it has. `visible` writes each of them as Python
writes it in a string: \x1b, \n, \u202e. It leaves the backslash as it is, for text with escapes is for reading.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

from tinymq.errors import InvalidRequest

# Cc: C0, DEL and C1. Cf: bidirectional and zero-width. Cs: halves of surrogate pairs. Zl, Zp: line separators.
HOSTILE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
KNOWN = r"known: \n \t \r \0 \xNN \\"
_MEANS = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


def visible(text: str, keep: str = "") -> str:
    """`text` on one line, with every hostile character escaped, but for those in `keep`."""
    if text.isprintable():
        return text
    return "".join(_shown(c) if unicodedata.category(c) in HOSTILE and c not in keep else c for c in text)


def visible_bytes(data: bytes) -> bytes:
    r"""Bytes of a record for a terminal: UTF-8 with hostile characters escaped, tabs as they are, and what is no
    UTF-8 as \xNN."""
    return visible(data.decode(errors="backslashreplace"), keep="\t").encode()


def visible_json(value: Any, *, indent: int | None = None, ascii_only: bool = True) -> str:
    r"""`value` as JSON without a hostile character: the standard asks for \u escapes of C0 alone, this adds the others.
    Lines are broken by `indent` only."""
    text = json.dumps(value, indent=indent, default=str, ensure_ascii=ascii_only)
    if text.isprintable():
        return text
    return "".join(_json_escaped(c) if unicodedata.category(c) in HOSTILE and c != "\n" else c for c in text)


def unescape(text: str) -> list[bytes | str]:
    r"""Split `text` into plain characters (str) and what its escapes stand for (bytes): \n \t \r \0 \xNN \\.

    Raises InvalidRequest for another escape.
    """
    pieces: list[bytes | str] = []
    place = 0
    while place < len(text):
        character = text[place]
        place += 1
        if character != "\\":
            pieces.append(character)
            continue
        name = text[place : place + 1]
        place += 1
        digits = text[place : place + 2]
        if name == "x" and len(digits) == 2 and _HEXADECIMAL.issuperset(digits):
            pieces.append(bytes.fromhex(digits))
            place += 2
        elif name in _MEANS:
            pieces.append(_MEANS[name])
        else:
            raise InvalidRequest(f"unknown escape \\{name}{digits if name == 'x' else ''}", hint=KNOWN)
    return pieces


def unescaped(text: str) -> bytes:
    """The bytes that `text` stands for. Raises InvalidRequest for an unknown escape."""
    pieces = unescape(text)
    return b"".join(piece if isinstance(piece, bytes) else piece.encode(errors="surrogateescape") for piece in pieces)


def _shown(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _json_escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) > 0x7F else f"\\u{ord(character):04x}"

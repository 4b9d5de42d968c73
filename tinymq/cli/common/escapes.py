r"""Escapes in both directions: make hostile characters visible, and turn \t in an option into a tab. Pure.

A terminal obeys control characters wherever they come from: a record, a broker's error, a log. ESC and the C1 controls
begin sequences that move the cursor, write the clipboard or answer as if the user had typed; a newline can forge a
line; bidirectional controls change the order in which text is shown. `visible` writes each of these characters as a
Python string literal does: \x1b, \n, \u202e. It does not escape the backslash, because its output is for people to read
and is not parsed.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

from tinymq.base.errors import InvalidRequest

# Cc: C0, DEL and C1. Cf: bidirectional and zero-width. Cs: halves of surrogate pairs. Zl, Zp: line separators.
HOSTILE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
KNOWN = r"known: \n \t \r \0 \xNN \\"
_MEANS = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


def visible(text: str, keep: str = "") -> str:
    """Return `text` on one line, with every hostile character escaped except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in HOSTILE and c not in keep else c for c in text)


def visible_bytes(data: bytes) -> bytes:
    r"""Return a record's bytes for a terminal: hostile characters are escaped, tabs are kept, and bytes that are not
    UTF-8 become \xNN."""
    return visible(data.decode(errors="backslashreplace"), keep="\t").encode()


def visible_json(value: Any, *, indent: int | None = None, ascii_only: bool = True) -> str:
    r"""Return `value` as JSON without a hostile character. The JSON standard requires \u escapes of C0 only; this
    function also escapes the others. Only `indent` breaks lines."""
    text = json.dumps(value, indent=indent, default=str, ensure_ascii=ascii_only)
    if text.isprintable():
        return text
    return "".join(_json_escaped(c) if unicodedata.category(c) in HOSTILE and c != "\n" else c for c in text)


def unescape(text: str) -> list[bytes | str]:
    r"""Split `text` into plain characters (str) and the bytes that its escapes stand for: \n \t \r \0 \xNN \\.

    Raises InvalidRequest for any other escape.
    """
    pieces: list[bytes | str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            pieces.append(character)
            continue
        name = text[position : position + 1]
        position += 1
        digits = text[position : position + 2]
        if name == "x" and len(digits) == 2 and _HEXADECIMAL.issuperset(digits):
            pieces.append(bytes.fromhex(digits))
            position += 2
        elif name in _MEANS:
            pieces.append(_MEANS[name])
        else:
            raise InvalidRequest(f"unknown escape \\{name}{digits if name == 'x' else ''}", hint=KNOWN)
    return pieces


def unescaped(text: str) -> bytes:
    """Return the bytes that `text` stands for. Raises InvalidRequest for an unknown escape."""
    pieces = unescape(text)
    return b"".join(piece if isinstance(piece, bytes) else piece.encode(errors="surrogateescape") for piece in pieces)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _json_escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) > 0x7F else f"\\u{ord(character):04x}"

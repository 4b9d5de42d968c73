"""Reads the first JSON document of a text into a tree, as Jackson does for Spark's from_json. Pure.

    null, true, false   None, True, False
    "text", 'text'      str
    1, -7               Whole, the digits as they stand (a column's type decides what they mean)
    1.5, 1e3, NaN       Real, likewise
    [1, 2]              list
    {"a": 1, "a": 2}    Object: pairs in order, duplicates kept

With Spark's settings Jackson accepts more than JSON: text in single quotes, NaN and the infinities. It ignores the text
after the document. Python's own scanner, which is written in C, reads plain JSON. This module reads the texts that the
scanner refuses.
"""

from __future__ import annotations

import json
import re
from json.decoder import JSONDecodeError

DEPTH_MAX = 1000
"""How deeply arrays and objects may be nested: the limit of Jackson's StreamReadConstraints."""


class Malformed(ValueError):
    """The text is not JSON, or a value does not have its column's type. The message says where and why."""


class IntegerText(str):
    """A number without a fraction or an exponent, as it is written."""

    __slots__ = ()


class DecimalText(str):
    """Any other number, as it is written: 1.50, 1e3, NaN, -Infinity."""

    __slots__ = ()


class Object(list[tuple[str, object]]):
    """An object's pairs."""

    __slots__ = ()


class NoDocument:
    """There is no document: the text is empty, or is white space."""


NO_DOCUMENT = NoDocument()

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"true|false|null|NaN|[+-]?Infinity|[+-]INF")
_NAME_GOES_ON = re.compile(r"[\w$]")
_WORDS = {"true": True, "false": False, "null": None}
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"[^'\\\x00-\x1f]*")}
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/", "'": "'"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_QUICK = json.JSONDecoder(
    parse_int=IntegerText, parse_float=DecimalText, parse_constant=DecimalText, object_pairs_hook=Object
)


def first_document(text: str) -> object:
    """Return the tree of the first document in `text`, or NOTHING. Raises Malformed."""
    start = _skip(text, 0)
    if start == len(text):
        return NO_DOCUMENT
    if len(text) > 2 * DEPTH_MAX and text.count("{") + text.count("[") > DEPTH_MAX:
        return _Scan(text, start).document()
    try:
        return _QUICK.raw_decode(text, start)[0]
    except (JSONDecodeError, RecursionError):  # beyond JSON's grammar, or beyond Python's stack
        return _Scan(text, start).document()


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None, "it matches nothing, too"
    return match.end()


class _Scan:
    """Scans one text from a position on. Open containers are on a stack, so nested ones need no recursion."""

    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.at = position
        self.open: list[Object | list[object]] = []  # the containers around `at`, the outermost first
        self.names: list[str] = []  # the name of the member that each open container will be; "" in an array

    def document(self) -> object:
        """Return the value at this position. Raises Malformed."""
        while True:
            value = self._value()
            while True:  # the value is complete: add it to its container, which the next character may complete too
                if not self.open:
                    return value
                inside = self.open[-1]
                name = self.names.pop()
                if isinstance(inside, Object):
                    inside.append((name, value))
                else:
                    inside.append(value)
                end = "}" if isinstance(inside, Object) else "]"
                sign = self._next()
                if sign == ",":
                    self.names.append(self._name() if end == "}" else "")
                    break
                if sign != end:
                    raise self._malformed(f"{sign!r} where ',' or {end!r} is expected")
                value = self.open.pop()

    def _value(self) -> object:
        """Read a scalar or an empty container. Opens the containers around it on the way."""
        while True:
            sign = self._next()
            if sign not in "{[":
                return self._scalar(sign)
            if len(self.open) == DEPTH_MAX:
                raise self._malformed(f"more than {DEPTH_MAX} nested arrays and objects")
            inside: Object | list[object] = Object() if sign == "{" else []
            end = "}" if sign == "{" else "]"
            self.at = _skip(self.text, self.at)
            if self.text.startswith(end, self.at):
                self.at += 1
                return inside
            self.open.append(inside)
            self.names.append(self._name() if sign == "{" else "")

    def _name(self) -> str:
        sign = self._next()
        if sign not in "\"'":
            raise self._malformed(f"{sign!r} where a name in quotes is expected")
        name = self._text(sign)
        sign = self._next()
        if sign != ":":
            raise self._malformed(f"{sign!r} where ':' is expected")
        return name

    def _scalar(self, sign: str) -> object:
        if sign in "\"'":
            return self._text(sign)
        self.at -= 1
        number = _NUMBER.match(self.text, self.at)
        if number is not None:
            self.at = number.end()
            whole = number[1] is None and number[2] is None
            return IntegerText(number[0]) if whole else DecimalText(number[0])
        word = _WORD.match(self.text, self.at)
        if word is None or _NAME_GOES_ON.match(self.text, word.end()):
            raise self._malformed(f"{self.text[self.at : self.at + 12]!r} is not a value")
        self.at = word.end()
        return _WORDS[word[0]] if word[0] in _WORDS else DecimalText(word[0])

    def _text(self, quote: str) -> str:
        pieces = []
        while True:
            plain = _PLAIN[quote].match(self.text, self.at)
            assert plain is not None, "it matches nothing, too"
            pieces.append(plain[0])
            self.at = plain.end()
            sign = self.text[self.at : self.at + 1]
            self.at += 1
            if sign == quote:
                return _paired("".join(pieces))
            if sign != "\\":
                raise self._malformed("a text that does not end" if not sign else f"{sign!r} within a text")
            pieces.append(self._escape())

    def _escape(self) -> str:
        sign = self.text[self.at : self.at + 1]
        self.at += 1
        if sign == "u":
            digits = _HEX.match(self.text, self.at)
            if digits is None:
                raise self._malformed("\\u without four hexadecimal digits")
            self.at = digits.end()
            return chr(int(digits[0], 16))
        if sign not in _ESCAPES:
            raise self._malformed(f"\\{sign} within a text")
        return _ESCAPES[sign]

    def _next(self) -> str:
        """Take the next character that is not white space."""
        self.at = _skip(self.text, self.at)
        if self.at >= len(self.text):
            raise self._malformed("the text ends within the document")
        self.at += 1
        return self.text[self.at - 1]

    def _malformed(self, why: str) -> Malformed:
        return Malformed(f"{why}, at character {self.at}")


def _paired(text: str) -> str:
    """Join surrogate pairs: two escapes that together are one character beyond U+FFFF."""
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return text

"""Reads JSON values one by one into a schema, exactly as Spark's from_json does, and slowly. Pure.

`reader(schema)` makes a function from a value's bytes to Row(fields, reason):

    fields   a dict for pa.array, with dates as days and times as microseconds; None if there is no document
    reason   why the value is malformed, or None. Well-formed fields keep their values beside a malformed one.

The type of the column decides what a token means: neither 1.0 nor "1" is a BIGINT, and any token is a STRING.
"""

from __future__ import annotations

import base64
import decimal
import json
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from pyspark_tinymq.json import moments
from pyspark_tinymq.json.jsontext import NO_DOCUMENT, DecimalText, IntegerText, Malformed, Object, first_document

WHOLES = {pa.int8(): (-128, 255), pa.int16(): (-(1 << 15), (1 << 15) - 1), pa.int32(): (-(1 << 31), (1 << 31) - 1),
          pa.int64(): (-(1 << 63), (1 << 63) - 1)}  # fmt: skip
"""The range that each type accepts. A TINYINT may be written as an unsigned byte, and is then read as a signed one."""

_CONSTANTS = {"NaN": "nan", "+INF": "inf", "+Infinity": "inf", "Infinity": "inf", "-INF": "-inf", "-Infinity": "-inf"}
_SPACE = re.compile(r"[\x00- ]+")
_BASE64 = re.compile(r"(?:[\x00- ]*[A-Za-z0-9+/]{4})*(?:[\x00- ]*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=))?[\x00- ]*")
"""Groups of four characters, with optional white space between them."""
_EXACT = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP)
_DIGITS_MAX = 200  # more than any DECIMAL has; it also bounds the memory that an exponent can ask for

Read = Callable[[object], Any]


class Row(NamedTuple):
    """One parsed value."""

    fields: dict[str, Any] | None
    reason: str | None


class Partial(Exception):
    """Part of an array, map or object is malformed. `value` has the other parts."""

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(reason)
        self.value = value

    @property
    def fields(self) -> dict[str, Any]:
        """The value of the outermost container, which is an object."""
        assert isinstance(self.value, dict), "raised by a reader of objects"
        return self.value


def reader(schema: pa.StructType, zone: str) -> Callable[[bytes], Row]:
    """Return a function that reads values of `schema`. It takes times without a zone to be in `zone`."""
    read = _struct(schema, zone)

    def row(value: bytes) -> Row:
        try:
            tree = first_document(value.decode("utf-8", "replace"))
            if tree is NO_DOCUMENT:
                return Row(None, None)
            if not isinstance(tree, Object):
                raise Malformed("the document is not an object")
            return Row(read(tree), None)
        except Partial as partial:
            return Row(partial.fields, str(partial))
        except Malformed as error:
            return Row({}, str(error))

    return row


def _reader_of(kind: pa.DataType, zone: str) -> Read:
    """Return a function from a tree to a value of `kind`. The function raises Malformed, or Partial."""
    read = _scalar_reader(kind, zone)
    if pa.types.is_struct(kind):
        read = _struct(kind, zone)
    elif pa.types.is_list(kind):
        read = _list(_reader_of(kind.value_type, zone))
    elif pa.types.is_map(kind):
        read = _map(_reader_of(kind.item_type, zone))

    def value(tree: object) -> Any:
        return None if tree is None else read(tree)

    return value


def _scalar_reader(kind: pa.DataType, zone: str) -> Read:
    if kind in WHOLES:
        return _whole(*WHOLES[kind])
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return _time(zone) if kind.tz is not None else _of_text("TIMESTAMP_NTZ", moments.local_time_of)
    return {
        pa.bool_(): _boolean,
        pa.float32(): _single,
        pa.float64(): _double,
        pa.date32(): _of_text("DATE", moments.day_of),
        pa.binary(): _of_text("BINARY", base64_of),
    }.get(kind, _text)


def _not_a(tree: object, kind: str) -> Malformed:
    expected = f"{'an' if kind == 'ARRAY' else 'a'} {kind}"
    if isinstance(tree, list):
        return Malformed(f"{'an object' if isinstance(tree, Object) else 'an array'} is not {expected}")
    return Malformed(f"{str(tree).lower() if isinstance(tree, bool) else repr(str(tree)[:40])} is not {expected}")


def _boolean(tree: object) -> bool:
    if not isinstance(tree, bool):
        raise _not_a(tree, "BOOLEAN")
    return tree


def _whole(least: int, most: int) -> Read:
    sign = 1 << 7

    def read(tree: object) -> int:
        if type(tree) is not IntegerText or len(tree) > 20 or not least <= int(tree) <= most:
            raise _not_a(tree, f"whole number from {least} to {most}")
        number = int(tree)
        return number if most != 255 or number < sign else number - 2 * sign

    return read


def _number(tree: object) -> str:
    if type(tree) is str and tree in _CONSTANTS:
        return _CONSTANTS[tree]
    if type(tree) is not IntegerText and type(tree) is not DecimalText:
        raise _not_a(tree, "number")
    return _CONSTANTS.get(tree, tree)


def _double(tree: object) -> float:
    return float(_number(tree))


def _single(tree: object) -> float:
    """Round once, from the digits. A float that is made from a double would be rounded twice."""
    text = _number(tree)
    if text in ("nan", "inf", "-inf"):
        return float(text)
    try:
        return float(pa.scalar(text).cast(pa.float32()).as_py())
    except pa.ArrowInvalid:  # beyond a float's range
        return float("-inf") if text.startswith("-") else float("inf")


def _decimal(precision: int, scale: int) -> Read:
    step = decimal.Decimal(1).scaleb(-scale)

    def read(tree: object) -> decimal.Decimal:
        text = tree.replace(",", "") if type(tree) is str else tree
        if not isinstance(text, str) or text != text.strip() or "_" in text or text in _CONSTANTS:
            raise _not_a(tree, "DECIMAL")
        try:
            number = decimal.Decimal(text)
        except decimal.InvalidOperation:
            raise _not_a(tree, "DECIMAL") from None
        if not number.is_finite() or number.adjusted() > _DIGITS_MAX // 2:
            raise _not_a(tree, f"DECIMAL({precision},{scale})")
        if number.adjusted() < -_DIGITS_MAX // 2:
            number = decimal.Decimal(0)
        rounded = number.quantize(step, context=_EXACT)
        if rounded and rounded.adjusted() >= precision - scale:
            raise _not_a(tree, f"DECIMAL({precision},{scale})")
        return rounded if rounded else abs(rounded)

    return read


def _time(zone: str) -> Read:
    of_text = _of_text("TIMESTAMP", lambda text: moments.time_of(text, zone))

    def read(tree: object) -> int:
        if type(tree) is IntegerText:  # seconds; an overflow wraps around, as in Spark
            seconds = _whole(*WHOLES[pa.int64()])(tree)
            return int((seconds * 1_000_000 + (1 << 63)) % (1 << 64)) - (1 << 63)
        return int(of_text(tree))

    return read


def _of_text(kind: str, read: Callable[[str], Any]) -> Read:
    def of_tree(tree: object) -> Any:
        if type(tree) is not str:
            raise _not_a(tree, kind)
        try:
            return read(tree)
        except ValueError as error:
            raise Malformed(f"{tree!r:.40} is not a {kind}: {error}") from None

    return of_tree


def base64_of(text: str) -> bytes:
    if _BASE64.fullmatch(text) is None:
        raise ValueError("not base64, or its padding is missing")
    return base64.b64decode(_SPACE.sub("", text))


def _text(tree: object) -> str:
    text = tree if type(tree) is str else _written(tree)
    try:
        text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate, for which Java writes a question mark
        return text.encode("utf-8", "replace").decode()
    return text


def _written(tree: object) -> str:
    """Return a document as Jackson writes it, without white space. A STRING column that meets an object gets this text.

    The function does not recurse, so the depth of the document is not limited by Python's stack.
    """
    pieces: list[str] = []
    # A stack of parts, the next one to write last: (True, text), or (False, a tree that is not text yet).
    left: list[tuple[bool, object]] = [(False, tree)]
    while left:
        done, part = left.pop()
        if done:
            pieces.append(str(part))
        elif isinstance(part, list):
            between = (True, ",")
            inside: list[tuple[bool, object]] = []
            for member in part:
                name = [(True, _token(member[0]) + ":")] if isinstance(part, Object) else []
                value = member[1] if isinstance(part, Object) else member
                inside += [*([between] if inside else []), *name, (False, value)]
            first, last = "{}" if isinstance(part, Object) else "[]"
            left += [(True, last), *reversed(inside), (True, first)]
        else:
            pieces.append(_token(part))
    return "".join(pieces)


def _token(tree: object) -> str:
    """Return a scalar as Jackson writes it."""
    if type(tree) is DecimalText:
        number = float(_CONSTANTS.get(tree, tree))
        return _java(number) if math.isfinite(number) else f'"{_java(number)}"'
    if type(tree) is IntegerText:
        return "0" if tree == "-0" else tree
    if isinstance(tree, str):
        return json.dumps(tree, ensure_ascii=False)
    return "null" if tree is None else str(tree).lower()


def _java(number: float) -> str:
    """Return a number as Java's Double.toString writes it."""
    if not math.isfinite(number):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(number)]
    if not number or 1e-3 <= abs(number) < 1e7:
        text = format(decimal.Decimal(repr(number)), "f")
        return text if "." in text else text + ".0"
    sign, digits, exponent = decimal.Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int), "a finite number"
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{exponent + len(digits) - 1}"


def _struct(kind: pa.StructType, zone: str) -> Read:
    fields = {kind.field(i).name: _reader_of(kind.field(i).type, zone) for i in range(kind.num_fields)}

    def read(tree: object) -> dict[str, Any]:
        if not isinstance(tree, Object):
            raise _not_a(tree, "STRUCT")
        row: dict[str, Any] = {}
        reason: str | None = None
        for name, part in tree:
            field = fields.get(name)
            if field is None:
                continue
            try:
                row[name] = field(part)
            except Partial as partial:
                row[name] = partial.value
                reason = reason or f"{name}: {partial}"
            except Malformed as error:
                reason = reason or f"{name}: {error}"
        if reason is not None:
            raise Partial(row, reason)
        return row

    return read


def _list(element: Read) -> Read:
    def read(tree: object) -> list[Any]:
        if not isinstance(tree, list) or isinstance(tree, Object):
            raise _not_a(tree, "ARRAY")
        values: list[Any] = []
        reason: str | None = None
        for part in tree:
            try:
                values.append(element(part))
            except Partial as partial:
                values.append(partial.value)
                reason = reason or str(partial)
        if reason is not None:
            raise Partial(values, reason)
        return values

    return read


def _map(item: Read) -> Read:
    def read(tree: object) -> list[tuple[str, Any]]:
        if not isinstance(tree, Object):
            raise _not_a(tree, "MAP")
        pairs: list[tuple[str, Any]] = []
        reason: str | None = None
        for name, part in tree:
            try:
                pairs.append((_text(name), item(part)))
            except Partial as partial:
                pairs.append((_text(name), partial.value))
                reason = reason or f"{name}: {partial}"
        if reason is not None:
            raise Partial(pairs, reason)
        return pairs

    return read

"""Reads a schema from text: Spark's DDL, the text of `schema.simpleString()`, or Spark's JSON (`schema.json()`). Pure.

Spark's own parser runs in the JVM, out of a source's reach, and its errors would show text that the user never wrote.
This parser names the character of the user's own text at which it fails. All fields become nullable, as with from_json,
because a value may leave out any of them.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from pyspark.sql import types

DEPTH_MAX = 64  # of nested types
DECIMAL_DIGITS_MAX = 38
_TEXT_SHOWN_MAX = 40
_BACKTICKS = "put a name with such characters in `backticks`"

_SIMPLE: dict[str, types.DataType] = {
    "boolean": types.BooleanType(),
    "tinyint": types.ByteType(),
    "byte": types.ByteType(),
    "smallint": types.ShortType(),
    "short": types.ShortType(),
    "int": types.IntegerType(),
    "integer": types.IntegerType(),
    "bigint": types.LongType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "real": types.FloatType(),
    "double": types.DoubleType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "timestamp_ltz": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
}
_DECIMALS = ("decimal", "dec", "numeric")
_NESTED = ("array", "map", "struct")
_NAMES = (*_SIMPLE, *_DECIMALS, *_NESTED)
_NOT_READ = ("char", "character", "varchar", "interval", "variant", "void", "time", "geometry", "geography")
_JSON_NAMES = {kind.typeName() for kind in _SIMPLE.values()} | {"decimal", *_NESTED}

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<quoted>`(?:[^`]|``)*`)
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<word>\w+)
      | (?P<mark>[<>(),:])
      | (?P<cut>\.\.\.)
      | (?P<other>\S)
    )""",
    re.VERBOSE | re.DOTALL,
)


class SchemaError(ValueError):
    """The text is not a schema. The message says at which place, and what is expected there."""


def read_schema(text: str) -> types.StructType:
    """Return the schema that `text` describes. Raises SchemaError."""
    if text.startswith(("{", "[", '"')):
        return _read_json(text)
    return _Parser(text).schema()


class _Parser:
    """Parses one text in DDL."""

    def __init__(self, text: str) -> None:
        self._text = text
        tokens = [match for match in _TOKEN.finditer(text) if match.lastgroup is not None]
        self._tokens = [(str(match.lastgroup), match[str(match.lastgroup)]) for match in tokens]
        self._places = [match.start(str(match.lastgroup)) for match in tokens]
        self._next = 0
        self._depth = 0

    def schema(self) -> types.StructType:
        if self._word(0) == "struct" and self._is("<", 1):
            self._next = 1
            made = self._struct()
        else:
            made = self._fields(end=None)
        if self._next < len(self._tokens):
            self._fail("the schema ends before this; put a comma between columns")
        return made

    # ---- tokens

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        position = self._next + ahead
        return self._tokens[position] if position < len(self._tokens) else ("end", "")

    def _word(self, ahead: int) -> str:
        kind, text = self._peek(ahead)
        return text.lower() if kind == "word" else ""

    def _is(self, mark: str, ahead: int = 0) -> bool:
        return self._peek(ahead) == ("mark", mark)

    def _takes(self, mark: str) -> bool:
        if not self._is(mark):
            return False
        self._next += 1
        return True

    def _expect(self, mark: str, what: str) -> None:
        if not self._takes(mark):
            self._fail(f"{mark!r} is missing: {what}")

    def _fail(self, why: str, ahead: int = 0) -> NoReturn:
        kind, _ = self._peek(ahead)
        if kind == "end":
            raise SchemaError(f"at the end: {why}")
        if kind == "cut":
            why = "Spark cut this text short (it shows 25 fields): give schema.json()"
        position = self._places[self._next + ahead]
        rest = self._text[position : position + _TEXT_SHOWN_MAX]
        raise SchemaError(f"at character {position + 1}, {rest!r}: {why}")

    # ---- the grammar

    def _fields(self, end: str | None) -> types.StructType:
        fields = []
        while True:
            name = self._name()
            self._takes(":")
            fields.append(types.StructField(name, self._type(name), True, self._attributes()))
            if not self._takes(","):
                return types.StructType(fields)
            if end is not None and self._is(end):
                self._fail("a field is missing after the comma")

    def _name(self) -> str:
        kind, text = self._peek()
        if text == "``" or text.isdigit() or kind not in ("quoted", "word"):
            self._fail(_BACKTICKS if kind == "other" else "a column's name is missing")
        self._next += 1
        return text[1:-1].replace("``", "`") if kind == "quoted" else text

    def _attributes(self) -> dict[str, Any]:
        """Read NOT NULL, which is ignored, and COMMENT."""
        if self._word(0) == "not" and self._word(1) == "null":
            self._next += 2
        if self._word(0) != "comment":
            return {}
        self._next += 1
        kind, text = self._peek()
        if kind != "text":
            self._fail("the comment's text is missing")
        self._next += 1
        return {"comment": re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)}

    def _type(self, column: str) -> types.DataType:
        name = self._word(0)
        if name in _NOT_READ:
            self._fail(f"{name.upper()} cannot be read from JSON; read it as STRING, and convert it")
        if name not in _NAMES:
            if self._peek()[0] == "other":
                self._fail(_BACKTICKS)
            near = difflib.get_close_matches(name, _NAMES, 1)
            hint = f"; did you mean {near[0].upper()}?" if near else ""
            self._fail(f"a type is missing for column {column!r}" + (f": {name!r} is not a type{hint}" if name else ""))
        self._next += 1
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"more than {DEPTH_MAX} nested types")
        made = self._of_name(name, column)
        self._depth -= 1
        return made

    def _of_name(self, name: str, column: str) -> types.DataType:
        if name in _DECIMALS:
            return self._decimal()
        if name == "array":
            self._expect("<", "such as ARRAY<INT>")
            element = self._type(column)
            self._expect(">", "such as ARRAY<INT>")
            return types.ArrayType(element, True)
        if name == "map":
            self._expect("<", "such as MAP<STRING, INT>")
            key = self._type(column)
            self._expect(",", "such as MAP<STRING, INT>")
            value = self._type(column)
            self._expect(">", "such as MAP<STRING, INT>")
            return types.MapType(key, value, True)
        if name == "struct":
            return self._struct()
        if name == "string" and self._word(0) == "collate":
            self._fail("a collation has no meaning here; write STRING")
        return _SIMPLE[name]

    def _struct(self) -> types.StructType:
        self._expect("<", "such as STRUCT<a: INT>")
        if self._takes(">"):
            return types.StructType([])
        made = self._fields(end=">")
        self._expect(">", "such as STRUCT<a: INT>")
        return made

    def _decimal(self) -> types.DecimalType:
        if not self._takes("("):
            return types.DecimalType(10, 0)
        precision = self._number(1, DECIMAL_DIGITS_MAX)
        scale = self._number(0, precision) if self._takes(",") else 0
        self._expect(")", "such as DECIMAL(10, 2)")
        return types.DecimalType(precision, scale)

    def _number(self, least: int, most: int) -> int:
        kind, text = self._peek()
        if kind != "word" or not (text.isascii() and text.isdigit()) or not least <= int(text[:9]) <= most:
            self._fail(f"a number from {least} to {most} is missing")
        self._next += 1
        return int(text)


# ---- Spark's JSON ------------------------------------------------------------------------------------------


def _read_json(text: str) -> types.StructType:
    try:
        node = json.loads(text)
    except RecursionError:
        raise SchemaError(f"more than {DEPTH_MAX} nested types") from None
    except json.JSONDecodeError as error:
        raise SchemaError(f"at character {error.pos + 1}: {error.msg} (the text begins like Spark's JSON)") from None
    if not isinstance(node, dict) or node.get("type") != "struct":
        raise SchemaError('this JSON is not a schema; expected {"type":"struct","fields":[...]}')
    made = _of_json(node, "the schema", 0)
    assert isinstance(made, types.StructType)
    return made


def _of_json(node: object, where: str, depth: int) -> types.DataType:
    if depth > DEPTH_MAX:
        raise SchemaError(f"more than {DEPTH_MAX} nested types")

    def inner(part: object, name: str) -> types.DataType:
        return _of_json(part, name, depth + 1)

    if isinstance(node, str):
        return _named(node, where)
    if isinstance(node, dict):
        read = _JSON_KINDS.get(str(node.get("type")))
        if read is not None:
            return read(node, where, inner)
    raise SchemaError(f"{where}: {json.dumps(node)[:_TEXT_SHOWN_MAX]} is not a type of Spark's JSON that tinymq reads")


def _named(name: str, where: str) -> types.DataType:
    """Return the type that a name such as "integer" or "decimal(10,2)" stands for."""
    kind = name.partition("(")[0].strip()
    if kind in _JSON_NAMES - set(_NESTED):
        try:
            return _Parser(f"a {name}").schema()[0].dataType
        except SchemaError as error:
            raise SchemaError(f"{where}: {name!r}: {error}") from None
    raise SchemaError(f"{where}: {name!r} cannot be read from JSON; read it as string, and convert it")


def _struct_of(node: dict[str, Any], where: str, inner: Callable[[object, str], types.DataType]) -> types.DataType:
    fields = node.get("fields")
    if not isinstance(fields, list):
        raise SchemaError(f'{where}: "fields" is missing')
    made = []
    for field in fields:
        name = field.get("name") if isinstance(field, dict) else None
        if not isinstance(name, str):
            raise SchemaError(f"{where}: a field has no name")
        metadata = field.get("metadata")
        comment = metadata.get("comment") if isinstance(metadata, dict) else None
        kept = {"comment": comment} if isinstance(comment, str) else {}
        made.append(types.StructField(name, inner(field.get("type"), f"column {name!r}"), True, kept))
    return types.StructType(made)


_JSON_KINDS: dict[str, Callable[[dict[str, Any], str, Callable[[object, str], types.DataType]], types.DataType]] = {
    "struct": _struct_of,
    "array": lambda node, where, inner: types.ArrayType(inner(node.get("elementType"), where), True),
    "map": lambda node, where, inner: types.MapType(
        inner(node.get("keyType"), where), inner(node.get("valueType"), where), True
    ),
}

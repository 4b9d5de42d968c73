"""Parses a batch of JSON values into columns for `valueFormat=json`, with the results of Spark's from_json. Pure.

Arrow's JSON reader parses a whole block at once. It gets only values for which its result surely equals from_json's:
values that begin and end as one object does, in blocks whose row count is checked afterwards. Times, dates and BINARY
come from it as text, and this module converts them. A block that Arrow's reader refuses is split until a bad value
is alone or among a few rows, and jsonrows.py reads those rows one by one. The result for a row never depends on the
rows beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pyspark_tinymq.json import jsonrows, moments
from pyspark_tinymq.json.jsontext import DEPTH_MAX
from tinymq.base.errors import InvalidConfig

PERMISSIVE, FAILFAST, DROPMALFORMED = "PERMISSIVE", "FAILFAST", "DROPMALFORMED"
MODES = (PERMISSIVE, FAILFAST, DROPMALFORMED)
CORRUPT = "_corrupt_record"
BLOCK_BYTES = 1 << 20  # about the size of a task's batches, so that blocks need not be joined
FEW_ROWS = 64  # reading so many one by one costs as much as Arrow's reader costs for any block

_TIME_SHAPE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"
_ZONED_SHAPE = _TIME_SHAPE[:-1] + r"(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$"
_ROW = re.compile(r"in row ([0-9]{1,9})\b")  # in Arrow's messages; only a hint where to split a block
_DATE_SHAPE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIMESTAMPS = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
_SCALARS = (*jsonrows.WHOLES, pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32())


class MalformedValue(ValueError):
    """A value is not JSON of the schema, and the mode is FAILFAST. `row` counts from the first value of the call."""

    hint = "mode PERMISSIVE keeps such values in a field _corrupt_record STRING, DROPMALFORMED leaves them out"

    def __init__(self, reason: str, row: int) -> None:
        super().__init__(reason, row)
        self.message = f"malformed JSON: {reason}"
        self.row = row

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})"


class Parsed(NamedTuple):
    """`values` has the schema's type. `kept` marks the rows that `values` still has, in order; None: all rows."""

    values: pa.StructArray
    kept: pa.BooleanArray | None


class JsonValues:
    """Parses values of one schema. Use one object for many batches, in one thread."""

    def __init__(
        self, schema: pa.StructType, mode: str = PERMISSIVE, corrupt: str = CORRUPT, zone: str = "UTC"
    ) -> None:
        """`schema` is the Arrow schema of Spark's: microseconds, with a zone for TIMESTAMP and none for TIMESTAMP_NTZ.

        Its field `corrupt`, of type STRING, receives the text of malformed values. Times without a zone are taken to be
        in `zone`. Raises InvalidConfig for a schema that from_json or this module does not accept.
        """
        if mode not in MODES:
            raise InvalidConfig(f"mode={mode!r}", hint=f"one of {', '.join(MODES)}")
        try:
            moments.check_zone(zone)
        except ValueError as error:
            raise InvalidConfig(str(error), hint="such as UTC, +02:00 or Europe/Paris") from None
        self.schema = schema
        self._mode = mode
        self._corrupt = _check_schema(schema, corrupt)
        fields = [schema.field(i) for i in range(schema.num_fields)]
        self._read = pa.struct([field for i, field in enumerate(fields) if i != self._corrupt])
        self._zone = zone
        # Reused for every block, because allocating this memory each time costs as much as parsing.
        self._lines_buffer = bytearray(BLOCK_BYTES)
        self._row = jsonrows.reader(self._read, zone)
        asked = [pa.field(field.name, _asked(field.type)) for field in self._read]
        self._options = None
        if all(kind is not None for kind in (field.type for field in asked)) and asked and not _has_map(self._read):
            self._options = pj.ParseOptions(explicit_schema=pa.schema(asked), unexpected_field_behavior="ignore")

    def parse(self, values: pa.Array) -> Parsed:
        """Return the columns of `values`, which are binary. A null value makes a null row.

        Raises MalformedValue in mode FAILFAST.
        """
        if not pa.types.is_binary(values.type):
            values = values.cast(pa.binary())
        blocks = [self._block(values.slice(*at), at[0]) for at in _blocks(values)]
        structs = [self._filled(*block) for block in blocks]
        parsed = _joined(structs) if structs else pa.array([], self.schema)
        if self._mode != DROPMALFORMED or not any(bad for _, bad, _ in blocks):
            return Parsed(parsed, None)
        kept = pa.array([row not in bad for values, bad, _ in blocks for row in range(len(values))], pa.bool_())
        return Parsed(parsed.filter(kept), kept)

    def _block(self, values: pa.Array, first: int) -> tuple[pa.Array, dict[int, str], pa.StructArray]:
        """Return (values, the reasons of malformed rows, the parsed rows) of the block that begins at row `first`."""
        likely = _likely(values) if self._options is not None else pa.repeat(pa.scalar(False), len(values))
        bad: dict[int, str] = {}
        if likely.true_count == len(values):
            pieces = list(self._pieces(values, range(len(values)), bad, first))
            return values, bad, _joined(pieces)
        rows = pc.indices_nonzero(likely)
        others = pc.indices_nonzero(pc.invert(likely))
        pieces = list(self._pieces(values.take(rows), rows.to_pylist(), bad, first)) if len(rows) else []
        pieces.append(self._one_by_one(values.take(others), others.to_pylist(), bad, first))
        places = pc.sort_indices(pa.concat_arrays([rows, others]))
        return values, bad, _joined(pieces).take(places)

    def _pieces(
        self, values: pa.Array, rows: Sequence[int], bad: dict[int, str], first: int
    ) -> Iterator[pa.StructArray]:
        """Parse `values`, which are the rows `rows` of the block, in order: in large parts, or one by one."""
        start, window = 0, len(values)
        dense = False  # the last part that was read one by one had a malformed row, so its neighbours may, too
        while start < len(values):
            end = min(start + window, len(values))
            part = values.slice(start, end - start)
            if len(part) > FEW_ROWS and not dense:
                together, place = self._together(part)
                if together is not None:
                    yield together
                    start, window = end, 2 * window
                elif place is not None and place < len(part):
                    window = max(FEW_ROWS, place)
                else:
                    window = max(FEW_ROWS, len(part) // 4)
                continue
            bad_before = len(bad)
            yield self._one_by_one(part, rows[start:end], bad, first)
            dense = len(bad) > bad_before
            start, window = end, FEW_ROWS if dense else 8 * FEW_ROWS

    def _together(self, values: pa.Array) -> tuple[pa.StructArray | None, int | None]:
        """Parse the values with Arrow's reader. Returns (rows, None), or (None, the row at fault if Arrow names it).

        Each value begins with { and ends with }, and line feeds separate them. No text in JSON contains a line feed, so
        a document cannot extend from one value into the next. If Arrow finds as many documents as there are values,
        each value is therefore one document.
        """
        try:
            values.cast(pa.string())
            lines = self._lines(values)
            if lines is None or _deep(values):
                return None, None
            reading = pj.ReadOptions(use_threads=False, block_size=lines.size)
            table = pj.read_json(pa.BufferReader(lines), read_options=reading, parse_options=self._options)
            if table.num_rows != len(values):
                return None, None
            columns = [table.column(field.name).combine_chunks() for field in self._read]
            made = [_made(column, field.type, self._zone) for column, field in zip(columns, self._read, strict=True)]
            return pa.StructArray.from_arrays(made, fields=list(self._read)), None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            row = _ROW.search(str(error))
            return None, int(row[1]) if row is not None else None

    def _lines(self, values: pa.Array) -> pa.Buffer | None:
        """Return the values, each followed by a line feed. The buffer is valid until the next call.

        Returns None if a value contains the character 0, at which Arrow's reader would stop.
        """
        joined = pc.binary_join(pa.ListArray.from_arrays([0, len(values)], values), b"\n")[0].as_buffer()
        size = joined.size + 1
        if len(self._lines_buffer) < size:
            self._lines_buffer = bytearray(size + size // 8)
        lines = memoryview(self._lines_buffer)[:size]
        lines[:-1] = memoryview(joined).cast("B")
        lines[-1:] = b"\n"
        return pa.py_buffer(lines) if self._lines_buffer.find(0, 0, size) < 0 else None

    def _one_by_one(self, values: pa.Array, rows: Sequence[int], bad: dict[int, str], first: int) -> pa.StructArray:
        read = []
        for at, value in zip(rows, values.to_pylist(), strict=True):
            fields, reason = (None, None) if value is None else self._row(value)
            read.append(fields)
            if reason is not None:
                if self._mode == FAILFAST:
                    raise MalformedValue(reason, first + at)
                bad[at] = reason
        return pa.array(read, self._read)

    def _filled(self, values: pa.Array, bad: dict[int, str], read: pa.StructArray) -> pa.StructArray:
        """Return `read` with the column of malformed values inserted, if the schema has it."""
        if self._corrupt is None:
            return read
        if bad:
            texts = [_text_of(values[row].as_py()) if row in bad else None for row in range(len(values))]
            column = pa.array(texts, pa.string())
        else:
            column = pa.nulls(len(values), pa.string())
        columns = [read.field(i) for i in range(read.type.num_fields)]
        columns.insert(self._corrupt, column)
        return pa.StructArray.from_arrays(columns, fields=list(self.schema), mask=read.is_null())


def _text_of(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _joined(pieces: list[pa.StructArray]) -> pa.StructArray:
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


def _blocks(values: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield (first row, row count) of blocks of about BLOCK_BYTES."""
    count = len(values)
    pieces = max(1, round(values.nbytes / BLOCK_BYTES))
    step = max(1, -(-count // pieces))
    for start in range(0, count, step):
        yield start, min(step, count - start)


def _likely(values: pa.Array) -> pa.BooleanArray:
    """Mark the values that begin and end as an object does."""
    both = pc.and_(pc.starts_with(values, pattern=b"{"), pc.ends_with(values, pattern=b"}"))
    return pc.fill_null(both, False)


def _deep(values: pa.Array) -> bool:
    """Tell whether a value may be nested more deeply than Jackson allows. Such a value has over 2 * DEPTH_MAX bytes."""
    lengths = pc.binary_length(values)
    if pc.max(lengths).as_py() <= 2 * DEPTH_MAX:
        return False
    long = values.filter(pc.greater(lengths, 2 * DEPTH_MAX))
    signs = pc.add(pc.count_substring(long, pattern=b"{"), pc.count_substring(long, pattern=b"["))
    return bool(pc.max(signs).as_py() > DEPTH_MAX)


def _asked(kind: pa.DataType) -> pa.DataType:
    """Return the type to request from Arrow's reader for `kind`: text where Arrow would convert unlike Spark."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _asked(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _asked(kind.value_type)))
    return kind


def _made(column: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    """Convert `column`, which Arrow's reader made, to `kind`. Raises ArrowInvalid if the result might be wrong."""
    if pa.types.is_timestamp(kind):
        return _times(column, kind, zone)
    if pa.types.is_date(kind):
        _check_shape(column, _DATE_SHAPE)
        return column.cast(kind)
    if pa.types.is_binary(kind):
        return pa.array([_bytes_of(text) for text in column.to_pylist()], kind)
    if pa.types.is_decimal(kind):
        column.validate(full=True)  # Arrow's reader accepts more digits than the precision allows
        return column
    if pa.types.is_struct(kind):
        parts = [_made(column.field(i), kind.field(i).type, zone) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())
    if pa.types.is_list(kind):
        values = _made(column.values, kind.value_type, zone)
        return pa.ListArray.from_arrays(column.offsets, values, type=kind, mask=column.is_null())
    return column


def _bytes_of(text: str | None) -> bytes | None:
    try:
        return None if text is None else jsonrows.base64_of(text)
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from None


def _times(column: pa.Array, kind: pa.TimestampType, zone: str) -> pa.Array:
    if kind.tz is None:
        _check_shape(column, _TIME_SHAPE)
        return column.cast(kind)
    if zone == "UTC" and _shaped(column, _TIME_SHAPE):
        return column.cast(pa.timestamp("us")).cast(kind)
    _check_shape(column, _ZONED_SHAPE)
    return column.cast(kind)


def _shaped(column: pa.Array, shape: str) -> bool:
    return pc.all(pc.match_substring_regex(column, shape)).as_py() is not False


def _check_shape(column: pa.Array, shape: str) -> None:
    if not _shaped(column, shape):
        raise pa.ArrowInvalid("a form that only jsonrows.py reads")


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_map(field.type) for field in kind)
    return pa.types.is_map(kind) or (pa.types.is_list(kind) and _has_map(kind.value_type))


def _check_schema(schema: pa.StructType, corrupt: str) -> int | None:
    """Return the index of the field `corrupt`, or None. Raises InvalidConfig for a schema that cannot be read."""
    if not schema.num_fields:
        raise InvalidConfig("valueSchema has no columns", hint='such as "carrier STRING, delay INT"')
    _check_kind(schema, "valueSchema")
    place = int(schema.get_field_index(corrupt))
    if place < 0 and corrupt != CORRUPT:
        raise InvalidConfig(
            f"columnNameOfCorruptRecord={corrupt}: valueSchema has no such column",
            hint=f"add {corrupt} STRING to it, or leave the option out",
        )
    if place < 0:
        return None
    if schema.field(place).type != pa.string():
        raise InvalidConfig(f"valueSchema: {corrupt} is not a STRING", hint=f"write {corrupt} STRING, or leave it out")
    return place


def _check_kind(kind: pa.DataType, where: str) -> None:
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if len(set(names)) != len(names):
            raise InvalidConfig(f"{where}: a field is named twice", hint=f"the fields are {', '.join(names)}")
        for field in kind:
            _check_kind(field.type, f"{where}: {field.name}")
    elif pa.types.is_list(kind):
        _check_kind(kind.value_type, where)
    elif pa.types.is_map(kind):
        if kind.key_type != pa.string():
            raise InvalidConfig(f"{where}: the keys of a map in JSON are text", hint="write MAP<STRING, ...>")
        _check_kind(kind.item_type, where)
    elif kind not in _SCALARS and not pa.types.is_decimal128(kind) and kind not in _TIMESTAMPS:
        raise InvalidConfig(f"{where}: {kind} cannot be read from JSON", hint="read it as STRING, and convert it")

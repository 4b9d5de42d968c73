"""SQL tables: what Spark's catalog passes when it creates a table, and how the table's options reach reads and writes.

Spark gives a Python source the options of a table once, when CREATE TABLE asks for the columns. A read or a write of
the table passes the columns and the query's own options, without the table's options. So the table's options travel
with its columns, as metadata of the column `topic`, which every catalog keeps. That column's comment shows them.

Metadata also travels with a column through a query. `INSERT INTO b SELECT * FROM a` gives the sink a column `topic`
with the options of `a`. To tell the two apart, `topic` is declared VARCHAR(249): Spark then converts what is inserted
to the columns of the target, and the conversion replaces the metadata and drops the mark of the VARCHAR. A column that
still has this mark was read from a table, so it is not the target's column. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructField, StructType

from pyspark_tinymq.options import columns, options, settings
from pyspark_tinymq.options.options import BATCH, SINK, STREAM
from tinymq.base.errors import InvalidConfig

FORMAT = "tinymq"
COLUMN = "topic"
KEPT = "tinymq.options"
"""The metadata of COLUMN that holds a table's options."""

DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""Spark's own metadata for a column that was declared VARCHAR."""

_DECLARED_TOPIC = "varchar(249)"
_CATALOG = frozenset(
    ("provider", "owner", "comment", "external", "is_managed_location", "collation", "table_type")
)  # options of every table
_PLACES = ("path", "location", "option.path")
_ALTERNATIVES = (
    ("subscribe", "subscribepattern", "assign"),
    ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"),
    ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"),
)
_MAKE = "CREATE TABLE t USING tinymq OPTIONS (servers 'localhost:7070', subscribe 'flights')"


def of_creation(texts: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that is being created, without those that Spark's catalog adds. None: `texts` are
    not the options of a table.

    Raises InvalidConfig for a location, because a topic has none.
    """
    lower = {name.lower(): str(text) for name, text in texts.items()}
    if lower.get("provider", "").lower() != FORMAT:
        return None
    if any(name in lower for name in _PLACES):
        raise InvalidConfig("a topic has no location", hint=f"leave LOCATION and path out: {_MAKE}")
    kept = {name: text for name, text in lower.items() if name not in _CATALOG and not name.startswith("option.")}
    repeated = {name.removeprefix("option."): text for name, text in lower.items() if name.startswith("option.")}
    return kept | repeated


def table_schema(texts: Mapping[str, str]) -> StructType:
    """Return the columns of a table, which carry its options. Raises InvalidConfig unless the table can be read as a
    batch or as a stream, or written to."""
    options.read(texts, BATCH, STREAM, SINK)
    reads = any(name in texts for name in _ALTERNATIVES[0])
    headers, values = _read_as(texts) if reads else (True, None)
    writes = _used_by(texts, SINK).keys() - {"servers", "requesttimeoutms", "token", "tlsca", "tlsdir"}
    if writes or not reads:
        settings.read_sink(_used_by(texts, SINK))
    if writes and values is not None:
        raise InvalidConfig(
            f"a table with valueFormat=json cannot be written to, and {min(writes)} is for writing",
            hint="leave that option out, and create a second table, without valueFormat, to write to",
        )
    if not reads and "topic" not in texts:
        raise InvalidConfig("the table names no topic to read from or to write to", hint=_MAKE)
    shown = ", ".join(f"{name}={text}" for name, text in sorted(texts.items()))
    carried = {KEPT: dict(texts), DECLARED: _DECLARED_TOPIC, "comment": shown}
    fields = columns.spark_schema(headers, values.schema if values is not None else None).fields
    return StructType(
        [StructField(each.name, each.dataType, True, carried if each.name == COLUMN else None) for each in fields]
    )


def _read_as(texts: Mapping[str, str]) -> tuple[bool, settings.Values | None]:
    """Return the same as settings.read_schema_options, for a table that may have options for both batches and
    streams."""
    refusals: list[InvalidConfig] = []
    for scope in (BATCH, STREAM):
        try:
            source = settings.read_source(_used_by(texts, scope), scope)
        except InvalidConfig as error:
            refusals.append(error)
        else:
            return source.headers, source.values
    raise refusals[0]


def for_read(texts: Mapping[str, str], schema: StructType, scope: str) -> dict[str, str]:
    """Return the options of a read: the query's options, and for all others the table's."""
    return _together(texts, _carried(schema) or {}, scope)


def for_write(texts: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a batch write, which may be an INSERT. Raises InvalidConfig if the target table is unknown,
    or if it names no topic and the rows may name none either."""
    lower = {name.lower(): str(text) for name, text in texts.items()}
    if "servers" in lower:
        return lower
    kept = _carried(schema)
    if kept is None:
        return lower
    whole = [name for name in schema.names if name != "headers"] == columns.spark_schema(headers=False).names
    if DECLARED in _metadata(schema) or not whole:
        raise InvalidConfig(
            "Spark does not say which table is written to: these columns come from a tinymq table as they are",
            hint="name the columns to write, as in INSERT INTO t (key, value) SELECT key, value FROM ...; or give the "
            "options servers and topic",
        )
    used = _together(lower, kept, SINK)
    if "topic" not in used and schema[COLUMN].nullable:  # Spark inserts null for a column that INSERT leaves out
        raise InvalidConfig(
            f"the table names no topic to write to, and the column {COLUMN!r} of the inserted rows may be null",
            hint="create the table with the option topic, or name a topic in each row: INSERT INTO t (topic, value) "
            "SELECT 'flights', ...; coalesce(topic, 'flights') for a column that may be null",
        )
    return used


def _carried(schema: StructType) -> dict[str, str] | None:
    kept = _metadata(schema).get(KEPT)
    return {str(name): str(text) for name, text in kept.items()} if isinstance(kept, dict) else None


def _metadata(schema: StructType) -> dict[str, Any]:
    return dict(schema[COLUMN].metadata or {}) if COLUMN in schema.names else {}


def _together(texts: Mapping[str, str], kept: Mapping[str, str], scope: str) -> dict[str, str]:
    """Return `texts`, and those options of `kept` that have a meaning in `scope` and that `texts` does not replace."""
    lower = {name.lower(): str(text) for name, text in texts.items()}
    replaced = {name for names in _ALTERNATIVES if any(each in lower for each in names) for name in names}
    used = {name: text for name, text in _used_by(kept, scope).items() if name not in replaced}
    return used | lower


def _used_by(texts: Mapping[str, str], *scopes: str) -> dict[str, str]:
    used = {name for scope in scopes for name in options.options_of(scope)}
    return {name: text for name, text in texts.items() if name.lower() in used}

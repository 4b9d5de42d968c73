"""drop_repeats: of what the sink wrote more than once, keep one. For DataFrames read with includeHeaders.

A record is a repeat when another one has the same place (place.py) and is the same: key, value, headers and topic.
Both are asked for, because a place alone is not enough: a task that is tried again may be given the same rows in
another order, as after a shuffle, and then the same place holds different rows, none of which may go. So nothing is
ever dropped that is not there another time; a repeat may stay where a query was not deterministic.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from pyspark_tinymq.write.place import PLACE
from tinymq.base.errors import InvalidConfig

RECORD, PLACE_ALONE = "record", "place"
NEEDED = ("key", "value", "headers", "topic", "partition", "offset")
_AT, _WHAT = "__tinymq_place", "__tinymq_record"


def drop_repeats(df: DataFrame, *, by: str = RECORD, within: str | None = None) -> DataFrame:
    """`df` without repeats; its columns stay as they are. Batch and streaming.

    by: "record", as above. "place": the place alone tells. Then of rows whose contents are not the same each time
        (rand(), a clock, a look-up) one version is kept; but where their order is not the same each time, rows are
        lost. Use it only where each task is given its rows in one order, as after sortWithinPartitions.
    within: of a stream, how far apart repeats may come ("2 hours"), by the column `timestamp`: what Spark keeps of
        places then goes when it is older. Without it Spark keeps about 100 bytes of each record for good. Rows that
        come later than that, by their timestamp, are dropped by Spark, whatever they are.

    Records without a place (of other writers, or includePlace=false) all stay. Costs a shuffle of the whole, and of a
    stream its state. Raises InvalidConfig for columns that are missing, and for a `by` that is none.
    """
    missing = [name for name in (*NEEDED, *(("timestamp",) if within else ())) if name not in df.columns]
    if missing:
        raise InvalidConfig(
            f"drop_repeats needs the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            hint="read with .option('includeHeaders', 'true'), and drop repeats before columns are chosen",
        )
    if by not in (RECORD, PLACE_ALONE):
        raise InvalidConfig(f"by={by!r}", hint=f"{RECORD!r} or {PLACE_ALONE!r}")
    if within is not None and not df.isStreaming:
        raise InvalidConfig("within has no meaning in a batch", hint="leave it out")
    marked = df.withColumns({_AT: _place(), _WHAT: _digest(df.schema) if by == RECORD else f.lit(0)})
    if within is None:
        return marked.dropDuplicates([_AT, _WHAT]).drop(_AT, _WHAT)
    return marked.withWatermark("timestamp", within).dropDuplicatesWithinWatermark([_AT, _WHAT]).drop(_AT, _WHAT)


def _place() -> Column:
    """A record's place as text: the last header's of that name, which the last writer added; of a record that has none,
    where it lies, which no other does."""
    named = f.filter("headers", lambda header: header["key"] == PLACE)
    place = f.try_element_at(named, f.lit(-1))["value"].cast("string")
    return f.coalesce(place, f.concat_ws("@", "topic", "partition", "offset"))


def _digest(schema: StructType) -> Column:
    """64 bits of what a record says. Only records of one place are compared by it."""
    parts: list[Column] = []
    for name in ("key", "value", "headers", "topic"):
        # Spark hashes no maps; and a null, which hashes to nothing, is not the same as what is empty
        parts += [f.to_json(f.struct(name)) if _has_map(schema[name].dataType) else f.col(name), f.isnull(name)]
    return f.xxhash64(*parts)


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_map(part.dataType) for part in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _has_map(kind.elementType))

"""drop_repeats: keeps one of the records that the sink wrote more than once. For DataFrames read with includeHeaders.

A record is a repeat if another record has the same place (place.py) and the same key, value, headers and topic. The
place alone is not enough. A retried task may get the same rows in another order, as after a shuffle. One place then has
different rows, and none of them may be dropped. So only records that exist a second time are ever dropped. A repeat may
stay if the query was not deterministic.
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
    """Return `df` without repeats and with the same columns, for batches and streams.

    by: "record" compares as above. "place" compares only the places. It keeps one version of a row whose contents
        differ with each attempt (rand(), a clock, a look-up), but it loses rows if their order differs. Use it only if
        each task always gets its rows in the same order, as after sortWithinPartitions.
    within: for a stream, the largest distance in time between repeats ("2 hours"), by the column `timestamp`. Spark
        then forgets older places. Without it, Spark keeps about 100 bytes of each record forever. With it, Spark drops
        every row that arrives later than that, judged by its timestamp, repeat or not.

    All records without a place stay (other writers', or those of includePlace=false). The call costs a shuffle of all
    rows, and in a stream the state. Raises InvalidConfig for missing columns and for another value of `by`.
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
    """Return a record's place as text: that of the last such header, which the last writer added. A record without one
    gets its topic, partition and offset, which are unique."""
    named = f.filter("headers", lambda header: header["key"] == PLACE)
    place = f.try_element_at(named, f.lit(-1))["value"].cast("string")
    return f.coalesce(place, f.concat_ws("@", "topic", "partition", "offset"))


def _digest(schema: StructType) -> Column:
    """Return a 64-bit hash of a record. It serves only to compare records with the same place."""
    parts: list[Column] = []
    for name in ("key", "value", "headers", "topic"):
        # Spark cannot hash maps. A null adds nothing to the hash, so isnull tells it from an empty value.
        parts += [f.to_json(f.struct(name)) if _has_map(schema[name].dataType) else f.col(name), f.isnull(name)]
    return f.xxhash64(*parts)


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_map(part.dataType) for part in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _has_map(kind.elementType))

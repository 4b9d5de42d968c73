"""JSON values are read as from_json reads them, alone or among others; docs/spark-values.md lists the differences."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.pandas.types import from_arrow_type

from pyspark_tinymq.json import jsonrows
from pyspark_tinymq.json.values import (
    DROPMALFORMED,
    FAILFAST,
    FEW_ROWS,
    PERMISSIVE,
    JsonValues,
    MalformedValue,
    _likely,
)
from tests.spark import json_corpus
from tinymq.base.errors import InvalidConfig

PAGE = Path(__file__).parents[2] / "docs" / "spark-values.md"
READ = pa.struct([("a", pa.int32()), ("s", pa.string()), ("_corrupt_record", pa.string())])


def read(values: list[bytes | None], kind: pa.StructType = READ, **settings: str) -> list[object]:
    return JsonValues(kind, **settings).parse(pa.array(values, pa.binary())).values.to_pylist()


def test_values_are_read_as_from_json_reads_them(spark: SparkSession) -> None:
    """Every value with every schema. Each difference is on the page, and each difference of the page occurs."""
    values = json_corpus.values()
    df = spark.createDataFrame([(value,) for value in values], "v binary").coalesce(1)
    text = col("v").cast("string")
    schemas = {name: from_arrow_type(kind, prefer_timestamp_ntz=True) for name, kind in json_corpus.SCHEMAS.items()}
    theirs = df.select(*(from_json(text, schema).alias(name) for name, schema in schemas.items())).toArrow()
    unlike, seen = [], set()
    for name, kind in json_corpus.SCHEMAS.items():
        plain = json_corpus.plain(kind)
        ours = JsonValues(kind).parse(pa.array(values, pa.binary())).values.cast(plain).to_pylist()
        spark_s = theirs.column(name).combine_chunks().cast(plain).to_pylist()
        for value, mine, other in zip(values, ours, spark_s, strict=True):
            if repr(mine) != repr(other):
                known = json_corpus.difference(value)
                seen.add(known)
                unlike += [(name, value, mine, other)] if known is None else []
    assert unlike == []
    assert seen == set(json_corpus.DIFFERENCES)
    assert [title for title in json_corpus.DIFFERENCES if f"| {title} |" not in PAGE.read_text()] == []


@pytest.mark.parametrize("name", json_corpus.SCHEMAS)
def test_a_value_is_read_the_same_in_any_company(name: str) -> None:
    """Each value alone with Arrow, if Arrow accepts it; alone on the slow path; and among all others."""
    kind = json_corpus.SCHEMAS[name]
    plain = json_corpus.plain(kind)
    values = json_corpus.values()
    among = JsonValues(kind).parse(pa.array(values, pa.binary())).values.cast(plain).to_pylist()
    parser = JsonValues(kind)
    alone = pa.concat_arrays([parser.parse(pa.array([value], pa.binary())).values for value in values])
    assert repr(alone.cast(plain).to_pylist()) == repr(among)
    together = 0
    for value, row in zip(values, among, strict=True):
        quick = _quick(parser, value)
        if quick is not None:
            together += 1
            assert repr({**quick, "_corrupt_record": None}) == repr(row), value
    assert together >= 5 or name == "maps", "Arrow's reader accepts regular values"


def _quick(parser: JsonValues, value: bytes | None) -> dict[str, object] | None:
    """Return the result of Arrow's reader for a value that it may get."""
    values = pa.array([value], pa.binary())
    if parser._options is None or not _likely(values)[0].as_py():
        return None
    read, _ = parser._together(values)
    if read is None:
        return None
    row: dict[str, object] = read.cast(json_corpus.plain(read.type)).to_pylist()[0]
    return row


_leaf = st.none() | st.booleans() | st.integers(-(1 << 65), 1 << 65) | st.floats() | st.text() | st.decimals()
_tree = st.recursive(
    _leaf, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abxyzw"), inner), max_leaves=8
)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from("abcd"), _tree), max_size=6), st.sampled_from(sorted(json_corpus.SCHEMAS))
)
def test_arrow_and_the_slow_way_agree(rows: list[dict[str, object]], name: str) -> None:
    """Random values that both accept, beyond the corpus."""
    kind = json_corpus.SCHEMAS[name]
    parser = JsonValues(kind)
    slow = jsonrows.reader(parser._read, "UTC")
    for row in rows:
        value = json.dumps(row, default=str, ensure_ascii=False).encode("utf-8", "replace")
        quick = _quick(parser, value)
        if quick is not None:
            fields, reason = slow(value)
            assert reason is None, (value, reason)
            mine = pa.array([fields], parser._read).cast(json_corpus.plain(parser._read)).to_pylist()[0]
            assert repr(mine) == repr(quick), value


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=12), st.sampled_from(["wholes", "text", "arrays", "times"]))
def test_any_bytes_get_an_answer(noise: bytes, name: str) -> None:
    kind = json_corpus.SCHEMAS[name]
    for value in (noise, b'{"a":' + noise + b"}", b'{"a":"' + noise + b'"}', b"{" + noise):
        parsed = JsonValues(kind).parse(pa.array([b"{}", value, b'{"a":null}'])).values
        parsed.validate(full=True)
        assert len(parsed) == 3


LINES = [b'{"a":%d,"s":"%d"}' % (n, n) for n in range(600)]


@pytest.mark.parametrize(
    "bad",
    [
        {0: b"{"},
        {599: b'{"a":"x"}'},
        {300: None, 301: b""},
        {250: b'{"a":1}{"a":2}', 251: b"{}\x00{}"},  # as many documents as values, and one of them not its value's
        {70: b'{"a":1.5}', 400: b'{"a":99999999999}'},  # Arrow's message names no row
        dict.fromkeys(range(0, 600, 7), b"nonsense"),
        dict.fromkeys(range(600), b"[1]"),
    ],
    ids=["first", "last", "null and empty", "documents", "no row named", "many", "all"],
)
def test_bad_rows_leave_the_others_alone(bad: dict[int, bytes | None]) -> None:
    values: list[bytes | None] = [bad.get(n, line) for n, line in enumerate(LINES)]
    rows = read(values)
    assert len(rows) == len(values)
    for n, row in enumerate(rows):
        if n not in bad:
            assert row == {"a": n, "s": str(n), "_corrupt_record": None}
        else:
            assert row == read([bad[n]])[0]


def test_documents_that_make_up_for_each_other_are_seen() -> None:
    """Row counts alone do not show it: two documents in one value, none in another."""
    two, cut = b'{"a":1}{"a":2}', b'{"a":3}'
    pairs = [(two, b"{}{"), (two, b'{"s":"}{"}'), (b'{"a":', b'7}{"a":8}'), (b'{"a":"}', b'{"}{"a":1}')]
    for first, second in pairs:
        values = [*LINES[: FEW_ROWS * 2], first, second, cut]
        assert read(values)[-3:] == [read([first])[0], read([second])[0], read([cut])[0]]


def test_failfast_names_the_row_and_why() -> None:
    values = [*LINES[:100], None, b"", b'{"a":"x"}']
    with pytest.raises(MalformedValue, match="a: 'x' is not a whole number") as caught:
        read(values, mode=FAILFAST)
    assert caught.value.row == 102
    assert len(read(values[:-1], mode=FAILFAST)) == 102


def test_dropmalformed_says_which_rows_are_left() -> None:
    """A null value and an empty one are not malformed, as with from_json."""
    values = [b'{"a":1}', b"x", None, b"", b'{"a":"q","s":"t"}', b'{"a":2}']
    parsed = JsonValues(READ, DROPMALFORMED).parse(pa.array(values))
    assert parsed.kept is not None
    assert parsed.kept.to_pylist() == [True, False, True, True, False, True]
    assert [row and row["a"] for row in parsed.values.to_pylist()] == [1, None, None, 2]
    assert JsonValues(READ, DROPMALFORMED).parse(pa.array([b"{}"])).kept is None


def test_the_field_of_malformed_values_may_stand_anywhere_and_lack() -> None:
    first = pa.struct([("bad", pa.string()), ("a", pa.int32())])
    assert read([b"x", b'{"a":1,"bad":"mine"}'], first, corrupt="bad") == [
        {"bad": "x", "a": None},
        {"bad": None, "a": 1},
    ]
    assert read([b"x", b'{"a":"q","s":"t"}'], pa.struct([("a", pa.int32()), ("s", pa.string())])) == [
        {"a": None, "s": None},
        {"a": None, "s": "t"},
    ]


def test_times_without_a_zone_are_in_the_one_that_was_named() -> None:
    kind = pa.struct([("t", pa.timestamp("us", "UTC"))])
    values = [b'{"t":"2020-07-01T00:00:00"}', b'{"t":"2020-07-01T00:00:00Z"}'] * FEW_ROWS
    hours = [row["t"].hour for row in JsonValues(kind, zone="Europe/Paris").parse(pa.array(values)).values.to_pylist()]
    assert hours == [22, 0] * FEW_ROWS


def test_nothing_is_read_of_no_values() -> None:
    parsed = JsonValues(READ).parse(pa.array([], pa.binary()))
    assert (len(parsed.values), parsed.values.type) == (0, READ)


def test_slices_are_read_as_they_are() -> None:
    values = pa.array([b"x", *LINES[:300], b"y"]).slice(1, 300)
    assert [row["a"] for row in JsonValues(READ).parse(values).values.to_pylist()] == list(range(300))


def test_numbers_are_exact() -> None:
    kind = pa.struct([("d", pa.decimal128(38, 18)), ("f", pa.float32()), ("i", pa.int64())])
    row = read([b'{"d":0.000000000000000001,"f":16777217,"i":9007199254740993}'], kind)[0]
    assert row == {"d": Decimal("0.000000000000000001"), "f": 16777216.0, "i": 9007199254740993}


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (READ, {"mode": "LENIENT"}, "PERMISSIVE, FAILFAST, DROPMALFORMED"),
        (READ, {"zone": "Mars/Olympus"}, "unknown zone"),
        (pa.struct([]), {}, "no columns"),
        (pa.struct([("_corrupt_record", pa.int32())]), {}, "not a STRING"),
        (pa.struct([("a", pa.duration("us"))]), {}, "read it as STRING"),
        (pa.struct([("a", pa.list_(pa.null()))]), {}, "read it as STRING"),
        (pa.struct([("a", pa.map_(pa.int32(), pa.string()))]), {}, "MAP<STRING"),
        (pa.struct([("a", pa.int32()), ("a", pa.int32())]), {}, "twice"),
    ],
)
def test_unreadable_values_are_refused(kind: pa.StructType, settings: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        JsonValues(kind, **{"mode": PERMISSIVE, **settings})
    assert says in str(caught.value)

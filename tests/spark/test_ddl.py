"""Schemas as text: the same results as Spark's own parser, and errors with their position."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pyspark_tinymq.options.ddl import DEPTH_MAX, SchemaError, read_schema

TAKEN = [
    "a INT",
    "a int not\tnull, b STRUCT<c: ARRAY<INT> NOT NULL>",
    "`x NOT NULL` INT, `a``NOT NULL` INT NOT NULL",
    "a INT NOT NULL COMMENT 'is NOT NULL', b INT COMMENT \"it's NOT NULL\"",
    "a INT COMMENT 'it\\'s'",
    "struct<a:int,b:array<struct<c:map<string,decimal(5,2)>>>>",
    "a BOOLEAN, b TINYINT, c BYTE, d SMALLINT, e SHORT, f INTEGER, g BIGINT, h LONG, i FLOAT, j REAL, k DOUBLE",
    "a STRING, b BINARY, c DATE, d TIMESTAMP, e TIMESTAMP_NTZ, f TIMESTAMP_LTZ, g DECIMAL, h DEC(7), i NUMERIC(38,38)",
    "a STRUCT<b STRING, c: STRUCT<>>, d MAP<STRING, MAP<STRING, ARRAY<DATE>>>",
    "comment STRING, day INT, _c INT, x1 INT",
    "a ARRAY<ARRAY<ARRAY<INT>>>",
]
REFUSED = [
    ("a INTT", "at character 3, 'INTT': a type is missing for column 'a': 'intt' is not a type; did you mean INT?"),
    ("", "at the end: a column's name is missing"),
    ("a", "at the end: a type is missing for column 'a'"),
    ("a INT,", "at the end: a column's name is missing"),
    ("a INT b STRING", "at character 7, 'b STRING': the schema ends before this; put a comma between columns"),
    ("a-b INT", "at character 2, '-b INT': put a name with such characters in `backticks`"),
    ("a$ INT", "`backticks`"),
    ("1 INT", "at character 1"),
    ("`` INT", "at character 1"),
    ("a DECIMAL(39)", "a number from 1 to 38 is missing"),
    ("a DECIMAL(5, 6)", "a number from 0 to 5 is missing"),
    ("a ARRAY<INT", "at the end: '>' is missing"),
    ("a MAP<STRING>", "such as MAP<STRING, INT>"),
    ("a VARCHAR(3)", "VARCHAR cannot be read from JSON; read it as STRING"),
    ("a INTERVAL DAY", "INTERVAL cannot be read"),
    ("a STRING COLLATE UNICODE", "write STRING"),
    ("a INT COMMENT b", "the comment's text is missing"),
    ("struct<a:int,... 3 more fields>", "Spark cut this text short (it shows 25 fields): give schema.json()"),
    ("a " + "ARRAY<" * (DEPTH_MAX + 1), f"more than {DEPTH_MAX} nested types"),
    ('{"type":', "at character 9: "),
    ('{"a":1}', "this JSON is not a schema"),
    ("[1]", "this JSON is not a schema"),
    ('{"type":"struct"}', '"fields" is missing'),
    ('{"type":"struct","fields":[{"type":"integer"}]}', "a field has no name"),
    ('{"type":"struct","fields":[{"name":"a","type":"interval day"}]}', "column 'a': 'interval day' cannot be read"),
    ('{"type":"struct","fields":[{"name":"a","type":"decimal(99)"}]}', "column 'a': 'decimal(99)'"),
    ('{"type":"struct","fields":[{"name":"a","type":{"type":"udt"}}]}', "not a type of Spark's JSON"),
    ('{"type":"struct","fields":' * 100_000, "more than"),
]


def test_schemas_are_read_as_sparks_parser_reads_them(spark: SparkSession) -> None:
    """Except that all fields may be null; and Spark's JSON of a schema parses to the same schema."""
    parse = spark._jvm.org.apache.spark.sql.types.DataType.fromDDL  # type: ignore[union-attr]
    for text in TAKEN:
        theirs = str(parse(text).json())
        assert json.loads(read_schema(text).json()) == _nullable(json.loads(theirs)), text
        assert read_schema(theirs) == read_schema(text)


def _nullable(message: Any) -> Any:
    """A schema's JSON with every nullability true."""
    if isinstance(message, list):
        return [_nullable(each) for each in message]
    if not isinstance(message, dict):
        return message
    free = ("nullable", "containsNull", "valueContainsNull")
    return {name: True if name in free else _nullable(each) for name, each in message.items()}


@pytest.mark.parametrize("text", TAKEN)
def test_the_output_of_simple_string_is_read(text: str) -> None:
    schema = read_schema(text)
    if "`" not in text:  # it does not quote names
        assert read_schema(schema.simpleString()).simpleString() == schema.simpleString()
    assert read_schema(schema.json()) == schema


@pytest.mark.parametrize(("text", "says"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_refusal_names_the_position(text: str, says: str) -> None:
    with pytest.raises(SchemaError) as refused:
        read_schema(text)
    assert says in str(refused.value)


@given(st.text(alphabet="ab<>(),:`'{}\" .1INTARYSUCMPDE\\", max_size=40))
def test_any_text_is_a_schema_or_an_error(text: str) -> None:
    with suppress(SchemaError):
        schema = read_schema(text)
        assert read_schema(schema.json()) == schema

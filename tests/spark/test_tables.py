"""SQL tables without a session: the values that a catalog passes, and the options of a query of a table."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructField, StructType

from pyspark_tinymq.options import columns, tables
from pyspark_tinymq.options.options import BATCH, STREAM
from pyspark_tinymq.options.tables import DECLARED, KEPT
from pyspark_tinymq.source import DefaultSource
from tinymq.base.errors import InvalidConfig

TABLE = {"servers": "a:1", "subscribe": "flights"}
CATALOG = {"provider": "tinymq", "owner": "root", "comment": "of flights", "table_type": "MANAGED"}


def made(**options: str) -> StructType:
    """The columns of a table by CREATE TABLE ... OPTIONS."""
    twice = {f"option.{name}": text for name, text in options.items()}
    return DefaultSource(CATALOG | options | twice).schema()


def converted(schema: StructType) -> StructType:
    """The rows that a sink gets after Spark converted them to the columns of a table."""
    fields = []
    for each in schema.fields:
        metadata = {name: said for name, said in (each.metadata or {}).items() if name != DECLARED}
        fields.append(StructField(each.name, each.dataType, True, metadata))
    return StructType(fields)


def test_a_table_has_the_columns_of_a_read_and_carries_its_options() -> None:
    schema = made(**TABLE, startingOffsets='{"flights":{"0":5}}')
    assert schema.simpleString() == columns.spark_schema(headers=False).simpleString()
    kept = schema["topic"].metadata[KEPT]
    assert kept == {"servers": "a:1", "subscribe": "flights", "startingoffsets": '{"flights":{"0":5}}'}
    assert schema["topic"].metadata["comment"] == (
        'servers=a:1, startingoffsets={"flights":{"0":5}}, subscribe=flights'
    )
    values = made(**TABLE, valueFormat="json", valueSchema="a INT", includeHeaders="true")
    assert values["value"].dataType.simpleString() == "struct<a:int>"
    assert values.names[-1] == "headers"
    properties = DefaultSource(CATALOG | TABLE).schema()  # TBLPROPERTIES come once
    assert properties["topic"].metadata[KEPT] == TABLE


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (TABLE | {"zzz": "1"}, "unknown option 'zzz'"),
        (TABLE | {"subscrib": "x"}, "did you mean 'subscribe'?"),
        ({"subscribe": "flights"}, "'servers' is missing"),
        ({"servers": "a:1"}, "names no topic to read from or to write to"),
        (TABLE | {"path": "/x"}, "a topic has no location"),
        (TABLE | {"location": "/x"}, "leave LOCATION and path out"),
        (TABLE | {"acks": "none"}, "one of quorum, leader"),
        (TABLE | {"startingOffsets": "latest", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "begins at"),
        (TABLE | {"valueFormat": "json", "valueSchema": "a INT", "topic": "x"}, "cannot be written to, and topic is"),
    ],
)
def test_tables_that_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        made(**options)
    assert says in str(refused.value)
    assert refused.value.hint


def test_options_of_a_catalog_are_unknown_elsewhere() -> None:
    for name in ("provider", "owner", "option.subscribe"):
        with pytest.raises(InvalidConfig, match=f"unknown option '{name}'"):
            DefaultSource(TABLE | {name: "x"}).schema()


def test_a_read_has_the_tables_options_and_its_own() -> None:
    schema = made(
        **TABLE, topic="flights", maxOffsetsPerTrigger="5", endingOffsets="latest", startingOffsets="earliest"
    )
    batch = tables.for_read({}, schema, BATCH)
    assert batch == TABLE | {"endingoffsets": "latest", "startingoffsets": "earliest"}
    stream = tables.for_read({"replica": "any"}, schema, STREAM)
    assert stream == TABLE | {"maxoffsetspertrigger": "5", "startingoffsets": "earliest", "replica": "any"}
    other = tables.for_read({"Assign": '{"x":[0]}', "startingTimestamp": "5"}, schema, BATCH)
    assert other == {"servers": "a:1", "assign": '{"x":[0]}', "startingtimestamp": "5", "endingoffsets": "latest"}
    assert tables.for_read(TABLE, columns.spark_schema(headers=False), BATCH) == TABLE


def test_an_insert_has_the_options_of_the_table_that_it_goes_to() -> None:
    schema = made(**TABLE, topic="delays", acks="leader")
    wanted = {"servers": "a:1", "topic": "delays", "acks": "leader"}
    assert tables.for_write({}, converted(schema)) == wanted
    assert tables.for_write({"acks": "quorum"}, converted(schema)) == wanted | {"acks": "quorum"}
    sink_only = made(servers="a:1", topic="delays")
    assert tables.for_write({}, converted(sink_only)) == {"servers": "a:1", "topic": "delays"}
    given = {"servers": "b:1", "topic": "x"}
    assert tables.for_write(given, schema) == given, "whoever names brokers names all"
    assert tables.for_write({"acks": "leader"}, columns.spark_schema(headers=False)) == {"acks": "leader"}


def test_an_insert_into_a_table_without_a_topic_names_one_in_each_row() -> None:
    """Spark passes a column that may be null for one that INSERT leaves out."""
    schema = converted(made(**TABLE))
    with pytest.raises(InvalidConfig, match="the table names no topic to write to") as refused:
        tables.for_write({}, schema)
    assert "option topic" in refused.value.hint
    never_null = [StructField(f.name, f.dataType, f.name != "topic", f.metadata) for f in schema.fields]
    assert tables.for_write({}, StructType(never_null)) == {"servers": "a:1"}
    assert tables.for_write({"topic": "flights"}, schema) == {"servers": "a:1", "topic": "flights"}


def test_columns_of_another_table_do_not_say_where_to_write() -> None:
    """Rows reach the sink unchanged when their names and types are those of the target."""
    schema = made(**TABLE, topic="flights")
    parts = StructType([schema["value"], schema["topic"]])
    for given in (schema, parts, converted(parts)):
        with pytest.raises(InvalidConfig, match="Spark does not say which table is written to") as refused:
            tables.for_write({}, given)
        assert "name the columns" in refused.value.hint

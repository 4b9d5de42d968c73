"""The data source `tinymq`. Spark makes a DefaultSource for each read and write, with the options of the query.

Spark imports this module in every session to find the name. The modules that do the work are loaded at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_tinymq.options.settings import Source

FORMAT = "tinymq"


class DefaultSource(DataSource):
    """`spark.read.format("tinymq")`, `readStream`, `write`, `writeStream`: docs/spark-options.md has the options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns, which are those of the Kafka connector. The columns of a new SQL table carry its options
        (tables.py). Raises InvalidConfig."""
        from pyspark_tinymq.options import columns, settings, tables

        made = tables.of_creation(self.options)
        if made is not None:
            return tables.table_schema(made)
        headers, values = settings.read_schema_options(self.options)
        return columns.spark_schema(headers, values.schema if values is not None else None)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch. Raises InvalidConfig."""
        from pyspark_tinymq.options import settings, tables
        from pyspark_tinymq.options.options import BATCH
        from pyspark_tinymq.read import batch

        source = settings.read_source(tables.for_read(self.options, schema, BATCH), BATCH)
        return batch.BatchReader(source, _arrow(source, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream. Raises InvalidConfig."""
        from pyspark_tinymq.options import settings, tables
        from pyspark_tinymq.options.options import STREAM
        from pyspark_tinymq.read import stream

        source = settings.read_source(tables.for_read(self.options, schema, STREAM), STREAM)
        return stream.StreamReader(source, _arrow(source, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch: see writer.py. Raises InvalidConfig, UnknownTopic."""
        from pyspark_tinymq.options import tables
        from pyspark_tinymq.write import writer

        made = writer.batch_writer(tables.for_write(self.options, schema), schema, overwrite)
        writer.check_topic(made.sink)
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream: see writer.py. Raises InvalidConfig, UnknownTopic."""
        from pyspark_tinymq.write import writer

        made = writer.stream_writer(self.options, schema, overwrite)
        writer.check_topic(made.sink)
        return made


def _arrow(source: Source, schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a read. Raises InvalidConfig for a schema that does not follow from the options, and
    for columns into which values cannot be parsed."""
    from pyspark_tinymq.options import columns
    from tinymq.base.errors import InvalidConfig

    ours = columns.spark_schema(source.headers, source.values.schema if source.values is not None else None)
    if schema.simpleString() != ours.simpleString():
        raise InvalidConfig(
            f"the columns of a read follow from its options (includeHeaders, valueFormat, valueSchema): they are "
            f"{ours.simpleString()}, and {schema.simpleString()} was asked for",
            hint="leave .schema(...) or the columns of CREATE TABLE out, and select columns of the DataFrame",
        )
    made = columns.arrow_schema(schema)
    if source.values is not None:
        from pyspark_tinymq.plan import task

        task.json_values(source, made)  # here, and not in the first task
    return made

"""The data source `tinymq`: what Spark makes for each read and write, with the options it was given.

Import-light: Spark imports this in every session to find the name. What does the work is loaded when it is used.
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

    from pyspark_tinymq.settings import Source

FORMAT = "tinymq"


class DefaultSource(DataSource):
    """`spark.read.format("tinymq")`, `readStream`, `write`, `writeStream`: docs/spark-options.md has the options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType | str:
        """The columns: the Kafka connector's; as text where only Spark's parser can tell what `valueSchema` means.
        Raises InvalidConfig."""
        from pyspark_tinymq import columns, settings

        headers, values = settings.read_schema_options(self.options)
        return columns.spark_schema(headers) if values is None else columns.ddl(headers, values.ddl)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch. Raises InvalidConfig."""
        from pyspark_tinymq import batch, settings
        from pyspark_tinymq.options import BATCH

        source = settings.read_source(self.options, BATCH)
        return batch.BatchReader(source, _arrow(source, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Raises InvalidConfig."""
        from pyspark_tinymq import settings, stream
        from pyspark_tinymq.options import STREAM

        source = settings.read_source(self.options, STREAM)
        return stream.StreamReader(source, _arrow(source, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of a batch: see writer.py. Raises InvalidConfig."""
        from pyspark_tinymq import writer

        return writer.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """See writer.py. Raises InvalidConfig."""
        from pyspark_tinymq import writer

        return writer.stream_writer(self.options, schema, overwrite)


def _arrow(source: Source, schema: StructType) -> pa.Schema:
    """Of what is read. Raises InvalidConfig for another schema than ours: `.schema(...)` chooses no columns; and for
    values that cannot be parsed."""
    from pyspark_tinymq import columns
    from tinymq.errors import InvalidConfig

    value = schema["value"].dataType if "value" in schema.names and source.values is not None else None
    ours = columns.spark_schema(source.headers, value)
    if schema.simpleString() != ours.simpleString():
        raise InvalidConfig(
            f"the schema of a read is given by its options: {ours.simpleString()}",
            hint="leave .schema(...) out, and select columns of the DataFrame",
        )
    made = columns.arrow_schema(schema)
    if source.values is not None:
        from pyspark_tinymq import task

        task.json_values(source, made)  # here, and not in the first task
    return made

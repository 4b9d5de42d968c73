"""The limit of what a Python data source reads in Spark: the same columns, from batches that the task has at hand."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.measure import RECORD_BYTES
from benchmarks.spark.data import PARTITIONS
from pyspark_tinymq.columns import arrow_schema, spark_schema

BATCH_RECORDS = 1_000


class Ready(DataSource):
    """Options: `records`, of RECORD_BYTES each."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> StructType:
        return spark_schema(headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(int(self.options["records"]), arrow_schema(schema))


class _Reader(DataSourceReader):
    def __init__(self, records: int, schema: pa.Schema) -> None:
        self._batches = records // BATCH_RECORDS // PARTITIONS
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        count = BATCH_RECORDS
        columns = [
            [None] * count, [os.urandom(RECORD_BYTES)] * count, ["rows"] * count, [partition.value] * count,
            list(range(count)), [0] * count, [0] * count,
        ]  # fmt: skip
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        for _ in range(self._batches):
            yield batch

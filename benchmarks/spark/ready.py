"""The limit of what a Python data source reads in Spark: the same columns, from batches that the task has at hand."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.measure import RECORD_BYTES
from benchmarks.spark.data import PARTITIONS
from pyspark_tinymq.columns import arrow_schema, spark_schema

BATCH_RECORDS = 1_000
DIFFERENT = 64  # batches in turns: as with any source, what comes next lies in no cache of the processor


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
        made = [self._batch(partition.value) for _ in range(min(DIFFERENT, self._batches))]
        for number in range(self._batches):
            yield made[number % len(made)]

    def _batch(self, partition: int) -> pa.RecordBatch:
        count = BATCH_RECORDS
        values = pa.py_buffer(bytes(count * RECORD_BYTES))
        offsets = pa.array(range(0, (count + 1) * RECORD_BYTES, RECORD_BYTES), pa.int32()).buffers()[1]
        others = [["rows"] * count, [partition] * count, list(range(count)), [0] * count, [0] * count]
        kinds = [field.type for field in self._schema]
        arrays = [
            pa.nulls(count, kinds[0]),
            pa.Array.from_buffers(pa.binary(), count, [None, offsets, values]),
            *(pa.array(column, kind) for column, kind in zip(others, kinds[2:], strict=True)),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

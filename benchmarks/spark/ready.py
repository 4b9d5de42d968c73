"""The limits of a Python data source in Spark: the same columns, from batches in the task's memory, and from bytes that
another process sends unchanged.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import cache

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.measure import RECORD_BYTES
from benchmarks.spark.data import PARTITIONS
from benchmarks.spark.sending import PIECE_BYTES, WANTED
from pyspark_tinymq.options.columns import arrow_schema, spark_schema

BATCH_RECORDS = 1_000
DIFFERENT = 64  # batches in turns: as with any source, the next batch is in no cache of the processor


@cache
def _offsets() -> pa.Buffer:
    return pa.array(range(0, (BATCH_RECORDS + 1) * RECORD_BYTES, RECORD_BYTES), pa.int32()).buffers()[1]


class Ready(DataSource):
    """Options: `records`, the number of records of RECORD_BYTES each; `port`, from which values come (see
    sending.py).
    """

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> StructType:
        return spark_schema(headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(int(self.options["records"]), int(self.options.get("port", 0)), arrow_schema(schema))


class _Reader(DataSourceReader):
    def __init__(self, records: int, port: int, schema: pa.Schema) -> None:
        self._records = records // PARTITIONS
        self._port = port
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._sent(partition.value) if self._port else self._at_hand(partition.value)

    def _at_hand(self, partition: int) -> Iterator[pa.RecordBatch]:
        count = self._records // BATCH_RECORDS
        zeros = (pa.py_buffer(bytes(BATCH_RECORDS * RECORD_BYTES)) for _ in range(min(DIFFERENT, count)))
        made = [self._batch(values, self._others(partition)) for values in zeros]
        for number in range(count):
            yield made[number % len(made)]

    def _sent(self, partition: int) -> Iterator[pa.RecordBatch]:
        """Receive the bytes into the buffer that Arrow reads, and do nothing else."""
        others = self._others(partition)
        size = BATCH_RECORDS * RECORD_BYTES
        batches, left = PIECE_BYTES // size, self._records // BATCH_RECORDS
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            connection.sendall(WANTED.pack(-(-left // batches)))
            while left > 0:
                piece = pa.allocate_buffer(PIECE_BYTES)
                received = connection.recv_into(memoryview(piece).cast("B"), PIECE_BYTES, socket.MSG_WAITALL)
                assert received == PIECE_BYTES
                for number in range(min(batches, left)):
                    yield self._batch(piece.slice(number * size, size), others)
                left -= batches

    def _others(self, partition: int) -> list[pa.Array]:
        """All columns except the value."""
        count = BATCH_RECORDS
        columns = [[None] * count, ["rows"] * count, [partition] * count, list(range(count)), [0] * count, [0] * count]
        kinds = [field.type for field in self._schema if field.name != "value"]
        return [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]

    def _batch(self, values: pa.Buffer, others: list[pa.Array]) -> pa.RecordBatch:
        count = BATCH_RECORDS
        value = pa.Array.from_buffers(pa.binary(), count, [None, _offsets(), values])
        return pa.RecordBatch.from_arrays([others[0], value, *others[1:]], schema=self._schema)

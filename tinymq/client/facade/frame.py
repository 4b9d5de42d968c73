"""Frame: an AsyncFrame for threads, and for the engines that read it: Arrow, Polars, DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from tinymq.client.facade.generated.frame import FrameCalls
from tinymq.client.facade.reader import Reader

if TYPE_CHECKING:
    import duckdb
    import polars as pl


class Frame(FrameCalls):
    """A topic as a table. Made by Client.frame(). It reads nothing before it is used, and holds no connection.

        frame = mq.frame("orders", columns=["offset", "value"])
        frame.to_arrow()
        frame.lazy().filter(pl.col("offset") >= 100).collect()
        frame.relation(duckdb.connect()).filter('"offset" >= 100').fetchall()

    The first use fixes the range of every partition. So each use gives the same records, and a query that uses a frame
    twice is consistent. Records that arrive later are in the next frame. A use raises OffsetOutOfRange if retention has
    removed records of the frame since then, unless on_trimmed="skip". Safe to share between threads. Every library that
    reads an Arrow stream reads a frame: `pyarrow.table(frame)`, `polars.DataFrame(frame)`.

    Also:

        frame = mq.frame("orders", offsets=(0, 2))
        print(frame.schema, frame.ranges(), frame.count())
        for batch in frame.batches():
            print(batch.num_rows)
    """

    def __repr__(self) -> str:
        return repr(self._async).replace("AsyncFrame", "Frame", 1)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the records, in batches of `schema`. Those of a partition come in order; partitions are interleaved.

        At most buffer_bytes_max bytes wait. Raises as a reader does when no replica serves a partition.
        """
        return self._read(self.ranges())

    def lazy(self) -> pl.LazyFrame:
        """Return the frame for Polars. Needs the extra `polars`. Nothing is read before `collect`.

        A query reads the columns that it needs. Comparisons of `partition` and `offset` with numbers choose what is
        fetched; other conditions are applied to what was fetched. Raises MissingExtra.
        """
        from tinymq.client.frame.polars_source import lazy_frame

        return lazy_frame(self.schema, self.ranges, self._read)

    def relation(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        """Return the frame as a relation of DuckDB. Needs the extra `duckdb`. Nothing is read before the query runs.

        A query reads the columns that it needs. Conditions on `partition` and `offset` choose what is fetched; others
        are applied to what was fetched. In SQL the column `offset` is written with quotes. Raises InvalidRequest,
        MissingExtra.
        """
        from tinymq.client.frame.duckdb_relation import relation_of

        return relation_of(connection, self.schema, self.ranges, self._read)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the records as a stream of Arrow (the PyCapsule interface)."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)

    def _read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        asynchronous = self._loop_thread.do(lambda: self._async.reading(ranges))
        if asynchronous is None:
            return
        names = self.schema.names
        try:
            for batch in Reader(self._loop_thread, asynchronous).batches():
                yield batch.select(names)
        finally:
            self._loop_thread.begin(asynchronous.close())  # without waiting: an engine may drop this in any thread

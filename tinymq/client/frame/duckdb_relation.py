"""A frame for DuckDB: it asks for the columns and the rows that a query needs, as it asks any dataset of Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.dataset as ds

from tinymq.base import extras
from tinymq.base.errors import InvalidRequest
from tinymq.client.frame.ranges import Ranges, narrow

if TYPE_CHECKING:
    import duckdb

Read = Callable[[Ranges], Iterator[pa.RecordBatch]]

ALIGNMENT_BYTES = 8  # of buffers, as the widest type of a frame's columns needs it


class FrameDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """What DuckDB takes for a dataset: `schema`, and `scanner` with the columns and the filter of a query.

    DuckDB looks for an instance of Dataset. The object of C++ that a Dataset has is missing here, so nothing else of
    it may be called: it stays inside the relation.
    """

    def __init__(self, schema: pa.Schema, ranges: Callable[[], Ranges], read: Read) -> None:
        self._schema, self._ranges, self._read = schema, ranges, read

    @property
    def schema(self) -> pa.Schema:
        """The columns of the frame."""
        return self._schema

    def scanner(self, columns: Any = None, filter: Any = None, **_: Any) -> ds.Scanner:
        """Scan the ranges that the filter can need. Arrow drops the rows and the columns that nobody asked for."""
        ranges = self._ranges()
        if filter is not None:
            ranges = narrow(ranges, filter)
        batches = map(aligned, self._read(ranges))
        return ds.Scanner.from_batches(batches, schema=self._schema, columns=columns, filter=filter)

    def get_fragments(self, filter: Any = None) -> NoReturn:
        """A frame has no fragments."""
        raise NotImplementedError("a frame has no fragments")


def aligned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch itself, or a copy if one of its buffers is not aligned.

    A batch lies where it was received. Arrow's engine copies such a buffer, too, and prints a warning for each of them.
    """
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
    if all(buffer.address % ALIGNMENT_BYTES == 0 for buffer in buffers):
        return batch
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def relation_of(
    connection: duckdb.DuckDBPyConnection, schema: pa.Schema, ranges: Callable[[], Ranges], read: Read
) -> duckdb.DuckDBPyRelation:
    """Return a relation of the connection. Raises InvalidRequest, MissingExtra."""
    with extras.required("a frame as a relation"):
        import duckdb
    if not isinstance(connection, duckdb.DuckDBPyConnection):
        raise InvalidRequest(
            f"connection is {type(connection).__name__}, not a connection of DuckDB", hint="pass duckdb.connect()"
        )
    return connection.from_arrow(FrameDataset(schema, ranges, read))

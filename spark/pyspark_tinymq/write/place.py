"""A record's place in the query that wrote it: the header by which a reader recognizes a repeat. Pure.

    tinymq.place: <application>/<version>/<task partition>/<row>

`application` is the query's id, or the option txnAppId. `version` is the number of the micro-batch, or the option
txnVersion. `row` numbers the rows of the task, from 0. A retried task has the same application, version and partition.
It writes the same rows under the same places if Spark passes them in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

PLACE = "tinymq.place"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a task stands in its query: all of a record's place but the row."""

    application: str
    version: int
    partition: int

    def __str__(self) -> str:
        return f"{self.application}/{self.version}/{self.partition}"

    def of_rows(self, first: int, count: int) -> pa.Array:
        """Return the places of `count` rows from `first` on, as binary."""
        rows = pa.array(range(first, first + count), pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(f"{self}", rows, "/").cast(pa.binary())


def with_places(headers: pa.Array | None, places: pa.Array) -> pa.Array:
    """Return `headers`, of type HEADERS, with each row's place as its last header. None: no row has headers."""
    count = len(places)
    names = pa.repeat(pa.scalar(PLACE), count)
    pairs = pa.StructArray.from_arrays([names, places], fields=list(HEADERS.value_type))
    if headers is None or headers.null_count == count:
        return pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), pairs).cast(HEADERS)
    owners = pc.list_parent_indices(headers)
    all_pairs = pa.concat_arrays([headers.flatten(), pairs])
    rows = pa.concat_arrays([owners.cast(pa.int64()), pa.array(range(count), pa.int64())])
    lengths = pc.add(pc.fill_null(pc.list_value_length(headers), 0), 1)
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
    return pa.ListArray.from_arrays(ends, all_pairs.take(pc.sort_indices(rows))).cast(HEADERS)

"""Split a table into batches: by partition, then by size. The order within each partition stays. Pure."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from tinymq.format.columns import int64_column


def by_partition(
    batch: pa.RecordBatch, partition_of: Callable[[bytes | None], int | None]
) -> list[tuple[int | None, pa.RecordBatch]]:
    """Split a batch of SCHEMA into (partition, rows). Partition None: these rows may go to any one partition.

    A batch whose rows all go to one partition is returned as it is; otherwise rows are copied.
    """
    rows: dict[int | None, list[int]] = {}
    for row, key in enumerate(batch.column(0).to_pylist()):
        rows.setdefault(partition_of(key), []).append(row)
    if len(rows) == 1:
        return [(next(iter(rows)), batch)]
    return [(partition, batch.take(int64_column(places))) for partition, places in rows.items()]


def by_size(batch: pa.RecordBatch, bytes_aim: int, bytes_max: int, rows_max: int) -> list[pa.RecordBatch]:
    """Cut `batch` into slices of about `bytes_aim` unpacked bytes.

    No slice has more than `rows_max` rows, and none has more than `bytes_max` unless it is a single row.
    """
    rows = batch.num_rows
    pieces = max(1, round(batch.nbytes / bytes_aim), -(-rows // rows_max))
    if pieces > 1:
        step = -(-rows // pieces)
        slices = [batch.slice(start, min(step, rows - start)) for start in range(0, rows, step)]
    else:
        slices = [batch]
    fitting = []
    for piece in slices:
        if piece.nbytes > bytes_max and piece.num_rows > 1:
            half = piece.num_rows // 2
            for part in (piece.slice(0, half), piece.slice(half)):
                fitting.extend(by_size(part, bytes_aim, bytes_max, rows_max))
        else:
            fitting.append(piece)
    return fitting

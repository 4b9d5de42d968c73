"""The limit for `make bench-spark`: it returns every requested row of the sent bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from benchmarks.measure import RECORD_BYTES
from benchmarks.spark.data import PARTITIONS
from benchmarks.spark.ready import Ready
from benchmarks.spark.sending import PIECE_BYTES, Sending


@pytest.mark.parametrize("sent", [False, True])
def test_every_row_comes(sent: bool, tmp_path: Path) -> None:
    records = 10_000 * PARTITIONS
    with Sending(tmp_path, pieces=2) as sending:
        content = (tmp_path / "pieces").read_bytes()
        source = Ready({"records": str(records), "port": str(sending.port if sent else 0)})
        schema = source.schema()
        assert isinstance(schema, StructType)
        reader = source.reader(schema)
        values: list[bytes] = []
        for part in reader.partitions():
            for batch in reader.read(part):
                assert batch.schema.names == schema.names
                values += batch.column("value").to_pylist()
    assert len(values) == records
    assert {len(value) for value in values} == {RECORD_BYTES}
    if sent:  # the second piece's first row follows the last whole batch of the first
        assert values[0] == content[:RECORD_BYTES]
        assert values[4_000] == content[PIECE_BYTES : PIECE_BYTES + RECORD_BYTES]
    assert not (tmp_path / "pieces").exists()

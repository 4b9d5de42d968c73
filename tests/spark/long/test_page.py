"""The Python of docs/spark.md runs from top to bottom, as a reader pastes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark import pasted
from tinymq.testing.cluster import Cluster

PAGE_S_MAX = 400.0  # a session and a dozen jobs on a busy machine


@pytest.mark.timeout(PAGE_S_MAX)
def test_the_page_works_from_top_to_bottom(
    spark: SparkSession, cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    servers = pasted.fill(cluster)
    _, shown = pasted.run(pasted.BLOCKS, servers, capsys, tmp_path)
    _first, some, stream, _written, loud, numbers, tables = shown
    assert tables == "1\n"
    ends = cluster.client().admin.offsets("lines")
    assert some == f"{sum(ends[partition].high_watermark for partition in range(3))}\n"
    assert sum(row["count"] for row in spark.table("counts").collect()) == pasted.LINES
    assert stream.count("\n|") == 1 + sum(1 for end in ends.values() if end.high_watermark)
    assert loud == f"{pasted.LINES}\n"
    assert f"|{pasted.LINES * (pasted.LINES + 1) // 2}|" in numbers.replace(" ", "")

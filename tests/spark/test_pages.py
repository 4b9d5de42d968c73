"""The first examples of docs/spark.md run as a reader pastes them. long/test_page.py runs all of them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.spark import pasted
from tinymq.testing.cluster import Cluster


def test_the_first_ten_lines_work(spark: SparkSession, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    known, (shown,) = pasted.run(pasted.BLOCKS[:1], pasted.fill(cluster), capsys)
    assert known["spark"] is spark
    assert len(pasted.BLOCKS[0].splitlines()) <= 10
    assert [row.split("|")[3].strip() for row in shown.splitlines() if row.startswith("|")][1:] == pasted.FIRST

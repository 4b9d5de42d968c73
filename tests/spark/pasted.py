"""The Python of docs/spark.md, and a cluster to run it against."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tinymq.testing.cluster import Cluster

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
BLOCKS: list[str] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ADDRESS = "127.0.0.1:7070"
LINES = 1_000
FIRST = ["1", "10", "100", "1000", "101"]  # lines, in the order of their texts


def fill(cluster: Cluster) -> str:
    """Create the README's topics and those that the page writes to. Returns the servers."""
    client = cluster.client()
    for topic, partitions in (("lines", 6), ("loud", 1), ("numbers", 1)):
        client.admin.create_topic(topic, partitions=partitions, replication_factor=3)
    with client.producer() as producer:
        for number in range(1, LINES + 1):
            producer.send("lines", b"%d" % number)
    return cluster.servers


def run(
    blocks: list[str], servers: str, capsys: pytest.CaptureFixture[str], folder: Path = Path("checkpoints")
) -> tuple[dict[str, Any], list[str]]:
    """Run the blocks in order, as a reader pastes them. Returns the names that they define, and the output of each."""
    known: dict[str, Any] = {}
    shown = []
    for block in blocks:
        assert ADDRESS in block or "127.0.0.1" not in block
        block = block.replace(ADDRESS, servers).replace("checkpoints/", f"{folder}/")
        exec(compile(block, "docs/spark.md", "exec"), known)
        shown.append(capsys.readouterr().out)
    return known, shown

"""What the README shows does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tinymq.testing import Cluster

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
ADDRESS = "127.0.0.1:7070"


def test_the_client_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert ADDRESS in example
    with Cluster(nodes=3) as cluster:
        exec(compile(example.replace(ADDRESS, cluster.servers), "README.md", "exec"), {})
    first, *rest = capsys.readouterr().out.splitlines()
    assert "topic='orders'" in first
    assert len(rest) == 1001
    assert sum(line.endswith("b'order 999'") for line in rest) == 1


def test_the_two_commands_come_first() -> None:
    first_block = README.split("```")[1]
    assert [line.split("#")[0].strip() for line in first_block.strip().splitlines()] == ["make run", "make test"]

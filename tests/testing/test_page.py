"""The example of docs/testing.md is a test that passes, in at most twenty lines of code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tinymq import Client
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text()


def test_the_example_works(tinymq_cluster: Cluster, tinymq_client: Client, tinymq_topic: str) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len([line for line in example.splitlines() if line]) <= 20
    names: dict[str, Any] = {}
    exec(compile(example, "docs/testing.md", "exec"), names)
    names["test_no_order_is_lost_when_a_leader_dies"](tinymq_cluster, tinymq_client, tinymq_topic)


def test_the_page_has_every_call_of_a_cluster_that_hurts() -> None:
    shown = set(re.findall(r"cluster\.(\w+)", PAGE))
    assert shown >= {"kill", "stop", "start", "restart", "wipe", "partition", "slow", "heal", "clock", "faults"}
    assert [name for name in shown - {"clock"} if not hasattr(Cluster, name)] == []

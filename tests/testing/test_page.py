"""The example of docs/testing.md is a test that passes, in at most twenty lines of code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tinymq import Client
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text()
BLOCKS: list[str] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_example_works(tinymq_cluster: Cluster, tinymq_client: Client, tinymq_topic: str) -> None:
    (example, _) = BLOCKS
    assert len([line for line in example.splitlines() if line]) <= 20
    names: dict[str, Any] = {}
    exec(compile(example, "docs/testing.md", "exec"), names)
    names["test_no_order_is_lost_when_a_leader_dies"](tinymq_cluster, tinymq_client, tinymq_topic)


def test_the_environment_names_the_cluster_to_a_service(
    tinymq_cluster: Cluster, tinymq_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"Cluster": Cluster, "pytest": pytest}
    exec(compile("from __future__ import annotations\n" + BLOCKS[1], "docs/testing.md", "exec"), names)
    names["test_a_service"](tinymq_cluster, monkeypatch)
    with Client() as mq:  # as a service does
        assert mq.send(tinymq_topic, b"order 1", partition=0).offset == 0


def test_the_page_has_every_call_of_a_cluster_that_hurts() -> None:
    shown = set(re.findall(r"cluster\.(\w+)", PAGE))
    assert shown >= {"kill", "stop", "start", "restart", "wipe", "partition", "slow", "heal", "clock", "faults"}
    assert [name for name in shown - {"clock"} if not hasattr(Cluster, name)] == []

"""The pytest fixtures, used as another project would: pytest runs the example's test in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.real.checkout import OWN
from tests.test_tidy import ROOT

pytestmark = pytest.mark.long

EXAMPLE = ROOT / "examples" / "chaos"
CARELESS = """

# ---- what is added here: a consumer that loses an order, in the same test on the same cluster, without faults ----


class Careless(Bookkeeper):
    def book(self, order: str) -> None:
        if order != "order 60":
            super().book(order)


class Calm:
    def watch(self, topic: str, partitions: int) -> None: ...

    @contextmanager
    def fault(self, kind: str, **parameters: float) -> Iterator[None]:
        yield


def test_a_careless_consumer(chaos_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TOPIC": "careless", "WITHIN_S": 10.0, "Bookkeeper": Careless}.items():
        monkeypatch.setitem(globals(), name, value)
    test_every_order_is_booked_once(chaos_cluster, Calm())
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = OWN
    return subprocess.run([*command, *options], env=env, capture_output=True, text=True, timeout=280, cwd=folder)


@pytest.mark.timeout(300)
def test_the_example_passes_and_notices_a_consumer_that_loses_an_order(tmp_path: Path) -> None:
    for file in EXAMPLE.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    example = tmp_path / "test_consumer.py"
    example.write_text(example.read_text() + CARELESS)
    done = run(tmp_path, "--chaos-seed", "7")
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "1 failed, 1 passed" in said, said
    assert "FAILED test_consumer.py::test_a_careless_consumer" in said, said
    assert "149 of 150 orders were booked within 10 s" in said, said
    assert said.count("the nemesis chooses by --chaos-seed 7") == 1

"""The pytest fixtures, used as somebody else would: pytest runs the example's test in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_tidy import ROOT

EXAMPLE = ROOT / "examples" / "chaos"
BOOKS = "self.booked.append(order)"
BOOKS_BUT_ONE = "self.booked += [order] if order != 'order 60' else []"


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = str(ROOT / "chaos")
    return subprocess.run([*command, *options], env=env, capture_output=True, text=True, timeout=280, cwd=folder)


@pytest.mark.timeout(300)
def test_the_example_passes_and_notices_a_consumer_that_loses_an_order(tmp_path: Path) -> None:
    for file in EXAMPLE.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    text = (tmp_path / "test_consumer.py").read_text()
    careless = text.replace(BOOKS, BOOKS_BUT_ONE).replace("WITHIN_S = 60.0", "WITHIN_S = 2.0")
    assert careless.count("order 60") == careless.count("WITHIN_S = 2.0") == 1
    (tmp_path / "test_careless.py").write_text(careless)
    done = run(tmp_path, "--chaos-seed", "7")
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "1 failed, 1 passed" in said, said
    assert "149 of 150 orders were booked" in said, said
    assert said.count("what the nemesis chooses follows from --chaos-seed 7") == 2

"""The modules that a broker's process imports at its start."""

from __future__ import annotations

import subprocess
import sys

STARTED = """
from tinymq.cli.common import tuning
tuning.tune()
import sys, tinymq.app.broker_app, tinymq.format.batch, pyarrow.compute as pc, pyarrow as pa
print(sys.modules["numpy"], pc.sum(pa.array([1, 2])).as_py())
"""


def test_a_broker_starts_without_numpy_and_with_pyarrow() -> None:
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "3"]

"""The content of the wheel, and the needs of an environment created from it alone."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.spark import environments


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environments.build(tmp_path_factory.mktemp("wheel"))


def _run(python: Path, code: str) -> str:
    """Return the output of a program. `-I`: no path leads to this tree."""
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_data_source_is_in_it_and_the_programs_are_not(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    source = environments.ROOT / "spark" / "pyspark_tinymq"
    assert names >= {f"pyspark_tinymq/{path.name}" for path in source.glob("*.py")} | {"pyspark_tinymq/py.typed"}
    tops = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"tinymq", "pyspark_tinymq"}


def test_without_spark_the_client_works_and_the_data_source_says_what_is_missing(wheel: Path, tmp_path: Path) -> None:
    python = environments.make(tmp_path / "env", wheel)
    assert _run(python, "import tinymq, tinymq.client; print(tinymq.client.Client.__name__)") == "Client"
    assert _run(python, "import pyspark_tinymq; print(pyspark_tinymq.__name__)") == "pyspark_tinymq"
    told = _run(python, "try:\n import pyspark_tinymq as p; p.DefaultSource\nexcept ImportError as e: print(e)")
    assert told == (
        "the Spark data source needs pyspark, which the base install leaves out and the extra 'spark' adds:"
        f" {python} -m pip install '{wheel}[spark]'"
    )


LOOK = """
from pkgutil import iter_modules
from importlib import import_module
found = [m.name for m in iter_modules() if m.name.startswith("pyspark_")]
print(*(import_module(name).DefaultSource.name() for name in found))
"""


def test_with_spark_the_name_is_found_without_a_word(wheel: Path, tmp_path: Path) -> None:
    """Like pyspark/sql/worker/lookup_data_sources.py, but without a JVM; long/test_submit.py runs the whole."""
    assert _run(environments.make(tmp_path / "env", wheel, ["spark"]), LOOK) == "tinymq"

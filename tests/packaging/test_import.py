"""What `import tinymq` and the client load. No stopwatch: machines are shared (benchmarks/import_time.py has one)."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each of these takes as long to load as a good part of the client.
HEAVY = ("grpc", "numpy.random", "pyarrow.compute", "tinymq.client.admin", "pydantic", "rich", "cyclopts")


def loaded_by(program: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `program`."""
    code = f"{program}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("program", ["import tinymq; tinymq.Client", "import tinymq; tinymq.AsyncClient"])
def test_the_client_loads_what_each_program_needs_and_no_more(program: str) -> None:
    loaded = loaded_by(program)
    assert "pyarrow" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_the_package_alone_loads_no_client() -> None:
    loaded = loaded_by("import tinymq; tinymq.__version__")
    assert not {"tinymq.client", "pyarrow", "grpc", "asyncio"} & loaded


def test_the_names_for_completion_are_public() -> None:
    import tinymq

    assert "Client" in dir(tinymq)
    assert "__version__" in dir(tinymq)

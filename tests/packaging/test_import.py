"""What `import tinymq` and the client load. No stopwatch: machines are shared (benchmarks/import_time.py has one)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

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


def test_an_error_alone_loads_no_client() -> None:
    loaded = loaded_by("from tinymq import UnknownTopic")
    assert not {"tinymq.client.common", "pyarrow", "grpc", "asyncio", "google.protobuf"} & loaded


def test_the_names_for_completion_are_public() -> None:
    import tinymq
    import tinymq.client

    for package in (tinymq, tinymq.client):
        assert [name for name in dir(package) if not name.startswith("_")] == tinymq.__all__
    assert "__version__" in dir(tinymq)


def test_each_line_of_the_stub_is_a_public_name() -> None:
    """`tinymq.client` reads its stub line by line. A line of another form would be a name for type checkers alone."""
    import tinymq
    from tinymq import client

    stub = Path(client.__file__).with_suffix(".pyi")
    lines = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    assert [alias.name for line in lines for alias in line.names] == [line.names[0].asname for line in lines]
    assert sorted(line.names[0].name for line in lines) == client.__all__
    assert all(getattr(tinymq, name) is getattr(client, name) for name in client.__all__)

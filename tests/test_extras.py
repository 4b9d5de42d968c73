"""The base install, with other packages blocked: features that need an extra name it, without a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tinymq.base.extras import EXTRAS, MissingExtra, install_command, pip_arguments, required

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "pyjwt[crypto]": "jwt",
    "sqlalchemy[asyncio]": "sqlalchemy",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
}
BLOCK = """
import sys
from importlib.abc import MetaPathFinder

class Base(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Base())
"""


def run(program: str, *arguments: str, missing: set[str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `program` in a process without these packages; by default, those of all extras."""
    block = BLOCK.format(missing=set(EXTRAS) if missing is None else missing)
    return subprocess.run(
        [sys.executable, "-c", block + program, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_table_is_what_the_distribution_says() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {}
    for extra in ("broker", "cli", "jwt", "outbox", "zookeeper", "spark", "polars", "duckdb"):
        for requirement in extras[extra]:
            name = requirement.split(">")[0].split("=")[0].strip()
            if not name.startswith("tinymq"):
                named[PACKAGES.get(name, name.replace("-", "_"))] = extra
    assert named == EXTRAS


def test_the_base_install_is_the_client() -> None:
    done = run("import tinymq; tinymq.Client, tinymq.AsyncClient; tinymq.Client('127.0.0.1:1').close()")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["topic", "list"], ["broker"]], ids=" ".join)
def test_the_command_says_what_to_install(arguments: list[str]) -> None:
    done = run("from tinymq.cli.main import main; main()", *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the tinymq command needs cyclopts, which the base install leaves out")
    assert line.endswith(f"the extra 'cli' adds: {install_command('cli')}")
    assert done.stdout == ""


IMPORTS = {
    "from tinymq.testing import Cluster": ("structlog", "broker"),
    "from tinymq.testing.cluster import Cluster": ("structlog", "broker"),
    "import tinymq.app.broker_app": ("structlog", "broker"),
    "import tinymq.app.settings": ("pydantic", "broker"),
    "import tinymq.outbox": ("sqlalchemy", "outbox"),
    "from tinymq.inbox import Inbox": ("sqlalchemy", "outbox"),
    "from pyspark_tinymq import DefaultSource": ("pyspark", "spark"),
    "import pyspark_tinymq; pyspark_tinymq.drop_repeats": ("pyspark", "spark"),
}


@pytest.mark.parametrize("program", IMPORTS)
def test_a_failed_import_names_the_package_to_install(program: str) -> None:
    package, extra = IMPORTS[program]
    done = run(f"try:\n    {program}\nexcept ImportError as e:\n    print(type(e).__name__, e)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("MissingExtra ")
    assert f"needs {package}, " in done.stdout
    assert install_command(extra) in done.stdout


def test_a_broker_without_one_package_of_its_extra_names_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_bytes(b"s" * 32)
    options = ["broker", "--broker-id", "1", "--data-dir", str(tmp_path / "data"), "--secret-file", str(secret)]
    done = run("from tinymq.cli.main import main; main()", *options, "--voter", "1@127.0.0.1:1", missing={"h11"})
    assert done.returncode == 2
    assert "needs h11" in done.stderr
    assert "the extra 'broker'" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_imports_that_fail_stay_what_they_are() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), required("a test"):
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    with pytest.raises(MissingExtra, match=r"a test needs kazoo, .* the extra 'zookeeper' adds: "), required("a test"):
        raise ModuleNotFoundError("No module named 'kazoo.client'", name="kazoo.client")


@pytest.mark.parametrize(
    ("origin", "arguments"),
    [
        (None, ["tinymq[cli]"]),
        ({"url": "file:///a%20b/tinymq.whl", "archive_info": {}}, ["/a b/tinymq.whl[cli]"]),
        ({"url": "file:///a", "dir_info": {}}, ["/a[cli]"]),
        ({"url": "file:///a", "dir_info": {"editable": True}}, ["--editable", "/a[cli]"]),
        (
            {"url": "https://h/t.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            ["tinymq[cli] @ git+https://h/t.git@abc"],
        ),
        ({"url": "https://h/t.whl", "archive_info": {}}, ["tinymq[cli] @ https://h/t.whl"]),
    ],
    ids=["index", "wheel", "folder", "editable", "repository", "url"],
)
def test_an_extra_comes_from_where_tinymq_came_from(origin: dict[str, object] | None, arguments: list[str]) -> None:
    """No package index needs to have it: the command names the wheel or the folder of the first installation."""
    assert pip_arguments("cli", None if origin is None else json.dumps(origin)) == arguments

"""The wheel and the sdist, built and installed outside of the source tree: contents, metadata, and that they work."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests import test_readme
from tests.spark import environments
from tinymq.base.errors import NotFound
from tinymq.base.version import VERSION
from tinymq.dev import dev_cluster, dev_directory

ROOT = environments.ROOT
FOUR = {"google-crc32c", "grpcio", "protobuf", "pyarrow"}
KINDS = ("wheel", "sdist")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distributions")


@pytest.fixture(scope="module")
def built(folder: Path) -> dict[str, Path]:
    """The wheel of this tree, its sdist, and under "from sdist" the wheel that pip would build from the sdist."""
    _hatch(ROOT, folder / "dist")
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    _hatch(source, folder / "again", "-t", "wheel")
    (again,) = (folder / "again").glob("*.whl")
    return {"wheel": wheel, "sdist": sdist, "from sdist": again}


def _hatch(source: Path, target: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target), *arguments]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


def _installed(built: dict[str, Path], kind: str) -> Path:
    return built["wheel" if kind == "wheel" else "from sdist"]


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(packed.read(name).decode())


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def test_the_metadata_says_what_the_project_is(built: dict[str, Path]) -> None:
    said = _metadata(built["wheel"])
    assert said["Version"] == VERSION
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Requires-Python"] == ">=3.11"
    assert said["Description-Content-Type"] == "text/markdown"
    classifiers = said.get_all("Classifier", [])
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.11"} <= set(classifiers)
    assert classifiers == sorted(classifiers)
    needed = [line for line in said.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {line.split(">")[0] for line in needed} == FOUR


def test_twine_accepts_both(built: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", str(built["wheel"]), str(built["sdist"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_has_the_code_and_nothing_of_this_machine(built: dict[str, Path]) -> None:
    contents = _contents(built["wheel"])
    assert {"tinymq/py.typed", "pyspark_tinymq/py.typed", "tinymq/__main__.py"} <= contents.keys()
    assert any(name.endswith("/licenses/LICENSE") for name in contents)
    tops = {name.partition("/")[0] for name in contents if ".dist-info/" not in name}
    assert tops == {"tinymq", "pyspark_tinymq"}
    assert [name for name, data in contents.items() if str(ROOT).encode() in data] == []
    assert [name for name in contents if "/tests/" in name or "__pycache__" in name] == []


def test_the_sdist_makes_the_same_wheel(built: dict[str, Path]) -> None:
    assert _contents(built["from sdist"]) == _contents(built["wheel"])


def test_two_builds_are_equal_byte_by_byte(built: dict[str, Path]) -> None:
    """They were made at different times, from folders of different names."""
    assert built["from sdist"].read_bytes() == built["wheel"].read_bytes()


def test_the_version_is_written_once(built: dict[str, Path]) -> None:
    assert "version" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"-{VERSION}" in built["sdist"].name


@pytest.mark.parametrize("kind", KINDS)
def test_each_one_installs_a_client_that_works_alone(built: dict[str, Path], folder: Path, kind: str) -> None:
    python = environments.make(folder / f"client of {kind}", _installed(built, kind))
    code = "import tinymq; tinymq.Client('127.0.0.1:1').close(); print(tinymq.__version__, tinymq.__file__)"
    done = _run([str(python), "-I", "-c", code], folder)
    version, path = done.stdout.split(maxsplit=1)
    assert version == VERSION
    assert str(ROOT) not in path
    command = _run([str(python), "-I", "-m", "tinymq", "topic", "list"], folder, expected=2)
    assert "the extra 'cli' adds" in command.stderr
    assert f"{shlex.quote(str(python))} -m pip install" in command.stderr, (
        "the command that works for this installation"
    )


@pytest.mark.parametrize("arguments", [["-V"], ["--version"]], ids=" ".join)
def test_with_all_extras_the_command_tells_its_version(
    built: dict[str, Path], folder: Path, arguments: list[str]
) -> None:
    home = folder / "all"
    python = home / "bin" / "python"
    if not home.exists():
        environments.make(home, built["wheel"], ["all"])
    for command in ([str(home / "bin" / "tinymq")], [str(python), "-I", "-m", "tinymq"]):
        assert _run([*command, *arguments], folder).stdout.strip() == VERSION


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    with contextlib.suppress(NotFound):
        dev_cluster.down(tmp_path / dev_directory.DEFAULT, purge=True)


@pytest.mark.long
@pytest.mark.timeout(test_readme.PASTING_S_MAX)
@pytest.mark.parametrize("kind", KINDS)
def test_the_readme_works_with_what_is_installed(
    built: dict[str, Path], folder: Path, elsewhere: Path, kind: str
) -> None:
    python = environments.make(folder / f"all of {kind}", _installed(built, kind), ["all"])
    test_readme.paste(elsewhere, str(python))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_pip_installs_it_into_an_empty_environment(built: dict[str, Path], tmp_path: Path, kind: str) -> None:
    """With its dependencies from the package index, as a user does."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    _run([str(python), "-m", "pip", "install", "--quiet", f"{built[kind]}[all]"], tmp_path)
    _run([str(python), "-m", "pip", "check"], tmp_path)
    assert _run([str(tmp_path / "env" / "bin" / "tinymq"), "-V"], tmp_path).stdout.strip() == VERSION


def _run(command: list[str], folder: Path, expected: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stderr
    return done

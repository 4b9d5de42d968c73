"""The files of requirements/: the set-up installs exactly these packages, and refuses changed ones."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tools import lock

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def _locked(names: Iterable[str]) -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for name in names:
        for head in lock.packages((ROOT / "requirements" / f"{name}.txt").read_text()):
            package = Requirement(head)
            found.setdefault(canonicalize_name(package.name), []).append(package)
    return found


def _asked(extras: list[str], groups: list[str]) -> list[Requirement]:
    """What pyproject.toml asks for, with the extras that an extra names."""
    project = PROJECT["project"]
    asked = [*project["dependencies"], *(line for name in groups for line in PROJECT["dependency-groups"][name])]
    for extra in extras:
        asked += project["optional-dependencies"][extra]
    requirements = [Requirement(line) for line in asked]
    ours = [requirement for requirement in requirements if requirement.name == "tinymq"]
    others = [requirement for requirement in requirements if requirement.name != "tinymq"]
    return others + [each for own in ours for each in _asked(sorted(own.extras), [])]


def test_each_stage_has_what_pyproject_asks_for() -> None:
    before = ["build"]
    for name, stage in lock.STAGES.items():
        before.append(name)
        locked = _locked(before)
        for wanted in _asked(*stage):
            (pinned, *_) = locked.get(canonicalize_name(wanted.name), [None])
            assert pinned is not None, f"requirements/{name}.txt has no {wanted.name}: make lock"
            (version,) = pinned.specifier
            assert version.operator == "=="
            assert wanted.specifier.contains(version.version), f"{wanted} against {pinned}: make lock"


def test_each_package_has_its_hashes() -> None:
    assert len(FILES) >= len(lock.STAGES) + 2
    for path in FILES:
        for head, block in lock.packages(path.read_text()).items():
            assert HASH.search(block), f"{path.name}: {head}"
            assert "://" not in block, "a lock names no host"


def test_pip_refuses_a_package_that_was_changed(tmp_path: Path) -> None:
    """A wheel with the name and version of the lock, and other bytes."""
    (head, block), *_ = lock.packages((ROOT / "requirements" / "build.txt").read_text()).items()
    name, version = Requirement(head).name, str(next(iter(Requirement(head).specifier)).version)
    (tmp_path / f"{name}-{version}-py3-none-any.whl").write_bytes(b"changed")
    wanted = tmp_path / "wanted.txt"
    wanted.write_text(block)
    command = [
        *(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--find-links", str(tmp_path)),
        *("--require-hashes", "--target", str(tmp_path / "there"), "-r", str(wanted)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.parametrize("stage", list(lock.STAGES))
def test_the_set_up_installs_the_stage(stage: str) -> None:
    """A file that the Makefile does not name would be of no use."""
    assert f"-r requirements/{stage}.txt" in (ROOT / "Makefile").read_text()

"""The build from which upgrades start: the commit in BASE, as a wheel from `git archive`, unpacked into .venv/tools.

    python -m tests.upgrade.base_build

Built once per commit. A broker of that build runs with the directory on PYTHONPATH, so Python finds its code before the
present one; its dependencies are in .venv already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BASE = (Path(__file__).parent / "BASE").read_text().strip()
TOOLS = Path(sys.prefix) / "tools" / "upgrade"  # of the virtual environment that runs the tests
FETCH = "git fetch --unshallow"


def site(commit: str = BASE) -> Path:
    """Return the directory of that build's packages, built if it is missing. `commit`: its whole hash. Raises a
    RuntimeError that names the command to run.
    """
    place = TOOLS / commit
    if not place.exists():
        TOOLS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=TOOLS) as scratch:
            made = _build(Path(scratch), commit)
            try:
                made.rename(place)
            except OSError:  # another worker was faster
                if not place.exists():
                    raise
    return place


def _build(scratch: Path, commit: str) -> Path:
    source, wheels, packages = (scratch / name for name in ("source", "wheels", "site"))
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if known.returncode:
        why = f"commit {commit} is needed, which is not in this clone: {known.stderr.strip()}"
        raise RuntimeError(f"{why}. If the history is shallow, run: {FETCH}")
    archive = scratch / "source.tar"
    _run(["git", "archive", "--format=tar", f"--output={archive}", commit], ROOT)
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    _run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(wheels)], source)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed_wheel:
        packed_wheel.extractall(packages)
    return packages


def _run(command: Sequence[str], folder: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def main() -> None:
    if not (TOOLS / BASE).exists():
        print(f"make: building tinymq as of {BASE[:12]}, from which upgrades are tested")
    try:
        site()
    except RuntimeError as error:
        sys.exit(f"make: {error}")


if __name__ == "__main__":
    assert shutil.which("git"), "the upgrade tests need git"
    main()

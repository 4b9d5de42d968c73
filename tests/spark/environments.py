"""Python environments like those of users, in a second: the wheel of this tree, and links for its dependencies. They
link exactly the distributions that the wheel's metadata names, directly or indirectly, from the environment of the
tests. A dependency missing in the metadata is therefore missing here too.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def build(folder: Path) -> Path:
    """The wheel."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("tinymq-*.whl")
    return wheel


def make(folder: Path, wheel: Path, extras: Iterable[str] = ()) -> Path:
    """Create a virtual environment with the wheel and its dependencies. Returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-compile", str(wheel)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (info,) = packages.glob("tinymq-*.dist-info")
    for name in sorted(_asked(metadata.PathDistribution(info).requires or [], frozenset(extras))):
        _link(metadata.distribution(name), packages)
    return python


def _asked(requirements: list[str], extras: frozenset[str]) -> set[str]:
    """Return the names of the distributions that these requirements need, directly or indirectly."""
    seen: dict[tuple[str, frozenset[str]], None] = {}
    todo = _direct(requirements, extras)
    while todo:
        each = todo.pop()
        if each not in seen:
            seen[each] = None
            name, own = each
            todo += _direct(metadata.requires(name) or [], own)
    return {name for name, _ in seen}


def _direct(requirements: list[str], extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    parsed = [Requirement(each) for each in requirements]
    chosen = [{"extra": extra} for extra in ("", *extras)]
    held = [r for r in parsed if r.marker is None or any(r.marker.evaluate(each) for each in chosen)]
    return [(r.name, frozenset(r.extras)) for r in held]


def _link(distribution: metadata.Distribution, packages: Path) -> None:
    """Link its top directories and files. A directory that several share (`google`) is created with links
    of its own.
    """
    for path in distribution.files or []:
        if path.parts[0] in ("..", "__pycache__"):
            continue
        top = Path(str(distribution.locate_file(path.parts[0])))
        shared = top.is_dir() and top.suffix != ".dist-info" and not (top / "__init__.py").exists()
        parts = path.parts[: 2 if shared else 1]
        link = packages.joinpath(*parts)
        if not link.exists():
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(Path(str(distribution.locate_file(str(Path(*parts))))))


def pack(folder: Path, archive: Path) -> None:
    """Like `tar -czhf ARCHIVE -C FOLDER .`, which follows links, but with the fastest compression."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(folder / "pyvenv.cfg", "pyvenv.cfg")
        tar.add(folder / "bin", "bin")  # its links point to the Python that created it
        tar.dereference = True
        tar.add(folder / "lib", "lib", filter=_needed)


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Half of pyarrow is for compilers and its own tests, and is not needed here."""
    left_out = ("pyarrow/include", "pyarrow/tests", "pyarrow/src")
    return None if entry.name.endswith(left_out) else entry

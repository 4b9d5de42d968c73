"""The choice of Spark's Java: which one is taken, the reasons against the others, and when one is installed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.spark import java_setup
from tests.spark.java_setup import MODULE, Java, candidates, command, may_install, read, refusal, why_not

WHOLE = frozenset({"java.base", MODULE})


@dataclass
class Machine:
    """A fake machine: directories of Javas, programs on its PATH, and the link that the set-up creates."""

    homes: Path
    programs: Path
    link: Path
    asked: Path

    def java(self, name: str, version: int, modules: frozenset[str] = WHOLE) -> Path:
        """Create a Java's home. Its program answers like the real one, and counts its runs."""
        home = self.homes / name
        words = "".join(f"echo {module}@{version}.0.1\n" for module in sorted(modules))
        _program(home / "bin" / "java", f"echo x >> {self.asked}\necho '    java.home = {home}' >&2\n{words}")
        return home

    def apt(self, script: str) -> None:
        _program(self.programs / "apt-get", script)

    def times_asked(self) -> int:
        return len(self.asked.read_text().splitlines()) if self.asked.exists() else 0


def _program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """No Java, no apt, no root."""
    made = Machine(tmp_path / "jvm", tmp_path / "bin", tmp_path / "venv" / "tools" / "java", tmp_path / "asked")
    made.programs.mkdir()
    monkeypatch.setattr(java_setup, "HOMES", made.homes)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(made.programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return made


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (f"    java.home = /j17\njava.base@17.0.15\n{MODULE}@17.0.15\n", ""),
        (f"    java.home = /j21\njava.base@21\n{MODULE}@21\n", ""),
        (f"    java.home = /j25\njava.base@25.0.3\n{MODULE}@25.0.3\n", "/bin/java is Java 25: Spark needs 17 or 21"),
        (f"    java.home = /j11\njava.base@11.0.2\n{MODULE}@11\n", "/bin/java is Java 11: Spark needs 17 or 21"),
        ("    java.home = /cut\njava.base@17.0.1\njava.sql@17.0.1\n", f"Java 17 without the module {MODULE}"),
        ("Unrecognized option: --list-modules\nError: Could not create the Java Virtual Machine.\n", "does not say"),
        ("", "does not say"),
        (f"java.base@17.0.15\n{MODULE}@17.0.15\n", "does not say"),
    ],
)
def test_the_output_of_java_decides(output: str, why: str) -> None:
    found = why_not(read("/bin/java", output))
    assert why in found
    assert bool(why) == bool(found)


def test_sparks_own_java_is_tried_first_and_none_twice() -> None:
    homes = ["/jvm/17", "/jvm/25"]
    env = {"JAVA_HOME": "/jvm/25"}
    assert candidates(env, "/usr/bin/java", homes) == ["/jvm/25/bin/java", "/usr/bin/java", "/jvm/17/bin/java"]
    assert candidates({"JAVA_HOME": ""}, None, homes) == ["/jvm/17/bin/java", "/jvm/25/bin/java"]
    assert candidates({}, None, []) == []


@pytest.mark.parametrize(
    ("tools", "line"),
    [
        ({"apt-get", "dnf"}, "apt-get install openjdk-17-jre-headless"),
        ({"dnf"}, "dnf install java-21-openjdk-headless"),
        ({"apk"}, "apk add openjdk17-jre-headless"),
        (set(), ""),
    ],
)
def test_one_command_is_named(tools: set[str], line: str) -> None:
    assert command(frozenset(tools)) == line
    output = refusal(frozenset(tools), ["/bin/java is Java 25: Spark needs 17 or 21"])
    assert "Java 25" in output
    assert (f"As root, run: {line}\n" if line else "set JAVA_HOME") in output
    assert output.endswith("make: then run make again")


def test_only_root_with_apt_installs() -> None:
    apt = frozenset({"apt-get"})
    assert [may_install(True, apt), may_install(False, apt), may_install(True, frozenset())] == [True, False, False]


def test_the_first_that_will_do_is_linked_and_asked_only_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newest, right = machine.java("a25", 25), machine.java("b17", 17)
    machine.java("c21", 21)
    monkeypatch.setenv("JAVA_HOME", str(newest))
    java_setup.get(machine.link)
    assert java_setup.home(machine.link) == right
    assert machine.times_asked() == 2
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "make: looking for a Java that Spark runs on (17 or 21)",
        f"make: {newest}/bin/java is Java 25: Spark needs 17 or 21",
        f"make: Spark runs on Java 17, {right}",
    ]
    java_setup.get(machine.link)
    assert machine.times_asked() == 2
    assert capsys.readouterr().out == ""


def test_a_link_to_a_removed_java_is_replaced(machine: Machine) -> None:
    gone, stays = machine.java("a17", 17), machine.java("b21", 21)
    java_setup.get(machine.link)
    assert java_setup.home(machine.link) == gone
    (gone / "bin" / "java").unlink()
    with pytest.raises(RuntimeError, match="run make test"):
        java_setup.home(machine.link)
    java_setup.get(machine.link)
    assert java_setup.home(machine.link) == stays


def test_a_user_without_root_gets_the_install_command(machine: Machine) -> None:
    machine.java("cut", 17, frozenset({"java.base"}))
    machine.apt("exit 1")
    with pytest.raises(SystemExit) as stopped:
        java_setup.get(machine.link)
    output = str(stopped.value)
    assert f"without the module {MODULE}" in output
    assert "As root, run: apt-get install openjdk-17-jre-headless" in output
    assert not machine.link.is_symlink()


def test_root_gets_the_newer_one_where_debian_has_no_17(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like Debian 13: apt-get knows one of the two packages, and installs it where Debian puts Java."""
    kept = machine.java("model", 21)
    model = kept / "bin" / "java"
    script, installed = machine.homes.parent / "script", machine.homes / "java-21-openjdk-amd64"
    script.write_text(model.read_text().replace(str(kept), str(installed)))
    model.unlink()
    machine.apt(
        f"""export PATH=/usr/bin:/bin
case "$*" in
*update*) exit 0;;
*17*) echo 'E: Unable to locate package openjdk-17-jre-headless'; exit 100;;
*21*) mkdir -p {installed}/bin; cp {script} {installed}/bin/java; chmod 755 {installed}/bin/java;;
esac
"""
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    java_setup.get(machine.link)
    assert java_setup.home(machine.link) == installed


def test_a_failure_of_apt_is_reported_with_its_output(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.apt("echo 'E: no network'; exit 100")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SystemExit, match="apt-get install failed: E: no network"):
        java_setup.get(machine.link)


def test_the_java_of_this_run_will_do() -> None:
    """The real Java on which Spark's tests run here."""
    chosen = java_setup._ask(str(java_setup.home() / "bin" / "java"))
    assert isinstance(chosen, Java)
    assert why_not(chosen) == ""

"""The setup when a tool exists, when one way fails, and when all fail. Its real result is what the other tests use."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tinymq_chaos.real.processes import setup


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    return tmp_path / "tools"


def makes(partial: Path) -> None:
    (partial / "server").write_text("made")


def fails(partial: Path) -> None:
    (partial / "half").mkdir()
    raise OSError("no network")


def test_an_existing_tool_is_not_built_again(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "WAYS", {"a": makes})
    setup.get_toxiproxy(tools)
    monkeypatch.setattr(setup, "WAYS", {"a": fails})
    setup.get_toxiproxy(tools)
    assert setup.toxiproxy(tools).read_text() == "made"


def test_the_second_way_is_tried_when_the_first_fails(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "WAYS", {"a": fails, "b": makes})
    setup.get_toxiproxy(tools)
    assert [path.name for path in tools.iterdir()] == [setup.TOXIPROXY], "nothing half done is left"


def test_when_all_ways_fail_the_message_has_causes_and_instructions(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "WAYS", {"a": fails, "b": fails})
    with pytest.raises(SystemExit) as ended:
        setup.get_toxiproxy(tools)
    assert "a: no network; b: no network" in str(ended.value)
    assert "apt install golang" in str(ended.value)
    assert not list(tools.iterdir())


def test_the_error_of_a_missing_tool_names_the_command(tools: Path) -> None:
    with pytest.raises(RuntimeError, match=r"python -m tinymq_chaos\.real\.processes\.setup"):
        setup.toxiproxy(tools)


def test_without_go_the_first_way_reports_it_missing(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(OSError, match="no go on PATH"):
        setup.WAYS["go install"](tools)


def test_go_installs_to_the_given_path_and_keeps_its_settings(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.mkdir()
    go = tools / "go"
    go.write_text('#!/bin/sh\necho "$* $GOFLAGS $CGO_ENABLED" > "$GOBIN/server"\n')
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GOFLAGS", "-mod=mod")
    setup.WAYS["go install"](tools)
    assert (tools / "server").read_text().split() == ["install", setup.TOXIPROXY_PACKAGE, "-mod=mod", "0"]


def test_an_error_has_the_last_output_of_the_failed_command(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.mkdir()
    go = tools / "go"
    go.write_text("#!/bin/sh\necho much; echo no such module; exit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(OSError, match=r"install failed: much no such module"):
        setup.WAYS["go install"](tools)


def test_the_server_that_make_test_built_runs() -> None:
    said = subprocess.run([setup.toxiproxy(), "-version"], capture_output=True, text=True, check=True).stdout
    assert "toxiproxy" in said

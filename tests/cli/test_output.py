"""Tables on terminals and in pipes: nothing that a command says is cut off."""

from __future__ import annotations

import re

import pytest

from tinymq.cli.output import print_table

REASON = "CorruptData: groups/" + "a1" * 16 + "/0/1.log at byte 4711: entry payload checksum mismatch (check the disk)"


@pytest.mark.parametrize("terminal", [True, False], ids=["a narrow terminal", "a pipe"])
def test_every_cell_is_printed_whole(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    print_table(["topic", "partition", "role", "reason"], [("orders", 0, "leader", ""), ("orders", 10, None, REASON)])
    header, *rows = capsys.readouterr().out.splitlines()
    assert ("\x1b[1m" in header) is terminal
    assert re.sub(r"\x1b\[\d+m", "", header) == "topic   partition  role    reason"
    assert rows == ["orders          0  leader", f"orders         10  -       {REASON}"]

"""The output of commands: in full, without control characters, and with correct plurals."""

from __future__ import annotations

import ast
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tinymq.base.quantity import named, quantity
from tinymq.base.topic_config import TopicConfig, promise
from tinymq.cli.common.escapes import unescaped, visible, visible_bytes
from tinymq.cli.common.output import print_json, print_table

ROOT = Path(__file__).resolve().parents[2]
REASON = "CorruptData: groups/" + "a1" * 16 + "/0/1.log at byte 4711: entry payload checksum mismatch (check the disk)"


@pytest.mark.parametrize("terminal", [True, False], ids=["a narrow terminal", "a pipe"])
def test_every_cell_is_printed_in_full(
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


def test_cells_are_printed_literally(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a"], [("[bold]:smile:[/bold]",), ("two\nlines\tand\x9b",)])
    assert capsys.readouterr().out.splitlines()[1:] == ["[bold]:smile:[/bold]", r"two\nlines\tand\x9b"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢 👩 C:\\n", "plain é 漢 👩 C:\\n"),
        ("\x1b[31m\r\n\t\0\x7f\x9b", r"\x1b[31m\r\n\t\x00\x7f\x9b"),
        ("\u202e\u2066\u2069\u200b\u200f\u2028\u2029\ufeff", r"\u202e\u2066\u2069\u200b\u200f\u2028\u2029\ufeff"),
        ("\U000e0041\udcff", r"\U000e0041\udcff"),
        ("\xa0\u3000", "\xa0\u3000"),
    ],
)
def test_control_characters_are_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_bytes_of_a_record_keep_tabs_and_escape_invalid_text() -> None:
    assert visible_bytes(b"a\tb\n\x9b\xc3\xa9\xc2\x9b") == rb"a" + b"\t" + rb"b\n\x9b" + "é".encode() + rb"\x9b"


def test_json_escapes_more_than_the_standard_requires(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"text": "\x1b\x7f\x9b\u202e\U000e0041 é\n"}
    print_json(value)
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.replace("\n", "").isprintable()
    assert json.loads(out) == value


def test_escapes_are_parsed_into_bytes() -> None:
    assert unescaped(r"é\t\n\r\0\x1b\xFF\\") == "é".encode() + b"\t\n\r\0\x1b\xff\\"


def test_one_is_singular() -> None:
    assert [quantity(n, "broker") for n in (0, 1, 2)] == ["0 brokers", "1 broker", "2 brokers"]
    assert quantity(2, "entry", "entries") == "2 entries"
    assert [named("broker", ids) for ids in ([3], [1, 2])] == ["broker 3", "brokers 1, 2"]
    spans = {3_600_000: "1 hour ", 7_200_000: "2 hours ", 60_000: "1 minute ", 1000: "1 second ", 1500: "1500 ms "}
    for ms, said in spans.items():
        assert f"removed {said}after" in promise(TopicConfig(retention_ms=ms))
    assert "A partition with 1 record or 1 byte refuses" in promise(TopicConfig(max_records=1, max_bytes=1))


NOUNS = "broker|group|line|problem|record|message|partition|replica|byte|channel|day|hour|minute|offset|topic|voter"


def test_messages_choose_between_singular_and_plural() -> None:
    """Messages use `quantity`, which chooses singular or plural, rather than a number with a plural noun."""
    plural = re.compile(rf" ({NOUNS})s\b(?!/s)")  # a rate has no singular
    wrong = []
    for path in sorted((ROOT / "tinymq" / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else []
            for number, after in pairwise(parts):
                if not (isinstance(number, ast.FormattedValue) and isinstance(after, ast.Constant)):
                    continue
                constant = ast.unparse(number.value).upper().endswith("_MAX")
                if plural.match(str(after.value)) and not constant:
                    wrong.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []

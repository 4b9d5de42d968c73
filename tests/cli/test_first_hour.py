"""What a new user types: names that are nearly right, questions before data goes, JSON lines there and back."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tinymq.base.errors import CorruptData, InvalidConfig, InvalidRequest, NotFound
from tinymq.base.types import Offset
from tinymq.cli.common import units
from tinymq.cli.common.exits import Exit
from tinymq.cli.common.json_records import json_record
from tinymq.cli.common.offsets import parse_start, parse_time
from tinymq.cli.main import run
from tinymq.cli.verbs.cluster import summarize
from tinymq.client.common import contexts
from tinymq.client.common.contexts import Context, Contexts

Capture = pytest.CaptureFixture[str]
PLACE = ("standard input", 7)
NOW = datetime(2026, 5, 4, 10, 30, tzinfo=UTC)


def typed(monkeypatch: pytest.MonkeyPatch, text: bytes, terminal: bool = False) -> None:
    """Put `text` on the command's standard input."""
    stream = io.TextIOWrapper(io.BytesIO(text))
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", stream)


# ---- words ----------------------------------------------------------------------------------------------------------


def test_places_to_start_are_read_as_people_write_them() -> None:
    assert [parse_start(text) for text in ("start", "earliest", "end", "latest")] == ["earliest"] * 2 + ["latest"] * 2
    assert parse_time("-1.5h", now=NOW) == NOW - timedelta(minutes=90)
    assert parse_time("10:15", now=NOW) == datetime(2026, 5, 4, 10, 15, tzinfo=UTC)
    assert parse_time("12:00:30", now=NOW) == datetime(2026, 5, 3, 12, 0, 30, tzinfo=UTC), "it was so yesterday"
    assert parse_start("42") == Offset(42)


@pytest.mark.parametrize(("text", "meant"), [("begining", "start"), ("strat", "start"), ("lates", "latest")])
def test_a_mistyped_place_names_the_nearest(text: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=f"did you mean '{meant}'"):
        parse_start(text)


def test_a_few_milliseconds_are_a_forgotten_unit() -> None:
    with pytest.raises(InvalidConfig, match=r"retention_ms=7 would be 7 milliseconds .*retention_ms=7d"):
        units.parse_settings(["retention_ms=7"])
    assert units.parse_settings(["retention_ms=7ms", "max_bytes=7"]) == {"retention_ms": "7", "max_bytes": "7"}


# ---- contexts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TINYMQ_SERVERS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_contexts_are_named_used_and_forgotten(elsewhere: Path, capfd: Capture) -> None:
    assert run(["context", "set", "far", "10.0.0.1:7070"]) == Exit.OK
    assert run(["context", "set", "near", "127.0.0.1:7070"]) == Exit.OK
    assert run(["context", "use", "far"]) == Exit.OK
    assert run(["context", "use", "fra"]) == Exit.NOT_FOUND
    assert "did you mean 'far'?" in capfd.readouterr().err
    assert run(["context", "list", "-o", "json"]) == Exit.OK
    listed = json.loads(capfd.readouterr().out)["contexts"]
    assert [(each["name"], each["current"]) for each in listed] == [("far", True), ("near", False)]
    assert run(["context", "delete", "far"]) == Exit.OK
    assert contexts.load() == Contexts("", {"near": Context("127.0.0.1:7070")})


def test_a_command_uses_the_context_if_nothing_nearer_names_brokers(elsewhere: Path, capfd: Capture) -> None:
    assert run(["topic", "list"]) == Exit.NOT_FOUND
    assert run(["context", "set", "gone", "127.0.0.1:1"]) == Exit.OK
    assert run(["topic", "list", "--timeout", "0.2"]) == Exit.UNAVAILABLE
    assert "127.0.0.1:1" in capfd.readouterr().err


def test_a_context_is_checked(elsewhere: Path) -> None:
    assert run(["context", "set", "c", "http://host:1"]) == Exit.USAGE
    assert run(["context", "set", "a b", "host:1"]) == Exit.USAGE
    contexts.path().parent.mkdir(parents=True)
    contexts.path().write_text("{")
    with pytest.raises(CorruptData, match="damaged"):
        contexts.load()
    with pytest.raises(NotFound):
        Contexts().without("c")


# ---- completion -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_a_script_that_knows_the_verbs(shell: str, capfd: Capture) -> None:
    assert run(["completion", shell]) == Exit.OK
    script = capfd.readouterr().out
    assert all(word in script for word in ("topic", "add-partition", "if-not-exists"))
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


# ---- one cluster ----------------------------------------------------------------------------------------------------


def test_deleting_asks_on_a_terminal_and_needs_yes_elsewhere(
    topic: str, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    typed(monkeypatch, b"")
    assert run(["topic", "delete", topic]) == Exit.USAGE
    assert "--yes" in capfd.readouterr().err
    typed(monkeypatch, b"n\n", terminal=True)
    assert run(["topic", "delete", topic]) == Exit.USAGE
    assert f"delete topic {topic}, 2 partitions with all records, for good? [y/N]" in capfd.readouterr().err
    assert run(["topic", "describe", topic]) == Exit.OK, "it is still there"
    typed(monkeypatch, b"y\n", terminal=True)
    assert run(["topic", "delete-partition", topic, "1"]) == Exit.OK
    typed(monkeypatch, b"yes\n", terminal=True)
    assert run(["topic", "delete", topic]) == Exit.OK
    assert run(["topic", "describe", topic]) == Exit.NOT_FOUND


def test_a_topic_that_exists_may_be_accepted(topic: str, capfd: Capture) -> None:
    assert run(["topic", "create", topic, "--partitions", "5"]) == Exit.FAILED
    assert "--if-not-exists" in capfd.readouterr().err
    assert run(["topic", "create", topic, "--partitions", "5", "--if-not-exists", "-o", "json"]) == Exit.OK
    assert json.loads(capfd.readouterr().out)["partitions"] == 2, "as it was made"


def test_json_lines_go_there_and_back(topic: str, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    lines = [
        {"key": "a", "value": "text", "headers": [{"name": "h", "value": "1"}, {"name": "n", "value": None}]},
        {"key": None, "value": None, "headers": [], "timestamp": "2026-01-01T00:00:00.000007Z"},
        {"key_base64": "/g==", "value_base64": "AP8=", "headers": [{"name": "raw", "value_base64": "/w=="}]},
    ]
    typed(monkeypatch, "".join(json.dumps(line) + "\n" for line in lines).encode())
    assert run(["produce", topic, "-i", "jsonl", "--partition", "0"]) == Exit.OK
    assert "records/s" in capfd.readouterr().err

    def read(name: str) -> list[dict[str, Any]]:
        capfd.readouterr()
        assert run(["consume", name, "-e", "-o", "jsonl"]) == Exit.OK
        return [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    first = read(topic)
    assert [{name: line[name] for name in sent} for line, sent in zip(first, lines, strict=True)] == lines
    typed(monkeypatch, "".join(json.dumps(line) + "\n" for line in first).encode())
    other = f"{topic}-2"
    assert run(["topic", "create", other]) == Exit.OK
    assert run(["produce", other, "-i", "jsonl"]) == Exit.OK
    assert [{**line, "topic": topic} for line in read(other)] == first


def test_a_line_that_is_no_record_is_named() -> None:
    for line, said in (
        (b"{", "Expecting"),
        (b"[]", "not an object"),
        (b"{}", "no value"),
        (b'{"value":"","x":1}', "'x'"),
    ):
        with pytest.raises(InvalidRequest, match=f"line 7 of standard input: .*{said}"):
            json_record(line, PLACE)
    assert json_record(b'{"value": {"a": [1]}}', PLACE).value == b'{"a": [1]}', "JSON stays JSON"


def test_several_topics_are_read_at_once(topic: str, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    other = f"{topic}-2"
    assert run(["topic", "create", other]) == Exit.OK
    for name in (topic, other):
        typed(monkeypatch, b"1\n2\n")
        assert run(["produce", name, "-p", "0"]) == Exit.OK
    capfd.readouterr()
    assert run(["consume", topic, other, "-e", "-f", r"%t %v\n"]) == Exit.OK
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(
        f"{name} {i}" for name in (topic, other) for i in (1, 2)
    )
    assert run(["consume", topic, other, "-n", "3", "-o", "jsonl"]) == Exit.OK
    assert len(capfd.readouterr().out.splitlines()) == 3


def test_the_first_line_of_the_status_says_whether_all_is_well(topic: str, capfd: Capture) -> None:
    assert run(["cluster", "status", "--topic", topic]) == Exit.OK
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("all is well: 3 brokers, ")
    assert len([line for line in lines if line.startswith(topic)]) == 6, "two partitions, three replicas each"
    assert run(["cluster", "status", "--problems", "-o", "json"]) == Exit.OK
    document = json.loads(capfd.readouterr().out)
    assert (document["brokers"], document["replicas"]) == ([], [])


def test_the_summary_counts_what_is_wrong() -> None:
    replica = {"topic": "t", "partition": 0, "role": "leader"}
    document = {
        "healthy": False,
        "metadata_leader": 1,
        "brokers": [
            {"id": 1, "state": "running", "registered": True},
            {"id": 2, "state": "missing", "registered": False},
        ],
        "replicas": [replica, {**replica, "role": "missing"}],
    }
    assert summarize(document) == "not well: broker 2 is missing, 1 replica missing; of 2 brokers, 1 topic, 2 replicas"

"""Topics, produce and consume by the command line, against a real cluster inside this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.testing import Cluster

pytestmark = pytest.mark.usefixtures("servers")


def _feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_topics(topic: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "create", topic]) == Exit.FAILED
    assert "TopicExists" in capfd.readouterr().err
    assert run(["topic", "create", "no/slash"]) == Exit.USAGE
    assert run(["topic", "create", "too-many", "-r", "4"]) == Exit.USAGE
    capfd.readouterr()
    assert run(["topic", "list", "-o", "json"]) == Exit.OK
    topics = json.loads(capfd.readouterr().out)["topics"]
    assert {"name": topic, "partitions": 2, "replication_factor": 3} in topics
    assert run(["topic", "describe", topic, "-o", "json"]) == Exit.OK
    described = json.loads(capfd.readouterr().out)
    assert [p["partition"] for p in described["partitions"]] == [0, 1]
    assert all(p["leader"] in p["replicas"] and p["end_offset"] == 0 for p in described["partitions"])
    assert run(["topic", "describe", topic]) == Exit.OK
    assert capfd.readouterr().out.splitlines()[0].split() == ["partition", "leader", "replicas", "start", "end"]
    capfd.readouterr()
    assert run(["topic", "delete", topic, "--yes", "-o", "json"]) == Exit.OK
    assert json.loads(capfd.readouterr().out) == {"name": topic, "deleted": True}
    assert run(["topic", "describe", topic]) == Exit.NOT_FOUND
    capfd.readouterr()
    assert run(["topic", "delete", topic, "--yes"]) == Exit.NOT_FOUND
    assert "topic create" not in capfd.readouterr().err
    assert run(["topic", "create", topic, "-r", "1", "-o", "json"]) == Exit.OK
    assert json.loads(capfd.readouterr().out) == {"name": topic, "partitions": 1, "replication_factor": 1}


def test_lines_in_and_out(topic: str, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a:1\nb:2\n")
    two.write_bytes(b"a:\xff3\nnothing")
    assert (
        run(["produce", topic, str(one), str(two), "-K", ":", "--key-optional", "-H", "from=test", "-o", "json"])
        == Exit.OK
    )
    report = json.loads(capfdbinary.readouterr().out)
    assert (report["acknowledged"], report["failed"]) == (4, 0)
    assert run(["consume", topic, "--exit-at-end", "-f", r"%k=%v %h\n"]) == Exit.OK
    lines = capfdbinary.readouterr().out.splitlines()
    assert sorted(lines) == [b"=nothing from=test", b"a=1 from=test", b"a=\xff3 from=test", b"b=2 from=test"]
    assert lines.index(b"a=1 from=test") < lines.index(b"a=\xff3 from=test")


def test_a_terminal_shows_the_progress(topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(b"%d\n" % i for i in range(20_000)))
    monkeypatch.setenv("TERM", "xterm")
    terminal, end = pty.openpty()
    with os.fdopen(end, "w") as stderr, ThreadPoolExecutor(1) as reader:
        shown = reader.submit(_read_all, terminal)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stderr)
            assert run(["produce", topic, str(lines)]) == Exit.OK
        stderr.close()
        text = shown.result(20)
    size = lines.stat().st_size / 1000
    assert f"/{size:.1f} kB" in text, "the bar shows a total"
    assert re.search(r"[1-9][0-9.]*/[0-9.]+ kB", text), "the bar moves"
    assert "20000 acknowledged" in text


def _read_all(terminal: int) -> str:
    """Return the bytes shown until the other end is closed."""
    read = b""
    with os.fdopen(terminal, "rb", buffering=0) as screen, contextlib.suppress(OSError):  # EIO: the other end is closed
        while piece := screen.read(4096):
            read += piece
    return read.decode(errors="replace")


def test_lines_are_dealt_out_by_round_robin(topic: str, monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    _feed(monkeypatch, b"a\nb\nc\nd\n")
    assert run(["produce", topic, "--partitioner", "round_robin"]) == Exit.OK
    offsets = cluster.client().admin.offsets(topic)
    assert [place.high_watermark for place in offsets.values()] == [2, 2]


def test_standard_input_and_start_positions(
    topic: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _feed(monkeypatch, b"".join(b"%d\n" % i for i in range(100)))
    assert run(["produce", topic, "--partition", "1"]) == Exit.OK
    capfd.readouterr()

    def consumed(*options: str) -> list[int]:
        assert run(["consume", topic, "--exit-at-end", *options]) == Exit.OK
        return [int(line) for line in capfd.readouterr().out.splitlines()]

    assert consumed() == list(range(100))
    assert consumed("--offset", "-10") == list(range(90, 100))
    assert consumed("--offset", "-1000", "--partition", "1") == list(range(100))
    assert consumed("--offset", "-10", "--partition", "0") == []
    assert consumed("--offset", "42", "-n", "3", "--partition", "1") == [42, 43, 44]
    assert consumed("--offset", "end") == []
    assert consumed("--offset", "@2000-01-01", "--replica", "follower") == list(range(100))
    assert consumed("-n", "0") == []
    assert consumed("--offset", "100", "--partition", "1") == [], "the end is a valid start position"
    for beyond in ("101", "999999999999999999"):
        assert run(["consume", topic, "--exit-at-end", "--partition", "1", "--offset", beyond]) == Exit.USAGE
        said = capfd.readouterr().err
        assert "OffsetOutOfRange" in said
        assert "at 100" in said


class _Interrupted(io.BytesIO):
    """Standard input of a user who types two lines and then Ctrl-C."""

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if not line:
            raise KeyboardInterrupt
        return line


def test_an_interrupt_reports_the_counts(
    topic: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=_Interrupted(b"1\n2\n")))
    assert run(["produce", topic]) == Exit.INTERRUPTED
    assert "2 acknowledged, 0 not" in capfd.readouterr().err


def test_lines_before_a_line_without_a_key_are_counted(
    topic: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _feed(monkeypatch, b"a\t1\nb\t2\nc 3\nd\t4\n")
    assert run(["produce", topic, "-K", r"\t", "-p", "0"]) == Exit.USAGE
    tally, error, hint = capfd.readouterr().err.splitlines()
    assert tally.startswith("2 acknowledged, 0 not")
    assert error == r"error: line 3 of standard input has no key separator (\t) [InvalidRequest]"
    assert hint.startswith("hint: --key-optional")
    assert run(["consume", topic, "-p", "0", "-e", "-f", r"%k=%v\n"]) == Exit.OK
    assert capfd.readouterr().out == "a=1\nb=2\n"


def test_json_lines(topic: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    _feed(monkeypatch, b"hello\n")
    assert run(["produce", topic, "-k", "me", "--partition", "0"]) == Exit.OK
    capfd.readouterr()
    assert run(["consume", topic, "-n", "1", "-o", "json"]) == Exit.OK
    record = json.loads(capfd.readouterr().out)
    assert (record["partition"], record["offset"], record["key"], record["value"]) == (0, 0, "me", "hello")


def test_missing_topics_and_partitions(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["consume", "nobody", "--exit-at-end"]) == Exit.NOT_FOUND
    for output in ("table", "json"):
        _feed(monkeypatch, b"hello\n")
        assert run(["produce", "nobody", "-o", output]) == Exit.NOT_FOUND
        out, err = capfd.readouterr()
        assert (out, err.splitlines()[0].startswith("error: ")) == ("", True), "no counts: nothing was sent"
        assert "UnknownTopic" in err
    _feed(monkeypatch, b"")
    assert run(["produce", "nobody"]) == Exit.NOT_FOUND
    assert "UnknownTopic" in capfd.readouterr().err


def test_cluster_status(cluster: Cluster, topic: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "status", "-o", "json"]) == Exit.OK
    status = json.loads(capfd.readouterr().out)
    assert status["healthy"]
    assert [b["state"] for b in status["brokers"]] == ["running"] * 3
    ours = [r for r in status["replicas"] if r["topic"] == topic]
    assert sorted((r["partition"], r["broker"]) for r in ours) == [(p, b) for p in (0, 1) for b in (1, 2, 3)]
    assert run(["cluster", "status"]) == Exit.OK
    assert "follower" in capfd.readouterr().out
    cluster.kill(2)
    assert run(["cluster", "status"]) == Exit.FAILED, "one broker does not answer"
    assert "unreachable" in capfd.readouterr().out
    cluster.start(2)

"""Channels, queues and topic settings by the command line, against a real cluster."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.exits import Exit
from tinymq.cli.common.partition_arguments import parse_queue
from tinymq.cli.main import run

pytestmark = pytest.mark.usefixtures("servers")

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def topic(topic: str, capfd: Capture) -> str:
    """A new topic, without the output of its creation."""
    capfd.readouterr()
    return topic


def printed(capfd: Capture, *argv: str) -> str:
    """Standard output of a command that succeeds."""
    capfd.readouterr()
    assert run(argv) == Exit.OK, capfd.readouterr().err
    return capfd.readouterr().out


def document(capfd: Capture, *argv: str) -> Any:
    return json.loads(printed(capfd, *argv, "-o", "json"))


def test_a_topic_is_created_with_settings_that_can_be_altered(capfd: Capture) -> None:
    made = ["topic", "create", "set", "--set", "retention_ms=1d", "--set", "max_bytes=64MiB", "-r", "3"]
    assert run(made) == Exit.OK
    settings = document(capfd, "topic", "describe", "set")["settings"]
    assert (settings["retention_ms"], settings["max_bytes"]) == ("86400000", str(64 << 20))
    altered = document(capfd, "topic", "alter", "set", "--set", "retention_ms=none", "--set", "on_full=drop_oldest")
    assert (altered["settings"]["retention_ms"], altered["settings"]["on_full"]) == ("none", "drop_oldest")
    assert altered["settings"]["max_bytes"] == str(64 << 20), "settings that are not named do not change"
    table = printed(capfd, "topic", "describe", "set")
    assert "64MiB" in table
    for wrong, says in (
        (["--set", "retention_ms=5y"], "7d"),
        (["--set", "retentoin_ms=5d"], "did you mean 'retention_ms'"),
        (["--set", "storage=memory"], "max_bytes"),
        (["--set", "retention_ms"], "name=value"),
    ):
        assert run(["topic", "create", "wrong", *wrong]) == Exit.USAGE
        assert says in capfd.readouterr().err
    assert run(["topic", "alter", "set", "--set", "storage=memory"]) == Exit.USAGE
    assert "fixed" in capfd.readouterr().err
    assert run(["topic", "alter", "nowhere", "--set", "retention_ms=1d"]) == Exit.NOT_FOUND


def test_describe_shows_what_the_settings_promise(topic: str, capfd: Capture) -> None:
    always = document(capfd, "topic", "describe", topic)["promise"]
    run(["topic", "alter", topic, "--set", "sync=100ms"])
    sometimes = document(capfd, "topic", "describe", topic)["promise"]
    assert always != sometimes
    assert sometimes.splitlines()[0] in printed(capfd, "topic", "describe", topic)


def test_partitions_are_added_and_deleted_by_number(topic: str, capfd: Capture) -> None:
    assert document(capfd, "topic", "add-partition", topic)["partition"] == 2
    assert run(["topic", "delete-partition", topic, "1", "--dry-run"]) == Exit.OK
    assert "would delete" in capfd.readouterr().err
    assert document(capfd, "topic", "delete-partition", topic, "1", "--yes")["deleted"] is True
    partitions = document(capfd, "topic", "describe", topic)["partitions"]
    assert [p["partition"] for p in partitions] == [0, 2]
    assert run(["topic", "delete-partition", topic, "1", "--yes"]) == Exit.NOT_FOUND
    assert run(["topic", "delete-partition", topic, "1", "--dry-run"]) == Exit.NOT_FOUND
    assert run(["queue", "push", f"{topic}/2", "x"]) == Exit.OK
    assert printed(capfd, "consume", topic, "--exit-at-end", "-f", r"%p %v\n") == "2 x\n"


def test_a_queue_is_pushed_to_polled_and_inspected(topic: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = f"{topic}/1"
    assert document(capfd, "queue", "push", queue, "a", "b", "-k", "key", "-H", "n=1")["offsets"] == [0, 1]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"c\nd\n")))
    assert run(["queue", "push", queue]) == Exit.OK
    assert "2 pushed" in capfd.readouterr().err
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"x\n" * 10_001)))
    assert run(["queue", "push", queue]) == Exit.USAGE
    assert f"tinymq produce {topic} --partition 1" in capfd.readouterr().err
    assert printed(capfd, "queue", "size", queue) == "4\n"
    assert printed(capfd, "queue", "peek", queue, "-c", "me") == "a\n"
    assert printed(capfd, "queue", "size", queue, "-c", "me") == "4\n", "a new channel has all messages to read"
    assert document(capfd, "channel", "list", topic)["channels"] == [], "peek creates no channel"
    assert printed(capfd, "queue", "poll", queue, "-c", "me", "-f", r"%o %k %v\n") == "0 key a\n"
    assert printed(capfd, "queue", "peek", queue, "-c", "me") == "b\n"
    assert document(capfd, "queue", "size", queue, "-c", "me")["messages"] == 3
    lines = printed(capfd, "queue", "poll", queue, "-c", "me", "-n", "10", "-o", "json").splitlines()
    assert [json.loads(line)["value"] for line in lines] == ["b", "c", "d"]
    assert printed(capfd, "queue", "poll", queue, "-c", "me") == ""
    assert printed(capfd, "queue", "get", queue, "2") == "c\n"
    assert run(["queue", "get", queue, "4"]) == Exit.USAGE
    assert printed(capfd, "queue", "size", topic) == "0\n"
    document(capfd, "queue", "push", topic, "not text: \udcff")
    assert json.loads(printed(capfd, "queue", "get", topic, "0", "-o", "json"))["value_base64"] == "bm90IHRleHQ6IP8="
    for wrong in ("poll", "peek"):
        assert run(["queue", wrong, f"{topic}/9"]) == Exit.NOT_FOUND
        assert run(["queue", wrong, f"{topic}/x"]) == Exit.USAGE
        assert run(["queue", wrong, queue, "-f", "%v", "-o", "json"]) == Exit.USAGE
    assert run(["queue", "poll", queue, "-n", "0"]) == Exit.USAGE


def test_channels_are_listed_moved_and_deleted(topic: str, capfd: Capture) -> None:
    for partition in (0, 1):
        run(["queue", "push", f"{topic}/{partition}", *"abcdef"])
        run(["queue", "poll", f"{topic}/{partition}", "-c", "me", "-n", "4"])
    run(["queue", "poll", topic, "-c", "other"])

    def positions() -> list[tuple[str, int, int, int]]:
        found = document(capfd, "channel", "list", topic)["channels"]
        return sorted((c["channel"], c["partition"], c["position"], c["lag"]) for c in found)

    assert positions() == [("me", 0, 4, 2), ("me", 1, 4, 2), ("other", 0, 1, 5)]
    table = printed(capfd, "channel", "list", topic, "-p", "1").splitlines()
    assert [table[0].split()[0], *(line.split()[0] for line in table[1:])] == ["channel", "me"]
    seek = ["channel", "seek", topic, "me", "--to"]
    would = document(capfd, *seek, "start", "--dry-run")
    assert would["partitions"] == [{"partition": 0, "from": 4, "to": 0}, {"partition": 1, "from": 4, "to": 0}]
    assert positions()[0] == ("me", 0, 4, 2), "nothing moved"
    document(capfd, *seek, "-1")
    document(capfd, *seek, "2", "-p", "1")
    assert positions()[:2] == [("me", 0, 5, 1), ("me", 1, 2, 4)]
    document(capfd, *seek, "end")
    document(capfd, *seek, "@2000-01-01", "-p", "0")
    assert positions()[:2] == [("me", 0, 0, 6), ("me", 1, 6, 0)]
    assert run([*seek, "7"]) == Exit.USAGE
    assert "OffsetOutOfRange" in capfd.readouterr().err
    assert run(["channel", "seek", topic, "nobody", "--to", "end"]) == Exit.NOT_FOUND
    assert run(["channel", "delete", topic, "other", "-p", "0", "-p", "1"]) == Exit.NOT_FOUND
    assert positions()[-1][0] == "other", "a dry run deletes nothing"
    assert run(["channel", "delete", topic, "me", "--dry-run"]) == Exit.OK
    assert "would be deleted" in capfd.readouterr().err
    assert document(capfd, "channel", "delete", topic, "me")["partitions"] == [0, 1]
    assert positions() == [("other", 0, 1, 5)]
    assert run(["channel", "list", "nowhere"]) == Exit.NOT_FOUND


def test_a_trim_removes_the_oldest_records(topic: str, capfd: Capture) -> None:
    run(["queue", "push", topic, *"abcdef"])
    trim = ["topic", "trim", topic, "0"]
    assert document(capfd, *trim, "--before-offset", "4", "--dry-run") == {
        "name": topic, "partition": 0, "log_start": 4, "removed": 4, "dry_run": True,
    }  # fmt: skip
    assert printed(capfd, "queue", "size", topic) == "6\n"
    assert document(capfd, *trim, "--before-offset", "4")["removed"] == 4
    assert document(capfd, *trim, "--before-offset", "2")["removed"] == 0, "the log start never moves back"
    assert printed(capfd, "queue", "size", topic) == "2\n"
    for dry in ([], ["--dry-run"]):
        assert run([*trim, "--before-offset", "7", *dry]) == Exit.USAGE
        assert "OffsetOutOfRange" in capfd.readouterr().err
    assert document(capfd, *trim, "--before", "2000-01-01")["log_start"] == 4
    assert run([*trim, "--before", "2999-01-01", "--dry-run"]) == Exit.OK
    assert "would begin at 6" in capfd.readouterr().err
    for wrong in ([], ["--before", "2000-01-01", "--before-offset", "3"], ["--before", "soon"]):
        assert run([*trim, *wrong]) == Exit.USAGE
    assert "hint: write --before 2026-01-01T00:00Z, or seconds" in capfd.readouterr().err
    assert run(["topic", "trim", topic, "7", "--before-offset", "1"]) == Exit.NOT_FOUND


def test_a_queue_is_named_by_topic_and_partition() -> None:
    assert parse_queue("orders") == ("orders", 0)
    assert parse_queue("orders/12") == ("orders", 12)
    for wrong in ("orders/", "orders/-1", "orders/1/2", "orders/x"):
        with pytest.raises(InvalidRequest):
            parse_queue(wrong)

"""Delayed records by the command line, against a real cluster: sent, listed, canceled and delivered."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.testing import Cluster

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("servers")


def produce(monkeypatch: pytest.MonkeyPatch, topic: str, lines: bytes, *options: str) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
    assert run(["produce", topic, *options]) == Exit.OK


def listed(capfd: Capture, topic: str, *options: str) -> Any:
    capfd.readouterr()
    assert run(["schedule", "list", topic, *options, "-o", "json"]) == Exit.OK
    return json.loads(capfd.readouterr().out)


def test_records_are_delayed_listed_and_canceled(topic: str, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    assert listed(capfd, topic) == {"scheduled": [], "more": False}
    sent = datetime.now(UTC)
    produce(monkeypatch, topic, b"a\nb\n", "-p", "1", "--delay", "90m")
    produce(monkeypatch, topic, b"c\n", "-p", "0", "--deliver-at", (sent + timedelta(days=2)).isoformat())
    assert "1 acknowledged" in capfd.readouterr().err
    found = listed(capfd, topic)["scheduled"]
    assert [(each["topic"], each["partition"], each["records"]) for each in found] == [
        (topic, 0, 1), (topic, 1, 1), (topic, 1, 1),
    ]  # fmt: skip
    assert datetime.fromisoformat(found[0]["deliver_at"]) == sent + timedelta(days=2)
    for each in found[1:]:
        waits = datetime.fromisoformat(each["deliver_at"]) - datetime.fromisoformat(each["stored_at"])
        assert waits == timedelta(minutes=90)

    assert [each["partition"] for each in listed(capfd, topic, "-p", "0")["scheduled"]] == [0]
    first = listed(capfd, topic, "-n", "1")
    assert (len(first["scheduled"]), first["more"]) == (1, True)
    assert run(["schedule", "list", topic, "-n", "2"]) == Exit.OK
    out, err = capfd.readouterr()
    assert out.splitlines()[0].split() == ["partition", "schedule", "id", "due", "in", "bytes"]
    assert "1d 23h" in out
    assert "--count 0" in err

    place = [topic, "1", str(found[1]["schedule_id"])]
    assert run(["schedule", "cancel", *place, "--dry-run"]) == Exit.OK
    assert "would be canceled" in capfd.readouterr().err
    assert len(listed(capfd, topic)["scheduled"]) == 3
    assert run(["schedule", "cancel", *place, "-o", "json"]) == Exit.OK
    canceled = {"topic": topic, "partition": 1, "schedule_id": found[1]["schedule_id"], "canceled": True}
    assert json.loads(capfd.readouterr().out) == canceled
    for options in ([], ["--dry-run"]):
        assert run(["schedule", "cancel", *place, *options]) == Exit.NOT_FOUND
        assert "tinymq schedule list" in capfd.readouterr().err
    assert [each["schedule_id"] for each in listed(capfd, topic)["scheduled"]] == [
        found[0]["schedule_id"], found[2]["schedule_id"],
    ]  # fmt: skip


def test_a_delayed_line_is_consumed_when_it_is_due(
    topic: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    produce(monkeypatch, topic, b"k:later\n", "-K", ":", "--delay", "2h")
    produce(monkeypatch, topic, b"now\n")
    capfd.readouterr()
    assert run(["consume", topic, "--exit-at-end"]) == Exit.OK
    assert capfd.readouterr().out == "now\n"
    cluster.clock.advance(hours=2)
    assert run(["consume", topic, "-n", "2", "-f", "%k %v\n"]) == Exit.OK
    assert sorted(capfd.readouterr().out.splitlines()) == [" now", "k later"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--delay", "0.5s"], "from 1 s to 30 days"),
        (["--delay", "31d"], "from 1 s to 30 days"),
        (["--delay", "5m", "--deliver-at", "18:00"], "exclude"),
        (["--deliver-at", "soon"], "write 18:00"),
    ],
)
def test_times_that_are_refused(
    topic: str, options: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"line\n")))
    assert run(["produce", topic, *options]) == Exit.USAGE
    assert says in capfd.readouterr().err

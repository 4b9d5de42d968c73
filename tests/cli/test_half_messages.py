"""Half messages by the command line, against a real cluster: listed, described, and decided."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.testing import Cluster

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("servers")


def shown(capfd: Capture, *words: str) -> Any:
    capfd.readouterr()
    assert run(["half", *words, "-o", "json"]) == Exit.OK
    return json.loads(capfd.readouterr().out)


def test_half_messages_are_listed_described_and_decided(cluster: Cluster, topic: str, capfd: Capture) -> None:
    assert shown(capfd, "list") == {"half_messages": []}
    with cluster.client() as mq:
        halves = [
            mq.half_message(topic, b"v", producer_group=group, context=context, partition=0)
            for group, context in (("checkout", b"order 1"), ("checkout", b"\xff" + b"x" * 50), ("other", b""))
        ]
        names = [half.name for half in halves]
        found = shown(capfd, "list")["half_messages"]
        assert [each["half_message"] for each in found] == names
        first = shown(capfd, "describe", names[0])
        assert first == found[0]
        assert (first["producer_group"], first["topic"], first["context"]) == ("checkout", topic, "order 1")
        assert (first["state"], first["checks"], first["checkers"]) == ("open", 0, 0)
        assert [each["half_message"] for each in shown(capfd, "list", "other")["half_messages"]] == names[2:]

        assert run(["half", "list", "checkout"]) == Exit.OK
        header, one, two = capfd.readouterr().out.splitlines()
        assert header.split()[:3] == ["half", "message", "producer"]
        assert one.split()[:4] == [names[0], "checkout", f"{topic}/0", "open"]
        assert one.endswith("order 1")
        assert two.endswith("…")
        assert run(["half", "describe", names[1]]) == Exit.OK
        assert "x" * 50 in capfd.readouterr().out

        assert run(["half", "commit", names[0], "--dry-run"]) == Exit.OK
        assert "would be committed" in capfd.readouterr().err
        assert run(["half", "commit", names[0]]) == Exit.USAGE, "a script has to pass --yes"
        assert shown(capfd, "commit", names[0], "--yes") == {
            "half_message": names[0], "decision": "commit", "decided": True, "visible": True,
        }  # fmt: skip
        assert run(["half", "rollback", names[1], "--yes"]) == Exit.OK
        assert "is rolled back" in capfd.readouterr().err
        for verb in ("commit", "rollback"):
            assert run(["half", verb, names[0], "--yes"]) == Exit.NOT_FOUND
        assert run(["half", "describe", names[0]]) == Exit.NOT_FOUND
        halves[2].rollback()
        with mq.reader(topic, end="latest") as reader:
            assert [message.value for message in reader] == [b"v"]

"""Holds, and the consumers of channels, by the command line, against a real cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.testing import Cluster

pytestmark = pytest.mark.usefixtures("servers")

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def topic(topic: str) -> str:
    """A topic with six messages in each partition."""
    assert all(run(["queue", "push", f"{topic}/{number}", *"abcdef"]) == Exit.OK for number in (0, 1))
    return topic


def document(capfd: Capture, *argv: str) -> Any:
    capfd.readouterr()
    assert run([*argv, "-o", "json"]) == Exit.OK, capfd.readouterr().err
    return json.loads(capfd.readouterr().out)


def refused(capfd: Capture, *argv: str) -> str:
    """Return the stderr of a command that is refused."""
    capfd.readouterr()
    assert run([*argv]) != Exit.OK
    return capfd.readouterr().err


def answered_refusal(capfd: Capture, *argv: str) -> str:
    """The same of a command that waits until its time is up. Without an answer in that time its outcome is unknown, and
    it is given again with more time.
    """
    error = ""
    for timeout_s in ("1", "4", "16"):
        error = refused(capfd, *argv, "--timeout", timeout_s)
        if "OutcomeUnknown" not in error:
            break
    return error


def holds(capfd: Capture, topic: str, *argv: str) -> list[tuple[str, int, int]]:
    found = document(capfd, "hold", "list", topic, *argv)["holds"]
    return [(hold["hold"], hold["partition"], hold["offset"]) for hold in found]


def test_a_hold_keeps_records_until_it_is_released(topic: str, capfd: Capture) -> None:
    assert holds(capfd, topic) == []
    whole = document(capfd, "hold", "create", topic, "1")
    some = document(capfd, "hold", "create", topic, "1", "--offset", "4", "--lease", "10m")
    assert (whole["offset"], some["offset"], some["partition"]) == (0, 4, 1)
    listed = document(capfd, "hold", "list", topic)["holds"]
    assert [(hold["hold"], hold["offset"]) for hold in listed] == [(whole["hold"], 0), (some["hold"], 4)]
    assert 590 < listed[1]["left_s"] <= 600
    assert holds(capfd, topic, "-p", "0") == []

    trim = ["topic", "trim", topic, "1", "--before-offset", "5"]
    assert "Held" in answered_refusal(capfd, *trim)
    assert document(capfd, "hold", "release", topic, "1", whole["hold"][:8])["released"] is True
    assert holds(capfd, topic) == [(some["hold"], 1, 4)]
    assert "Held" in answered_refusal(capfd, *trim), "the other hold keeps the records"
    renewed = document(capfd, "hold", "renew", topic, "1", some["hold"].upper(), "--lease", "1h")
    assert (renewed["hold"], renewed["offset"], renewed["left_s"]) == (some["hold"], 4, 3600)
    assert document(capfd, "hold", "list", topic)["holds"][0]["left_s"] > 3500
    assert run(["hold", "release", topic, "1", some["hold"]]) == Exit.OK
    assert run(trim) == Exit.OK

    assert run(["hold", "release", topic, "1", some["hold"]]) == Exit.NOT_FOUND, "a hold can be released once"
    assert "(any more)" in refused(capfd, "hold", "renew", topic, "1", some["hold"])
    assert run(["hold", "create", topic, "0"]) == Exit.OK
    assert run(["hold", "list", topic]) == Exit.OK
    assert "from offset" in capfd.readouterr().out


def test_invalid_holds_are_refused(topic: str, capfd: Capture) -> None:
    create = ["hold", "create", topic, "0"]
    assert run(["hold", "create", "nowhere", "0"]) == Exit.NOT_FOUND
    assert run(["hold", "create", topic, "7"]) == Exit.NOT_FOUND
    assert run(["hold", "list", topic, "-p", "7"]) == Exit.NOT_FOUND
    assert "OffsetOutOfRange" in refused(capfd, *create, "--offset", "7")
    assert "write --offset 42" in refused(capfd, *create, "--offset", "-1")
    assert "write one number and one unit" in refused(capfd, *create, "--lease", "long")
    assert "seconds from 1 to 3600" in refused(capfd, *create, "--lease", "2h")
    assert run(create) == run(create) == Exit.OK
    assert "2 holds" in refused(capfd, "hold", "release", topic, "0", "")


def test_the_consumer_of_a_channel_is_shown_and_unset(topic: str, cluster: Cluster, capfd: Capture) -> None:
    show, unset = ["queue", "consumer", "show", topic, "-c", "me"], ["queue", "consumer", "unset", topic, "-c", "me"]
    assert document(capfd, *show) == {
        "topic": topic, "partition": 0, "channel": "me", "consumer": None, "epoch": None,
    }  # fmt: skip
    assert document(capfd, *unset)["unset"] is None
    with cluster.client(client_id="worker") as mq, mq.queue(topic, 0, "me") as queue:
        queue.poll()
        found = document(capfd, *show)
        assert (found["consumer"], found["epoch"] > 0) == ("worker", True)
        assert document(capfd, *unset, "--epoch", str(found["epoch"] + 1))["unset"] is None, (
            "another epoch is not unset"
        )
        assert "worker" in printed(capfd, *show)
        assert document(capfd, *unset)["unset"] == "worker"
        assert document(capfd, *show)["consumer"] is None
        assert [message.offset for message in queue.poll()] == [1], "the consumer reads as before"
        queue.commit()
    assert "has no consumer" in printed(capfd, *show)
    assert run(["queue", "consumer", "show", "nowhere"]) == Exit.NOT_FOUND
    assert run(["queue", "consumer", "show", f"{topic}/9"]) == Exit.NOT_FOUND
    assert run(["queue", "consumer", "unset", topic, "-c", "not a name!"]) == Exit.USAGE


def printed(capfd: Capture, *argv: str) -> str:
    capfd.readouterr()
    assert run([*argv]) == Exit.OK
    return "".join(capfd.readouterr())

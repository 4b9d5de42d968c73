"""`tinymq consume --group` as a member of a group, and `tinymq why` where there is no record."""

from __future__ import annotations

import pytest

from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.testing import Cluster

Capture = pytest.CaptureFixture[str]


def send(cluster: Cluster, topic: str, *values: bytes, partition: int = 0) -> None:
    for value in values:
        cluster.client().send(topic, value, partition=partition)


def printed(capfd: Capture, *argv: str) -> list[str]:
    capfd.readouterr()
    assert run(argv) == Exit.OK, capfd.readouterr().err
    return sorted(capfd.readouterr().out.splitlines())


def refusal(capfd: Capture, *argv: str) -> str:
    capfd.readouterr()
    assert run(argv) != Exit.OK
    return capfd.readouterr().err


def test_a_member_prints_what_its_group_has_not_read(cluster: Cluster, topic: str, capfd: Capture) -> None:
    send(cluster, topic, b"one", b"two")
    send(cluster, topic, b"three", partition=1)
    assert printed(capfd, "consume", topic, "-g", topic, "-e") == ["one", "three", "two"]
    send(cluster, topic, b"four", b"five", b"six")
    assert printed(capfd, "consume", topic, "-g", topic, "-n", "2") == ["five", "four"]
    assert printed(capfd, "consume", topic, "-g", topic, "-e") == ["six"]
    assert printed(capfd, "consume", topic, "-g", topic, "-e") == []
    assert printed(capfd, "consume", topic, "-g", f"{topic}-late", "--offset", "end", "-e") == []


def test_a_member_that_cannot_be_one_is_told_why(topic: str, capfd: Capture) -> None:
    assert run(["group", "create", topic, topic, "--kind", "queue"]) == Exit.OK
    refused = refusal(capfd, "consume", topic, "-g", topic)
    assert "is a queue group" in refused
    assert f"tinymq worker {topic} -g {topic} --exec" in refused
    assert "-p and --replica exclude -g" in refusal(capfd, "consume", topic, "-g", "other", "-p", "0")
    assert "is no place of a group" in refusal(capfd, "consume", topic, "-g", "other", "--offset", "-5")


def test_why_says_what_is_there_instead(cluster: Cluster, topic: str, capfd: Capture) -> None:
    empty = refusal(capfd, "why", topic, "0", "0")
    assert f"{topic}/0 has no record at offset 0: it is empty" in empty
    assert "send a record first" in empty
    send(cluster, topic, b"one", b"two")
    beyond = refusal(capfd, "why", topic, "0", str(1 << 40))
    assert f"has no record at offset {1 << 40} yet: its newest one is at 1" in beyond
    assert "ask for an offset from 0 to 1" in beyond

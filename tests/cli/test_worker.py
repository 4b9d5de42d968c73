"""`tinymq worker`: a program for each record, its exit code, its environment, and the end of the command."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tinymq.base.group_config import SETTINGS
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.testing import Cluster

WAIT_S = 60.0


def send(cluster: Cluster, topic: str, *values: bytes, key: bytes | None = None) -> None:
    client = cluster.client()
    for value in values:
        client.send(topic, value, key=key, headers=[("via", b"web")], partition=0)


def until_leased(cluster: Cluster, group: str, count: int) -> None:
    """Wait until the workers of a group have so many records."""
    admin, deadline_s = cluster.client().admin, time.monotonic() + WAIT_S
    while sum(cursor.leased for cursor in admin.group_lag(group)) != count:
        assert time.monotonic() < deadline_s


def lag(cluster: Cluster, group: str) -> int:
    return sum(cursor.lag for cursor in cluster.client().admin.group_lag(group))


def work(topic: str, program: str, count: int, *options: str) -> int:
    return run(["worker", topic, "-g", topic, "--exec", program, "-n", str(count), *options])


def test_a_program_gets_each_record_once(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    send(cluster, topic, b"one", b"two; touch injected", b"three", key=b"k")
    wrote = tmp_path / "wrote"
    program = f'echo "$TINYMQ_TOPIC $TINYMQ_OFFSET $TINYMQ_DELIVERY $TINYMQ_KEY $TINYMQ_HEADERS $(cat)" >> {wrote}'
    assert work(topic, program, 3) == Exit.OK
    headers = json.dumps([{"name": "via", "value": "web"}])
    assert wrote.read_text().splitlines() == [
        f"{topic} {offset} 1 k {headers} {value}"
        for offset, value in enumerate(["one", "two; touch injected", "three"])
    ]
    assert lag(cluster, topic) == 0


def test_the_exit_code_says_what_becomes_of_the_record(
    cluster: Cluster, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    send(cluster, topic, b"0", b"1", b"100")
    program = "echo not now >&2; [ $TINYMQ_DELIVERY = 2 ] || exit $(cat)"
    assert work(topic, program, 4, "-o", "jsonl", "--set", "retry_ms=0,0") == Exit.OK
    printed = capfd.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    outcomes = sorted((row["offset"], row["delivery"], row["outcome"], row["code"]) for row in rows)
    assert outcomes == [(0, 1, "done", 0), (1, 1, "failed", 1), (1, 2, "done", 0), (2, 1, "rejected", 100)]
    assert "2 done, 1 failed, 1 rejected" in printed.err
    cluster.wait_leader(f"{topic}.dlq")
    (letter,) = cluster.client().reader(f"{topic}.dlq", start="earliest").poll(30.0, 1)
    assert (letter.value, letter.header("tinymq-reason")) == (b"100", b"not now")


def test_a_program_that_takes_too_long_is_killed(
    cluster: Cluster, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    send(cluster, topic, b"x")
    program = "[ $TINYMQ_DELIVERY = 2 ] || sleep 600"
    assert work(topic, program, 2, "--time-limit", "0.3", "-o", "json", "--set", "retry_ms=0,0") == Exit.OK
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["outcome"], row["code"]) for row in rows] == [("failed", -signal.SIGKILL), ("done", 0)]


def test_programs_run_side_by_side(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Each waits until all four have begun."""
    send(cluster, topic, *[b"%d" % n for n in range(4)])
    program = f"touch {tmp_path}/$(cat); while [ $(ls {tmp_path} | wc -l) -lt 4 ]; do sleep 0.02; done"
    assert work(topic, program, 4, "-c", "4") == Exit.OK
    assert lag(cluster, topic) == 0


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_lets_the_program_finish(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    send(cluster, topic, b"a", b"b")
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    os.mkfifo(begun)

    def interrupt() -> None:
        begun.read_text()  # blocks until a program writes to it
        until_leased(cluster, topic, 2)
        os.kill(os.getpid(), signal.SIGINT)
        until_leased(cluster, topic, 1)  # the worker has stopped, and gave back what it had not begun
        go_on.touch()

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    program = f"echo > {begun}; while [ ! -e {go_on} ]; do sleep 0.02; done"
    assert run(["worker", topic, "-g", topic, "--exec", program]) == Exit.OK
    interrupting.join()
    assert lag(cluster, topic) == 1, "the program that had begun is done, and no other was begun"


def test_a_key_that_is_no_text_is_given_in_base64(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    send(cluster, topic, b"x", key=b"\xff\x00")
    wrote = tmp_path / "wrote"
    assert work(topic, f'echo "${{TINYMQ_KEY-none}} $TINYMQ_KEY_BASE64" > {wrote}', 1) == Exit.OK
    assert wrote.read_text() == "none /wA=\n"


def test_a_command_that_cannot_be_run_ends_the_worker_and_no_record(
    cluster: Cluster, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A typing error would otherwise make every record of the topic a dead letter."""
    send(cluster, topic, b"x", b"y", b"z")
    assert work(topic, "/no/such/program", 3, "--set", "retry_ms=60000") == Exit.USAGE
    said = capfd.readouterr().err
    assert "'/no/such/program' cannot be run" in said
    assert "correct --exec" in said
    assert lag(cluster, topic) == 3


def test_a_program_that_has_worked_may_end_like_one_that_is_not_there(
    cluster: Cluster, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    send(cluster, topic, b"0", b"127")
    assert work(topic, "exit $(cat)", 2, "-o", "jsonl", "--set", "retry_ms=60000") == Exit.OK
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["outcome"], row["code"]) for row in rows] == [("done", 0), ("failed", 127)]


def test_a_worker_stops_after_some_time_without_a_record(topic: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["worker", topic, "-g", topic, "--exec", "true", "--idle", "0.1"]) == Exit.OK
    assert "0 done, 0 failed, 0 rejected" in capfd.readouterr().err


def test_the_help_says_what_a_program_gets_and_what_its_exit_code_means(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["worker", "--help"]) == Exit.OK
    words = " ".join(capfd.readouterr().out.split())
    assert "TINYMQ_DELIVERY (1 at first)" in words
    assert "Exit code 0: the record is done. 100: " in words


def test_the_help_of_group_create_has_every_setting(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["group", "create", "--help"]) == Exit.OK
    words = set(capfd.readouterr().out.replace(",", " ").replace(".", " ").split())
    assert words >= {name for declared in SETTINGS.values() for name in declared}

"""A broker of the harness as a process of its own: `tinymq broker` with one rule missing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.real.checkout import OWN
from tests.metrics.pages import get
from tinymq import Client
from tinymq.base.errors import OutcomeUnknown
from tinymq.cli.common.exits import Exit
from tinymq.dev import dev_cluster, dev_directory, process
from tinymq.dev.dev_directory import DevDirectory
from tinymq.dev.process import Process
from tinymq.raft.roles.replication import Replication
from tinymq_chaos.mutants import MUTANTS
from tinymq_chaos.real.cluster import broker as command

DEADLINE_S = 20.0
MODULE = [sys.executable, "-m", "tinymq_chaos.real.cluster.broker"]
TOPIC = "t"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Three brokers, of which number 1 is a mutant, and a topic."""

    folder: DevDirectory
    client: Client

    def process(self, number: int) -> Process:
        found = self.folder.process(number)
        assert found is not None
        return found

    def leaders(self) -> list[int | None]:
        """Return the leaders by partition."""
        return [partition.leader for partition in self.client.admin.describe_topic(TOPIC).partitions]

    def high_watermark(self, broker: int, partition: int) -> int | None:
        """Return the high watermark of a replica, by its broker's report."""
        page = json.loads(get(self.folder.broker(broker).metrics_address, "/status")[2])
        found = [row for row in page["replicas"] if (row["topic"], row["partition"]) == (TOPIC, partition)]
        return found[0].get("high_watermark") if found else None

    def wait_shown(self, end: int, partition: int, *brokers: int) -> None:
        """Wait until these replicas have a partition up to `end`, committed."""
        deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
        while (shown := [self.high_watermark(broker, partition) for broker in brokers]) != [end] * len(brokers):
            assert time.monotonic() < deadline, f"brokers {brokers} show {shown} instead of {end}"
            pause.wait(0.02)

    def signal(self, number: signal.Signals, *brokers: int) -> None:
        for broker in brokers:
            assert self.process(broker).signal(number)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("PYTHONPATH", OWN)
    path = tmp_path / "dev"
    folder = dev_directory.create(path, 3)
    with folder.config(1).open("a") as config:  # it keeps leading without the others, however late a send comes
        config.write("\n[timing]\ngone_after_s = 20.0\n")
    mutant = [*MODULE, "--mutant", "answers-when-appended", "--", "--config", str(folder.config(1))]
    folder.set_process(1, process.start(mutant, folder.log(1)))
    try:
        folder = dev_cluster.up(path, 3, lambda _: None)  # the two others, as they ship
        with Client(folder.servers) as client:
            client.admin.create_topic(TOPIC, 3, 3)
            yield Cluster(folder, client)
    finally:
        for broker in folder.brokers:
            if (found := folder.process(broker.id)) is not None:
                found.signal(signal.SIGKILL)  # stopped processes do not get SIGTERM
        dev_cluster.down(path, purge=False)


def test_a_mutant_that_answers_before_the_commit_loses_acknowledged_records(cluster: Cluster) -> None:
    assert "THIS BROKER IS BROKEN ON PURPOSE: answers-when-appended" in cluster.folder.log(1).read_text()
    client = cluster.client
    at = cluster.leaders().index(1)
    assert client.send(TOPIC, b"everybody has it", partition=at).offset == 0
    cluster.wait_shown(1, at, 2, 3)  # the mutant's answer proves nothing about the others

    cluster.signal(signal.SIGSTOP, 2, 3)
    acknowledged = client.send(TOPIC, b"the leader alone has it", partition=at)
    assert acknowledged.offset == 1
    for number in (2, 3, 1):  # the two with unread messages
        dev_cluster.kill(cluster.folder.path, number)
    for number in (2, 3):
        dev_cluster.start(cluster.folder.path, number)
    # Another client: the first one may have sent to the dead broker before it knows. It waits until the two answer,
    # which have just been started.
    with Client(cluster.folder.servers, connect_timeout_ms=60_000) as other:
        after = other.send(TOPIC, b"of the next leader", partition=at)
    assert after.offset == acknowledged.offset, "the place of an acknowledged record is given to another one"

    with Client(cluster.folder.servers, request_timeout_ms=1_000) as hurried:
        assert hurried.send(TOPIC, b"both have it", partition=at).offset == 2
        cluster.signal(signal.SIGSTOP, *({2, 3} - {cluster.leaders()[at]}))
        with pytest.raises(OutcomeUnknown):  # the same with an unchanged leader
            hurried.send(TOPIC, b"the leader alone has it", partition=at)


def test_the_entry_point_ends_with_the_brokers_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", OWN)
    folder = dev_directory.create(tmp_path / "dev", 1)
    start = [*MODULE, "--mutant", "no-pre-votes", "--mutant", "logs-are-not-synced", "--"]
    with subprocess.Popen([*start, "--config", str(folder.config(1))], stderr=subprocess.PIPE, text=True) as broker:
        try:
            folder.set_process(1, Process(broker.pid, process.start_time(broker.pid) or "gone"))
            dev_cluster.up(folder.path, 1, lambda _: None)
            broker.terminate()
            said = broker.communicate(timeout=DEADLINE_S)[1]
        finally:
            broker.kill()
    assert broker.returncode == Exit.OK
    loud, quiet = [MUTANTS[name].rule in said for name in ("no-pre-votes", "failed-syncs-are-ignored")]
    assert (loud, quiet) == (True, False)
    assert '"state": "stopping"' in said

    missing = [str(tmp_path / "none.toml")]
    mutant = subprocess.run([*start, "--config", *missing], capture_output=True, text=True, timeout=DEADLINE_S)
    shipped = [sys.executable, "-m", "tinymq.cli.main", "broker", "--config", *missing]
    whole = subprocess.run(shipped, capture_output=True, text=True, timeout=DEADLINE_S)
    assert mutant.returncode == whole.returncode == Exit.USAGE
    assert mutant.stderr.splitlines()[2:] == whole.stderr.splitlines()


def test_the_broker_gets_the_arguments_after_the_dashes_and_lacks_the_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[object] = []
    monkeypatch.setattr(command, "run", lambda words: given.append((words, Replication.sync_hangs)) or 7)
    before = Replication.sync_hangs
    assert command.main(["--mutant", "hanging-leaders-stay", "--", "--broker-id", "1", "--", "--mutant"]) == 7
    ((words, rule),) = given
    assert words == ["broker", "--broker-id", "1", "--", "--mutant"]
    assert rule is not before
    assert Replication.sync_hangs is before
    assert capsys.readouterr().err.startswith("THIS BROKER IS BROKEN ON PURPOSE: hanging-leaders-stay takes out: ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--mutant no-pre-vote --", "no mutant is called no-pre-vote; the nearest: no-pre-votes"),
        ("--mutant heartbeats-carry-a-log-position --", "for the simulator only: "),
        ("--mutant sequences-may-be-skipped --mutant duplicates-are-appended --", "both change judge"),
        ("--mutant no-pre-votes --config x", "--config x: arguments of the broker belong behind --"),
        ("-- --config x", "no --mutant and no --disk"),
        ("--mutant", "expected one argument"),
    ],
)
def test_impossible_requests_are_refused_with_a_message(
    words: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[object] = []
    monkeypatch.setattr(command, "run", started.append)
    assert command.main(words.split()) == Exit.USAGE
    assert not started
    said = capsys.readouterr().err
    assert says in said.splitlines()[0]
    assert said.splitlines()[0].endswith("[InvalidRequest]")
    assert "BROKEN ON PURPOSE" not in said


def test_the_list_says_which_need_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(MUTANTS)
    needing = [line.split()[0] for line in lines if "simulator only: " in line]
    assert needing == [name for name, mutant in MUTANTS.items() if mutant.needs_simulator]
    assert "heartbeats-carry-a-log-position" in needing

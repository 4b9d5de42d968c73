"""Faults of disks: which brokers they strike, what they do to files, and that all of it is undone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.chaos.real.stand_in import StandIn
from tinymq import Client
from tinymq.base.errors import DiskFull, StorageError, SyncFailed
from tinymq.log.files.files import RealFiles
from tinymq.simulation.faulty_files import Crash
from tinymq_chaos.faults import KILL, POWER
from tinymq_chaos.history import History
from tinymq_chaos.real.cluster.cluster import Cluster
from tinymq_chaos.real.disks.disk_control import DiskControl, serve
from tinymq_chaos.real.disks.disk_faults import DiskFaults
from tinymq_chaos.real.disks.disks import FaultyDisk
from tinymq_chaos.real.faults import FAULTS, Value, disks
from tinymq_chaos.real.run.stage import RecordingStage

DEADLINE_S = 20.0
TOPIC = "t"
LARGE = b"1" * 64 * 1024  # a thread syncs it; the loop itself syncs small ones, and would wait for a slow sync
IN_A_WRITE, IN_A_SYNC, AT_ONCE = (1, 0, 0), (0, 1, 0), (0, 0, 1)


class DiskTarget(StandIn):
    """Brokers with controlled disks, on real files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(3, folder)
        self.disks: dict[int, FaultyDisk] = {}
        for broker in self.brokers:
            self._boot(broker)

    def _boot(self, broker: int) -> None:
        faults = DiskFaults(lambda: self._die(broker))
        self.disks[broker] = FaultyDisk(RealFiles(self.data(broker)), self.data(broker), faults)
        serve(self.disks[broker], self.folder / f"disk-{broker}")

    def _die(self, broker: int) -> None:
        self.up.discard(broker)
        self.done.append(f"broker {broker} died")
        raise Crash("the process is gone")

    def start(self, *brokers: int) -> None:
        for broker in brokers:
            self._boot(broker)
        super().start(*brokers)

    def disk(self, broker: int) -> DiskControl:
        return DiskControl(self.folder / f"disk-{broker}")

    def write(self, broker: int, path: str, content: bytes, *, synced: bool) -> None:
        files = self.disks[broker]
        file = files.open(path, create=True)
        file.write(0, [content])
        if synced:
            files.sync([file])
            files.sync_directory("")


class Scene:
    def __init__(self, target: StandIn) -> None:
        self.target = target
        self.history = History()
        self.stage = RecordingStage(target, self.history)

    def begin(self, kind: str, seed: int = 1, **how: Value) -> tuple[Iterator[str | None], str | None]:
        usual = {name: values[0] for name, values in FAULTS[kind].real.parameters.items()}
        fault = FAULTS[kind].begin(self.stage, random.Random(seed), usual | how)
        return fault, next(fault)

    def said(self, words: str) -> int:
        return sum(words in change.what for change in self.history.changes)


@pytest.fixture
def target(tmp_path: Path) -> DiskTarget:
    return DiskTarget(tmp_path)


@pytest.fixture
def scene(target: DiskTarget) -> Scene:
    return Scene(target)


def test_a_disk_stays_full_until_its_broker_restarts(scene: Scene, target: DiskTarget) -> None:
    fault, words = scene.begin("disk_full", broker=2.0, bytes_left=3.0)
    assert words == "of broker 2: 3 bytes are left"
    with pytest.raises(DiskFull):
        target.write(2, "a", b"1234", synced=False)
    target.write(1, "a", b"1234", synced=False)
    assert next(fault, None) is None
    assert target.done == ["kill 2", "start 2"]
    target.write(2, "a", b"1234", synced=False)


def test_syncs_fail_until_the_end_and_then_power_goes(scene: Scene, target: DiskTarget) -> None:
    target.write(2, "a", b"old", synced=True)
    fault, _ = scene.begin("fail_sync", broker=2.0, pattern="a")
    for _ in range(2):
        with pytest.raises(SyncFailed):
            target.write(2, "a", b"new", synced=True)
    assert next(fault, None) is None
    assert (target.data(2) / "a").read_bytes() == b"old"
    assert scene.said("broker 2 loses power") == 1
    target.write(2, "a", b"new", synced=True)


@pytest.mark.parametrize("then", [KILL, POWER])
def test_a_broker_that_ended_because_a_sync_failed_is_started(scene: Scene, target: DiskTarget, then: str) -> None:
    fault, _ = scene.begin("fail_sync", broker=2.0, then=then)
    target.up.discard(2)
    assert next(fault, None) is None
    assert target.up == {1, 2, 3}


def test_a_slow_sync_is_let_go_at_the_end_and_other_faults_stay(scene: Scene, target: DiskTarget) -> None:
    fault, _ = scene.begin("slow_sync", broker=1.0, seconds=1000.0)
    target.disk(1).disk_full(5)
    done = threading.Event()
    thread = threading.Thread(target=lambda: (target.write(1, "a", b"1", synced=True), done.set()))
    thread.start()
    assert not done.is_set()
    assert next(fault, None) is None
    assert done.wait(DEADLINE_S)
    thread.join()
    with pytest.raises(DiskFull):
        target.write(1, "a", b"1234567", synced=False)
    assert target.done == []


def test_reads_fail_until_the_broker_restarts_without_the_fault(scene: Scene, target: DiskTarget) -> None:
    target.disks[3].make_directory("groups")
    target.write(3, "groups/a", b"1", synced=True)
    fault, words = scene.begin("read_error", broker=3.0)
    assert words == "at broker 3"
    file = target.disks[3].open("groups/a")
    with pytest.raises(StorageError):
        file.read(0, 1)
    assert next(fault, None) is None
    assert target.disks[3].open("groups/a").read(0, 1) == b"1"
    assert target.done == ["kill 3", "start 3"] * 2
    assert FAULTS["read_error"].real.damages
    assert FAULTS["read_error"].real.scars


@pytest.mark.parametrize(("kind", "brokers"), [("power_cut", 1), ("power_cut_all", 3)])
def test_a_power_cut_takes_unsynced_bytes(
    scene: Scene, target: DiskTarget, kind: str, brokers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "WEIGHTS", AT_ONCE)
    before = {broker: target.disks[broker].boot_id() for broker in target.brokers}
    for broker in target.brokers:
        target.write(broker, "synced", b"s" * 2000, synced=True)
        for number in range(12):
            target.write(broker, f"lost-{number}", b"l" * 2000, synced=False)
    fault, words = scene.begin(kind, who="anyone")
    assert words is not None
    assert "names lost" in words
    down = {1, 2, 3} - target.up
    assert len(down) == brokers
    assert target.done[:brokers] == [f"kill {broker}" for broker in sorted(down)]
    for broker in down:
        assert (target.data(broker) / "synced").read_bytes() == b"s" * 2000
        left = [path.read_bytes() for path in target.data(broker).glob("lost-*")]
        assert len(left) < 12 or b"l" * 2000 not in left
        assert scene.said(f"broker {broker} loses power") == 1
    assert next(fault, None) is None
    assert target.up == {1, 2, 3}
    after = {broker: target.disks[broker].boot_id() for broker in target.brokers}
    assert {broker for broker in before if before[broker] != after[broker]} == down


def test_power_goes_in_the_middle_of_a_write(scene: Scene, target: DiskTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "WEIGHTS", IN_A_WRITE)
    monkeypatch.setattr(disks, "PATIENCE_S", DEADLINE_S)

    def keep_writing() -> None:
        number = 0
        while target.up == {1, 2, 3}:
            number += 1
            for broker in (1, 2, 3):
                try:
                    target.write(broker, f"f-{number}", b"x" * 3000, synced=False)
                except Crash:
                    return

    writing = threading.Thread(target=keep_writing)
    writing.start()
    _, words = scene.begin("power_cut_all", seed=3)
    writing.join()
    assert words is not None
    assert "in the middle of a write" in words
    assert sum("died" in done for done in target.done) == 1
    assert target.up == set()
    assert scene.said("is killed") == 3


def test_power_goes_in_the_middle_of_a_sync(scene: Scene, target: DiskTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "WEIGHTS", IN_A_SYNC)
    monkeypatch.setattr(disks, "PATIENCE_S", DEADLINE_S)
    target.write(2, "a", b"o" * 6000, synced=True)
    slowed, slow_sync = threading.Event(), DiskFaults.slow_sync

    def noted(faults: DiskFaults, seconds: float, pattern: str = "*") -> None:
        slow_sync(faults, seconds, pattern)
        if faults is target.disks[2].faults:
            slowed.set()

    def write() -> None:
        assert slowed.wait(DEADLINE_S)
        target.write(2, "a", b"n" * 6000, synced=True)

    monkeypatch.setattr(DiskFaults, "slow_sync", noted)
    writing, faults = threading.Thread(target=write), target.disks[2].faults
    writing.start()
    _, words = scene.begin("power_cut_all")
    assert words is not None
    assert "in the middle of a sync" in words
    content = (target.data(2) / "a").read_bytes()
    assert {*content} == {*b"on"}, "some of it, and not all"
    assert writing.is_alive()
    faults.mend()
    writing.join()


@pytest.mark.parametrize("when", [IN_A_WRITE, IN_A_SYNC])
def test_an_idle_broker_loses_power_all_the_same(
    scene: Scene, target: DiskTarget, when: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "WEIGHTS", when)
    monkeypatch.setattr(disks, "PATIENCE_S", 0.01)
    _, words = scene.begin("power_cut", broker=2.0)
    assert words == "broker 2, at once: 0 sectors, 0 sizes, 0 names lost"


def test_a_disk_without_an_answer_gets_no_fault(scene: Scene, target: DiskTarget) -> None:
    (target.folder / "disk-1").unlink()
    for kind in ("slow_sync", "disk_full", "fail_sync"):
        _, words = scene.begin(kind, broker=1.0)
        assert words is None
    target.up.clear()
    for kind in ("slow_sync", "disk_full", "fail_sync", "power_cut", "power_cut_all"):
        _, words = scene.begin(kind)
        assert words is None
    assert target.done == []


# with mutants on real brokers (without mutants: test_disk_control.py)


def test_records_acknowledged_before_their_sync_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "WEIGHTS", AT_ONCE)
    with Cluster(tmp_path / "c", 1, disks=True, mutants=["leader-counts-itself-early"]) as cluster:
        cluster.up()
        scene = Scene(cluster)  # type: ignore[arg-type]
        with Client(cluster.servers) as client:
            client.admin.create_topic(TOPIC, 1, 1)
            # a leader syncs entries before it serves; these syncs are over
            acknowledged = [client.send(TOPIC, LARGE).offset]
            cluster.disk(1).slow_sync(600.0)
            acknowledged += [client.send(TOPIC, LARGE).offset for _ in range(19)]
            fault, words = scene.begin("power_cut_all")
            assert next(fault, None) is None
            cluster.up()
            with client.reader(TOPIC, end="latest") as reader:
                found = [message.offset for message in reader]
        assert acknowledged == list(range(20))
        assert len(found) < 20, words


def test_a_power_cut_takes_bytes_that_a_mutant_does_not_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "WEIGHTS", AT_ONCE)
    with Cluster(tmp_path / "c", 1, disks=True, mutants=["logs-are-not-synced"]) as cluster:
        cluster.up()
        scene = Scene(cluster)  # type: ignore[arg-type]
        with Client(cluster.servers) as client:
            client.admin.create_topic(TOPIC, 1, 1)
            for number in range(20):
                client.send(TOPIC, b"%d" % number * 600)
        fault, words = scene.begin("power_cut_all")
        assert next(fault, None) is None
        until_s = time.monotonic() + DEADLINE_S
        while "it was durable up to" not in cluster.unhealthy():
            assert time.monotonic() < until_s, (words, cluster.unhealthy())

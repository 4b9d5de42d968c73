"""Each fault reports its effect as observed where it acts, and a fault without an effect reports that."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from pathlib import Path

import pytest

from tests.chaos.real import stand_in
from tests.chaos.real.places import Net as Places
from tests.chaos.real.stand_in import StandIn
from tests.chaos.real.test_faults_disks import DiskTarget, Scene
from tinymq.base.errors import StorageError
from tinymq_chaos.history import History
from tinymq_chaos.real.disks.disk_faults import DiskFaults
from tinymq_chaos.real.disks.power_cut import DeadDirectory, PowerCutLoss
from tinymq_chaos.real.faults import FAULTS, Family, Value, clocks, files, processes
from tinymq_chaos.real.faults import disks as disk_faults
from tinymq_chaos.real.net.network import Direction
from tinymq_chaos.real.net.probe_connections import ProbeConnection
from tinymq_chaos.real.net.probes import Probe
from tinymq_chaos.real.run import run as running
from tinymq_chaos.real.run.nemesis import Nemesis

QUICK: dict[str, dict[str, Value]] = {
    "latency": {"latency": 200.0, "jitter": 10.0},
    "bandwidth": {"rate": 20.0},
    "slicer": {"delay": 2000.0},
    "slow_close": {"delay": 800.0},
    "reset_peer": {"timeout": 50.0},
    "limit_data": {"bytes": 40_000.0},
    "timeout": {"where": "brokers", "timeout": 50.0},
}
"""Parameters with which a network fault shows within a second."""


class Carrying(stand_in.StandInNet):
    """A target of plain values; with `real`, its proxies carry the faults out, without it nothing does."""

    def __init__(self, net: Places, real: bool) -> None:
        super().__init__()
        self.proxies, self.real = net.proxies, real

    def cut(self, why: str, directions: Iterable[Direction]) -> None:
        super().cut(why, directions := list(directions))
        if self.real:
            self.proxies.cut(why, directions)

    def toxic(
        self, why: str, directions: Iterable[Direction], kind: str, toxicity: float = 1.0, **attributes: float
    ) -> None:
        super().toxic(why, directions := list(directions), kind, toxicity, **attributes)
        if self.real:
            self.proxies.toxic(why, directions, kind, toxicity, **attributes)

    def mend(self, why: str) -> None:
        super().mend(why)
        self.proxies.mend(why)

    def line(self, direction: Direction) -> ProbeConnection:
        return self.proxies.line(direction)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    pairs = [*permutations((1, 2, 3), 2), (0, 1), (0, 2), (0, 3)]
    net = Places(tmp_path_factory.mktemp("places"), *pairs)
    yield net
    net.close()


def effect_of(scene: Scene, kind: str, during: float = 0.0, **how: Value) -> str | None:
    """Begin a fault, let it last, end it, and return its effect."""
    scene.stage.topics.append(("t", 0))
    nemesis = Nemesis(scene.target, scene.history, random.Random(1), has=frozenset({"disks", "faketime"}))
    nemesis.stage.topics.append(("t", 0))
    scene.target.leads["t", 0] = 1
    under_way = nemesis.begin(kind, **how)
    assert under_way is not None
    nemesis.end(under_way)
    return under_way.span.effect


def told(scene: Scene, kind: str, **how: Value) -> str | None:
    """Like `effect_of`, but a network fault lasts until its effect was observed."""
    begun: list[Probe] = []

    def noted(probe: Probe, begin: Callable[[Probe], None] = Probe.begin) -> None:
        begun.append(probe)
        begin(probe)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Probe, "begin", noted)
        fault, _ = scene.begin(kind, **how)
    for probe in begun:
        probe.seen(20.0)
    with pytest.raises(StopIteration) as end:
        next(fault)
    effect: str | None = end.value.value
    return effect


@pytest.mark.parametrize("kind", [name for name, fault in FAULTS.items() if fault.family is Family.NETWORK])
def test_probes_observe_the_effect_of_a_network_fault(places: Places, kind: str) -> None:
    scene = Scene(target := StandIn())
    scene.stage.topics.append(("t", 0))
    target.leads["t", 0] = 1
    target.net = Carrying(places, real=True)
    effect = told(scene, kind, **QUICK.get(kind, {}))
    assert effect
    assert any(letter.isdigit() for letter in effect)


@pytest.mark.parametrize("kind", ["isolate", "one_way", "latency", "bandwidth", "slicer", "slow_close"])
def test_a_network_fault_without_effect_reports_none(places: Places, kind: str) -> None:
    scene = Scene(target := StandIn())
    scene.stage.topics.append(("t", 0))
    target.leads["t", 0] = 1
    target.net = Carrying(places, real=False)
    assert told(scene, kind, **QUICK.get(kind, {})) == ""


@pytest.mark.parametrize("kind", ["timeout", "reset_peer", "limit_data"])
def test_a_fault_that_ends_no_connection_reports_no_effect(places: Places, kind: str) -> None:
    scene = Scene(target := StandIn())
    target.net = Carrying(places, real=False)
    assert effect_of(scene, kind, **QUICK[kind]) == ""


def test_a_fault_without_probes_reports_no_observation() -> None:
    assert effect_of(Scene(StandIn()), "latency") is None
    assert effect_of(Scene(StandIn()), "pause") is None


KILLS = {"kill": 1, "kill_leader": 1, "kill_majority": 2, "kill_all": 3}


@pytest.mark.parametrize("kind", KILLS)
def test_a_kill_reports_how_many_processes_were_gone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = KILLS[kind]
    assert effect_of(Scene(StandIn()), kind) == f"{count} of {count} processes were gone"
    monkeypatch.setattr(StandIn, "kill", lambda self, *brokers: None)
    assert effect_of(Scene(StandIn()), kind) == ""


def test_a_rolling_restart_tells_how_many_had_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert effect_of(Scene(StandIn()), "rolling_restart") == "3 of 3 ended after SIGTERM"
    monkeypatch.setattr(processes, "HEALTHY_S", 0.0)
    scene = Scene(target := StandIn())
    target.ill = "a replica is missing"
    assert effect_of(scene, "rolling_restart") == ""


def fill(target: DiskTarget) -> None:
    target.disks[2].make_directory("groups")
    target.write(2, "groups/a.log", b"s" * 2000, synced=True)
    target.disks[2].sync_directory("groups")


def use(target: DiskTarget) -> None:
    """Write, sync and read, and ignore errors."""
    for do in (
        lambda: target.write(2, "groups/b.log", b"n" * 2000, synced=True),
        lambda: target.disks[2].open("groups/a.log").read(0, 1),
    ):
        try:
            do()
        except StorageError:
            continue


DISKS = {
    "slow_sync": ({"seconds": 0.001}, "2 syncs delayed"),
    "disk_full": ({}, "1 writes refused"),
    "fail_sync": ({}, "1 syncs failed"),
    "read_error": ({}, "1 reads failed"),
}


@pytest.mark.parametrize("kind", DISKS)
def test_a_disk_counts_what_its_faults_did(tmp_path: Path, kind: str) -> None:
    target = DiskTarget(tmp_path)
    fill(target)
    how, effect = DISKS[kind]
    fault, _ = Scene(target).begin(kind, broker=2.0, **how)
    use(target)
    if kind == "disk_full":
        target.up.discard(2)  # the fault ended it; what was counted stays
    with pytest.raises(StopIteration) as end:
        next(fault)
    assert end.value.value.startswith(effect)


@pytest.mark.parametrize("kind", DISKS)
def test_a_disk_fault_without_effect_reports_none(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = DiskTarget(tmp_path)
    fill(target)
    monkeypatch.setattr(disk_faults, "PATIENCE_S", 0.0)
    name = "fail_read" if kind == "read_error" else kind
    monkeypatch.setattr(DiskFaults, name, lambda self, *args, **kwargs: None)
    fault, _ = Scene(target).begin(kind, broker=2.0)
    use(target)
    with pytest.raises(StopIteration) as end:
        next(fault)
    assert end.value.value == ""


def test_a_power_cut_reports_its_losses_and_its_possible_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_faults, "WEIGHTS", (0, 0, 1))
    target = DiskTarget(tmp_path)
    fill(target)
    assert effect_of(Scene(target), "power_cut", broker=2.0) == "", "all was synced"
    target.disks[2].open("groups/a.log").write(2000, [b"n" * 2000])
    effect = effect_of(Scene(target), "power_cut", broker=2.0)
    assert effect is not None
    assert effect.startswith("1 of 1 processes were gone; ")
    assert effect.endswith("lost of 6 that were not synced"), "five sectors and a size"
    target.write(2, "groups/d.log", b"n" * 2000, synced=False)
    monkeypatch.setattr(DeadDirectory, "lose", lambda self, rng: PowerCutLoss(0, 0, 0))
    assert effect_of(Scene(target), "power_cut", broker=2.0) == ""


def test_missing_files_and_changed_bits_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BETWEEN_S", 0.0)
    monkeypatch.setattr(StandIn, "wipe", lambda self, broker: (self.data(broker) / "groups").unlink())
    target = StandIn(3, tmp_path)
    for kind in ("wipe", "wipe_then_kill"):
        target.data(2).mkdir(exist_ok=True)
        (target.data(2) / "groups").write_bytes(b"12345")
        effect = effect_of(Scene(target), kind, broker=2.0)
        assert effect is not None
        assert effect.startswith("1 files with 5 bytes were gone")
    monkeypatch.setattr(StandIn, "wipe", lambda self, broker: None)
    assert effect_of(Scene(target), "wipe", broker=2.0) == ""
    (tmp_path / "bits").write_bytes(b"\0\0")
    assert files.flip_bit(tmp_path / "bits", 1, 3)
    assert (tmp_path / "bits").read_bytes() == b"\0\x08"


class Clocked(StandIn):
    """Brokers that report the time of clocks with offsets."""

    broken = False

    def status(self, broker: int) -> dict[str, float]:
        now_s = running.time.time()
        off_s = int((self.folder / "clocks" / f"broker-{broker}").read_text())
        return {"wall_time_s": now_s + (0 if self.broken else off_s)}


@pytest.mark.parametrize(("broken", "effect"), [(False, "its time was off by -3600 s, and by"), (True, "")])
def test_a_jump_is_seen_in_the_brokers_own_time(
    tmp_path: Path, broken: bool, effect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "SEEN_S_MAX", 0.0 if broken else 20.0)
    target = Clocked(3, tmp_path)
    target.broken = broken
    clocks.environment(Path("lib"), tmp_path, target.brokers)
    seen = effect_of(Scene(target), "wall_jump", broker=2.0, hours=-1.0)
    assert seen is not None
    assert seen.startswith(effect)
    assert bool(seen) != broken


def test_an_effect_is_in_the_history_and_is_read_again() -> None:
    scene = Scene(StandIn())
    effect_of(scene, "kill_all")
    again = History.read(scene.history.lines())
    assert [span.effect for span in again.faults] == ["3 of 3 processes were gone"]
    assert again.faults == scene.history.faults


def test_every_kind_of_the_table_has_a_check_here() -> None:
    others = {name for name, fault in FAULTS.items() if fault.family is not Family.DISK}
    told_of = {*others, *DISKS, "power_cut", "power_cut_all"}
    assert told_of == {*FAULTS}

"""A power cut on real files takes what it takes in the simulator, and a kill takes nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.log.test_crash import life, reopen
from tests.log.values import open_store, run
from tests.log.witness import Witness
from tinymq.base.errors import DiskFull, StorageError, SyncFailed
from tinymq.log.files.files import File, Files, RealFile, RealFiles, failed_paths
from tinymq.simulation.faulty_files import Crash, FaultyFiles
from tinymq_chaos.real.disks import disks
from tinymq_chaos.real.disks.disk_faults import DiskFaults
from tinymq_chaos.real.disks.disks import FaultyDisk
from tinymq_chaos.real.disks.power_cut import DeadDirectory, PowerCutLoss
from tinymq_chaos.real.disks.unsynced_changes import FOLDER

DEADLINE_S = 20.0


def crash() -> None:
    raise Crash("the process is gone")


class Opened(RealFiles):
    """Real files, which close when their process ends."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.files: list[RealFile] = []

    def open(self, path: str, *, create: bool = False) -> RealFile:
        self.files.append(super().open(path, create=create))
        return self.files[-1]

    def end(self) -> None:
        for file in self.files:
            file.close()


class Machine:
    """One data directory on real files. A new process kills the one before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inner = Opened(folder)
        self.files = self.start()

    def start(self) -> FaultyDisk:
        self.inner.end()
        self.inner = Opened(self.folder)
        self.files = FaultyDisk(self.inner, self.folder, DiskFaults(crash))
        return self.files

    def power_cut(self, rng: random.Random) -> PowerCutLoss:
        self.inner.end()
        loss = DeadDirectory(self.folder).lose(rng)
        self.start()
        return loss

    def content(self, path: str) -> bytes:
        return (self.folder / path).read_bytes()

    def tree(self) -> dict[str, bytes | None]:
        """Return the content by path; None for a directory."""
        found = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*")}
        return {
            name: None if path.is_dir() else path.read_bytes()
            for name, path in sorted(found.items())
            if not name.startswith(FOLDER)
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "data")


def synced(files: Files, path: str, content: bytes) -> File:
    file = files.open(path, create=True)
    file.write(0, [content])
    files.sync([file])
    files.sync_directory(path.rpartition("/")[0])
    return file


class Never(random.Random):
    """A random source with which no unsynced change survives."""

    def random(self) -> float:
        return 0.9


class Always(random.Random):
    """A random source with which all unsynced changes survive, except sizes."""

    def random(self) -> float:
        return 0.1


class Low(Never):
    def choice(self, seq: object) -> object:  # type: ignore[override]
        return seq[0]  # type: ignore[index]


class High(Always):
    def choice(self, seq: object) -> object:  # type: ignore[override]
        return seq[1]  # type: ignore[index]


# As in the simulator


def simulated_tree(files: FaultyFiles) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {path: files.content(path) for path in files.paths()}
    for path in FOLDERS:
        if files.exists(path):
            found[path] = None
    return dict(sorted(found.items()))


FOLDERS = ("x", "y", "x/z")
NAMES = ("a", "b", "c")


class Script:
    """Random operations, the same for any files."""

    def __init__(self, files: Files, fail_sync: Callable[[str], None], seed: int) -> None:
        self.files = files
        self.fail_sync = fail_sync
        self.rng = random.Random(seed)
        self.open: dict[str, File] = {}

    def go(self, operations: int) -> None:
        for _ in range(operations):
            step = self.rng.choice((self.write, self.write, self.write, self.truncate, self.sync, self.name, self.name))
            with suppress(FileNotFoundError, SyncFailed):
                step()

    def path(self) -> str:
        return self.rng.choice(("", *(f"{folder}/" for folder in FOLDERS))) + self.rng.choice(NAMES)

    def opened(self) -> File:
        path = self.path()
        if path not in self.open:
            self.open[path] = self.files.open(path, create=True)
        return self.open[path]

    def write(self) -> None:
        at, size, byte = self.rng.randrange(2000), self.rng.choice((1, 100, 700, 3000)), self.rng.randrange(256)
        self.opened().write(at, [bytes([byte]) * size])

    def truncate(self) -> None:
        size = self.rng.randrange(3000)
        self.opened().truncate(size)

    def sync(self) -> None:
        chosen = self.rng.sample(sorted(self.open), min(len(self.open), self.rng.randrange(4)))
        if chosen and self.rng.random() < 0.2:
            self.fail_sync(chosen[0])
        self.files.sync([self.open[path] for path in chosen])

    def name(self) -> None:
        rng, path, other, folder = self.rng, self.path(), self.path(), self.rng.choice(FOLDERS)
        what = rng.randrange(10)
        if what < 2:
            self.files.remove(path)
            self.forget(path)
        elif what < 4:
            if path == other:
                return
            self.files.rename(path, other)
            self.forget(path, other)
        elif what < 6:
            self.files.make_directory(folder)
        elif what == 6:
            self.files.remove_tree(folder)
            self.forget(*(path for path in list(self.open) if path.startswith(folder + "/")))
        else:
            self.files.sync_directory(rng.choice(("", folder)))

    def forget(self, *paths: str) -> None:
        for path in paths:
            if (file := self.open.pop(path, None)) is not None:
                file.close()


@pytest.mark.parametrize("rng", [Low(), High()])
@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_leaves_the_same_as_in_the_simulator(machine: Machine, seed: int, rng: random.Random) -> None:
    """Random operations, with kills of the process now and then; the cut takes all or no unsynced changes."""
    simulated = FaultyFiles(rng)
    expected = Script(simulated, lambda pattern: simulated.fail_sync(pattern), seed)
    script = Script(machine.files, lambda pattern: machine.files.faults.fail_sync(pattern, once=True), seed)
    for part in range(3):
        expected.go(25)
        script.go(25)
        assert machine.tree() == simulated_tree(simulated), part
        if part < 2 and seed % 2:
            simulated.kill()
            expected.open.clear()
            script.files = machine.start()
            script.open.clear()
    before = machine.files.boot_id()
    simulated.power_cut()
    machine.power_cut(rng)
    assert machine.tree() == simulated_tree(simulated)
    assert machine.files.boot_id() != before
    assert not DeadDirectory(machine.folder).unsynced


# As the log's own crash tests


def one_life(folder: Path) -> int:
    machine = Machine(folder)
    run(life(machine.files, Witness(), {}))  # type: ignore[arg-type]
    return machine.files.faults.operations


@pytest.mark.parametrize("every", [31, pytest.param(13, marks=pytest.mark.long)])
@pytest.mark.parametrize("how", ["power_cut", "kill", "kill, then power_cut"])
def test_a_crash_in_the_life_of_a_log(tmp_path: Path, how: str, every: int) -> None:
    """Cut the power after every n-th operation: acknowledged entries are there, and no others are invented."""
    operations = one_life(tmp_path / "whole")
    assert operations > 100
    for after in range(len(how) % every, operations, every):
        machine, witness = Machine(tmp_path / str(after)), Witness()
        votes: dict[str, tuple[int, int | None]] = {}
        machine.files.faults.die_at("*", after, bytes_written=(after * 97) % 700)
        with pytest.raises(Crash):
            run(life(machine.files, witness, votes))  # type: ignore[arg-type]
        rng = random.Random(after)
        if how != "power_cut":
            run(reopen(machine.start(), witness, votes))  # type: ignore[arg-type]
        if how != "kill":
            machine.power_cut(rng)
        found = run(reopen(machine.start(), witness, votes))  # type: ignore[arg-type]
        machine.power_cut(rng)
        assert run(reopen(machine.files, witness, votes)) == found  # type: ignore[arg-type]


def test_a_store_in_use_stays_locked(machine: Machine) -> None:
    store = run(open_store(machine.files))
    with pytest.raises(StorageError):
        run(open_store(FaultyDisk(RealFiles(machine.folder), machine.folder)))
    run(store.close())


# Each fault


def test_a_kill_alone_takes_nothing(machine: Machine) -> None:
    machine.files.open("a", create=True).write(0, [b"seen"])
    boot = machine.files.boot_id()
    assert machine.start().open("a").read(0, 10) == b"seen"
    assert machine.files.boot_id() == boot == RealFiles(machine.folder).boot_id()
    machine.power_cut(Never())
    assert not machine.files.exists("a"), "it was not synced before the kill, nor after it"
    assert machine.files.boot_id() != boot
    assert machine.start().boot_id() not in (boot, b"")


def test_any_sectors_survive(machine: Machine) -> None:
    outcomes = set()
    for seed in range(40):
        synced(machine.files, "a", b"-" * 1536)
        machine.files.open("a").write(0, [b"+" * 1536])
        machine.power_cut(random.Random(seed))
        content = machine.content("a")
        outcomes.add(bytes(content[i] for i in (0, 512, 1024)))
        assert all(len(set(content[i : i + 512])) == 1 for i in (0, 512, 1024))
    assert len(outcomes) == 8


class SlowFiles(RealFiles):
    """Real files, whose syncs wait until the test releases them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.began, self.go = threading.Event(), threading.Event()
        self.go.set()

    def sync(self, files: object) -> None:
        self.began.set()
        assert self.go.wait(DEADLINE_S)
        super().sync(files)  # type: ignore[arg-type]

    def sync_directory(self, path: str) -> None:
        self.began.set()
        assert self.go.wait(DEADLINE_S)
        super().sync_directory(path)


def during(slow: SlowFiles, sync: Callable[[], None], change: Callable[[], object]) -> None:
    """Make the change during the sync."""
    slow.began.clear()
    slow.go.clear()
    thread = threading.Thread(target=sync)
    thread.start()
    assert slow.began.wait(DEADLINE_S)
    change()
    slow.go.set()
    thread.join()


def test_a_sync_does_not_cover_writes_during_it(machine: Machine) -> None:
    slow = SlowFiles(machine.folder)
    disk = FaultyDisk(slow, machine.folder)
    file = synced(disk, "a", b"1" * 512)
    file.write(0, [b"2" * 512])
    during(slow, lambda: disk.sync([file]), lambda: file.write(512, [b"3" * 512]))
    during(slow, lambda: disk.sync_directory(""), lambda: disk.open("b", create=True))
    assert disk.unsynced == (["a"], [""])
    machine.power_cut(Low())
    assert machine.content("a") == b"2" * 512
    assert not machine.files.exists("b")


def test_a_full_disk_accepts_bytes_that_fit_and_as_many_as_are_freed(machine: Machine) -> None:
    files, other = machine.files, synced(machine.files, "other", b"x" * 100)
    file = files.open("a", create=True)
    file.write(0, [b"1234"])
    files.faults.disk_full(3)
    file.write(0, [b"4321"])
    with pytest.raises(DiskFull) as raised:
        file.write(4, [b"56", b"789"])
    assert "a" in str(raised.value)
    assert file.read(0, 100) == b"4321567"
    with pytest.raises(DiskFull):
        file.truncate(8)
    other.close()
    files.remove("other")
    file.write(7, [b"8" * 100])
    with pytest.raises(DiskFull):
        file.write(107, [b"9"])
    file.truncate(106)
    file.write(106, [b"9"])
    files.faults.mend()
    file.write(107, [b"9" * 1000])


def test_syncs_fail_by_path_and_write_nothing(machine: Machine) -> None:
    files = machine.files
    one, two = synced(files, "g-1", b"old"), synced(files, "b", b"old")
    for file in (one, two):
        file.write(0, [b"new"])
    files.faults.fail_sync("g-*", once=True)
    with pytest.raises(SyncFailed) as raised:
        files.sync([one, two])
    assert failed_paths(raised.value) == {"g-1"}
    files.sync([one, two])  # it succeeds and has nothing to write, as in a kernel
    files.faults.fail_sync("")
    for _ in range(2):
        with pytest.raises(SyncFailed):
            files.sync_directory("")
    machine.power_cut(Always())
    assert (machine.content("g-1"), machine.content("b")) == (b"old", b"new")


def test_a_slow_sync_lasts_until_it_is_mended(machine: Machine) -> None:
    files, done = machine.files, threading.Event()
    file, other = synced(files, "a", b""), synced(files, "b", b"")
    files.faults.slow_sync(1000.0, "a")
    files.sync([other])
    thread = threading.Thread(target=lambda: (files.sync([file]), done.set()))
    thread.start()
    files.sync([other])
    assert not done.is_set()
    files.faults.mend()
    assert done.wait(DEADLINE_S)
    thread.join()


def test_unreadable_files_say_so_and_can_be_written(machine: Machine) -> None:
    file = synced(machine.files, "a", b"1")
    machine.files.faults.fail_read("a")
    with pytest.raises(StorageError):
        file.read(0, 1)
    file.write(0, [b"2"])
    machine.files.faults.mend()
    assert file.read(0, 1) == b"2"


@pytest.mark.parametrize("seed", range(12))
def test_a_torn_tail_is_a_part_of_what_was_written_last(machine: Machine, seed: int) -> None:
    file = synced(machine.files, "a", b"s" * 700 + bytes(1300))
    file.write(700, [b"1" * 300])
    file.write(1000, [b"2" * 1500])
    loss = DeadDirectory(machine.folder).tear(random.Random(seed))
    assert loss.sectors > 0
    content = machine.content("a")
    whole = b"s" * 700 + b"1" * 300 + b"2" * 1500
    kept = next(at for at in range(len(whole)) if content[at] != whole[at])
    assert 700 <= kept < len(whole)
    assert not content[kept:].strip(b"\0")
    assert len(content) == len(whole)
    assert not DeadDirectory(machine.folder).unsynced


def test_nothing_synced_is_torn(machine: Machine) -> None:
    synced(machine.files, "a", b"synced")
    assert DeadDirectory(machine.folder).tear(random.Random(1)).sectors == 0
    assert machine.content("a") == b"synced"


# The journal


def test_the_journal_is_cleared_when_no_record_matters(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "JOURNAL_BYTES", 2000)
    file, most = synced(machine.files, "a", b"x"), 0
    for at in range(300):
        file.write(at, [b"y"])
        machine.files.sync([file])
        most = max(most, machine.files.journal_bytes)
    assert 2000 < most + 200 < 2500
    file.write(0, [b"z" * 300])
    machine.power_cut(Low())
    assert machine.content("a") == b"y" * 300


def test_old_unsynced_writes_count_as_stored(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "JOURNAL_BYTES", 500)
    never = synced(machine.files, "never-synced", b"old")
    never.write(0, [b"new"])
    file = synced(machine.files, "a", b"")
    monkeypatch.setattr(disks, "WRITEBACK_S", 0.0)
    for at in range(20):
        file.write(at, [b"y"])
        machine.files.sync([file])
    assert machine.files.journal_bytes < 700
    machine.power_cut(Low())
    assert machine.content("never-synced") == b"new"


def test_a_journal_of_things_that_are_never_synced_has_a_bound(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "JOURNAL_BYTES", 1000)
    monkeypatch.setattr(disks, "JOURNAL_BYTES_MAX", 5000)
    file, other = synced(machine.files, "a", b""), synced(machine.files, "b", b"")
    for at in range(500):
        file.write(at, [b"y"])
        other.write(at, [b"y"])
        machine.files.sync([other])
        assert machine.files.journal_bytes < 5500


def test_removed_files_come_back_and_their_room_is_freed_once_that_is_durable(machine: Machine) -> None:
    kept = machine.folder / FOLDER / "kept"
    synced(machine.files, "a", b"a").close()
    synced(machine.files, "b", b"b").close()
    machine.files.remove("a")
    assert len(list(kept.iterdir())) == 1
    machine.power_cut(Never())
    assert machine.tree() == {"a": b"a", "b": b"b"}
    machine.files.remove("a")
    machine.files.sync_directory("")
    assert not list(kept.iterdir())
    machine.power_cut(Never())
    assert machine.tree() == {"b": b"b"}


def test_a_record_that_is_cut_short_is_no_record(machine: Machine) -> None:
    file = synced(machine.files, "a", b"old")
    file.write(0, [b"new"])
    journal = machine.folder / FOLDER / "journal"
    journal.write_bytes(journal.read_bytes() + b"\1\2\3")
    machine.start().open("a").write(1, [b"..."])
    machine.power_cut(Low())
    assert machine.content("a") == b"old"

"""Logs whose `sync` is altered while they are written: a power cut never loses an acknowledged entry unnoticed. A
replica may lose entries that it acknowledged before the sync, but then its incarnation count rises. Under one count,
every acknowledged entry is there.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.fakes.manual_clock import ManualClock
from tests.log.gate import until
from tests.log.values import GROUP, LIMITS, OTHER, append, faulty, first_entry, run
from tests.seeds import first_of
from tinymq.base.errors import SyncFailed
from tinymq.log import DISK, InlineRunner, Log, LogConfig, Store
from tinymq.log.broker_files.durability_marks import LAZY, load_marks
from tinymq.simulation.faulty_files import Crash

LAZY_5_S = replace(DISK, sync_interval_s=5.0)
EVERY_100_MS = replace(DISK, sync_interval_s=0.1)
EVERY_MINUTE = replace(DISK, sync_interval_s=60.0)


class Machine:
    """A data directory on a disk that may lose unsynced bytes, and the process that has it open."""

    def __init__(self, seed: int, mark_every_s: float = 0.0) -> None:
        self.files = faulty(seed)
        self.clock = ManualClock()
        self.store: Store
        self.log: Log
        self.count = 0
        self._mark_every_s = mark_every_s

    async def start(self, config: LogConfig) -> None:
        self.store = await Store.open(
            self.files, InlineRunner(), self.clock, broker_id=1, limits=LIMITS, rng=random.Random(1),
            mark_every_s=self._mark_every_s,
        )  # fmt: skip
        opened = await self.store.open_log(GROUP, first_entry(), config)
        assert opened.damage is None
        self.log, self.count = opened.log, opened.count

    async def acknowledged(self, count: int = 1) -> None:
        append(self.log, count)
        await self.rounds_end()
        assert self.log.durable_index == self.log.last_index

    async def rounds_end(self) -> None:
        """Wait until no sync batch is under way or requested. Raises Crash when the disk has stopped."""
        await until(lambda: self.store.writer._task is None)
        self.files.check_alive()

    async def lose_power(self, config: LogConfig) -> None:
        await self.store.abandon()
        self.files.power_cut()
        await self.start(config)


def on_machine(body: Callable[[Machine], Awaitable[None]], seed: int = 1, mark_every_s: float = 0.0) -> None:
    async def whole() -> None:
        machine = Machine(seed, mark_every_s)
        await machine.start(LAZY_5_S)
        await body(machine)

    run(whole())


@pytest.mark.parametrize("seed", first_of(range(8), 2))
def test_a_mark_created_under_always_does_not_cover_later_entries(seed: int) -> None:
    """5000 → always → 5000: the `always` batch creates its mark, and a batch after the next unsynced write
    stores it.
    """

    async def body(machine: Machine) -> None:
        await machine.acknowledged(2)
        machine.store.configure(GROUP, DISK)
        await machine.acknowledged(2)
        machine.store.configure(GROUP, LAZY_5_S)
        await machine.acknowledged(2)
        assert load_marks(machine.files).marks[GROUP].flags & LAZY
        held = machine.log.last_index
        await machine.lose_power(LAZY_5_S)
        assert machine.count == 1 or machine.log.last_index >= held
        assert machine.count == 1

    on_machine(body, seed)


def test_the_mark_of_an_altered_log_still_rises() -> None:
    """A mark that stays LAZY still rises."""

    async def body(machine: Machine) -> None:
        await machine.acknowledged(2)
        machine.store.configure(GROUP, DISK)
        await machine.acknowledged(2)
        machine.store.configure(GROUP, LAZY_5_S)
        await machine.acknowledged(2)
        mark = load_marks(machine.files).marks[GROUP]
        assert (mark.index, mark.flags) == (5, LAZY)

    on_machine(body)


def test_a_shorter_interval_applies_to_later_writes() -> None:
    """One minute → 100 ms: the first write after the change is synced in 100 ms, not at the end of the minute."""

    async def body(machine: Machine) -> None:
        machine.store.configure(GROUP, EVERY_MINUTE)
        await machine.acknowledged(2)
        machine.store.configure(GROUP, EVERY_100_MS)
        await machine.acknowledged(2)
        await machine.rounds_end()
        machine.clock.advance(0.11)
        await until(lambda: machine.log.synced_index == machine.log.last_index)

    on_machine(body)


@pytest.mark.parametrize("how", ["close", "raise_count", "barrier"])
def test_entries_are_synced_before_a_mark_covers_them(how: str) -> None:
    """Closing, and taking another count, write a mark of the whole log: the log has to be synced before that."""

    async def body(machine: Machine) -> None:
        append(machine.log, 3)  # no sync batch has begun
        if how == "close":
            await machine.store.close_log(GROUP)
        elif how == "raise_count":
            await machine.store.raise_count(GROUP, 5)
        else:
            await machine.store.writer.barrier()
        mark = load_marks(machine.files).marks[GROUP]
        await machine.lose_power(LAZY_5_S)
        assert how == "barrier" or mark.index == 4
        assert machine.log.last_index == 4

    for seed in range(8):
        on_machine(body, seed)


SETTINGS = (DISK, EVERY_100_MS, LAZY_5_S)
WAITS_S = (0.003, 0.06, 0.2, 6.0)


def test_no_mark_covers_entries_of_a_failed_writer() -> None:
    """The sync of the marks fails between two batches. Unsynced entries stay unsynced, even when their log
    is closed.
    """

    async def body(machine: Machine) -> None:
        await machine.acknowledged(3)
        machine.files.fail_sync("marks")
        with pytest.raises(SyncFailed):
            await machine.store.open_log(OTHER, first_entry(), DISK)
        assert isinstance(machine.log.failed, SyncFailed)
        await machine.store.close_log(GROUP)
        await machine.store.abandon()
        machine.files.kill()
        assert load_marks(machine.files).marks[GROUP].flags & LAZY
        assert load_marks(machine.files).marks[GROUP].index == 1

    on_machine(body)


STEPS = {"append": 2, "acknowledge": 6, "alter": 10, "wait": 1, "other": 1, "cut": 1, "commit": 1}  # how often
SEEDS = 60
LIVES = 3  # of the process, until the last comparison


async def live(machine: Machine, rng: random.Random, history: History) -> LogConfig:
    """Run one process: writes, changes of the setting, truncations, pauses. Returns its last setting."""
    config = machine.log.config
    other = (await machine.store.open_log(OTHER, first_entry(), DISK)).log
    for _ in range(rng.randrange(3, 10)):
        (step,) = rng.choices(list(STEPS), list(STEPS.values()))
        log = machine.log
        if step == "alter":
            config = rng.choice(SETTINGS)
            machine.store.configure(GROUP, config)
            if rng.random() < 0.5:
                await machine.rounds_end()
        elif step == "wait":
            machine.clock.advance(rng.choice(WAITS_S))
            await machine.rounds_end()
        elif step == "other":  # its sync batch includes marks
            append(other, 1)
            await machine.rounds_end()
        elif step == "commit":
            log.note_commit(log.durable_index)
        elif step == "cut":
            history.cut(max(2, log.commit.known + 1, log.last_index - rng.randrange(4)))
        else:
            append(log, rng.randrange(1, 4))
            if step == "acknowledge":
                await machine.rounds_end()
        history.look()
    return config


@pytest.mark.parametrize("every_s", [0.0, 0.01])
def test_no_order_of_alterations_and_ends_loses_an_acknowledged_entry_unnoticed(
    every_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may stop at any disk operation. Under its previous count, every entry that it acknowledged and did not
    truncate is there.
    """

    monkeypatch.setattr(
        "tinymq.log.broker_files.durability_marks.FILE_BYTES_MIN", 1 << 12
    )  # otherwise writing zeros takes most of the time
    monkeypatch.setattr("tinymq.log.broker_files.vote_store.FILE_BYTES_MIN", 1 << 12)

    async def body(machine: Machine, rng: random.Random) -> None:
        for _ in range(LIVES):
            history = History(machine)
            if rng.random() < 0.5:
                machine.files.crash_after(rng.randrange(50), bytes_written=rng.randrange(700))
            config = machine.log.config
            with suppress(Crash):
                config = await live(machine, rng, history)
            history.look()
            with suppress(Crash):
                await (machine.store.close() if rng.random() < 0.2 else machine.store.abandon())
            (machine.files.power_cut if rng.random() < 0.7 else machine.files.kill)()
            await machine.start(config)
            history.compare()

    for seed in range(SEEDS):
        print("seed", seed)
        on_machine(lambda machine, seed=seed: body(machine, random.Random(seed)), seed, every_s)  # type: ignore[misc]


class History:
    """The entries that one process acknowledged, as checksums."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._count = machine.count
        self._held = [machine.log.reader.crc_at(i) for i in range(1, machine.log.last_index + 1)]

    def look(self) -> None:
        """Return the entries that are acknowledged by now."""
        log = self._machine.log
        self._held += [log.reader.crc_at(i) for i in range(len(self._held) + 1, log.durable_index + 1)]

    def cut(self, index: int) -> None:
        """Truncated entries may come back: they were acknowledged, and the truncation reaches the disk later."""
        self.look()
        log = self._machine.log
        log.truncate_from(index)
        del self._held[index - 1 :]
        append(log, 1, term=log.last_term + 1)

    def compare(self) -> None:
        machine = self._machine
        if machine.count == self._count:
            found = [machine.log.reader.crc_at(i) for i in range(1, machine.log.last_index + 1)]
            assert found[: len(self._held)] == self._held

"""Random lives of a log beside a list that does the same: appends, truncations, trims, power cuts, kills."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from tests.log.values import GROUP, append, everything, faulty, first_entry, open_store, run
from tests.log.witness import Witness
from tinymq.entry import Entry, iter_entries
from tinymq.errors import TinymqError
from tinymq.log import OpenedLog, Store
from tinymq.testing.faulty_files import Crash, FaultyFiles

STEPS = 60
LIVES = 5


class Life:
    """One seed: several machine starts on one disk."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.files: FaultyFiles = faulty(seed)
        self.witness = Witness()
        self.witness.begin(first_entry())
        self.committed = 1
        self.term = 1
        self.vote: tuple[int, int | None] = (0, None)
        self.log: OpenedLog
        self.store: Store

    async def start(self) -> None:
        self.store = await open_store(self.files, seed=self.rng.randrange(1 << 30))
        opened = await self.store.open_log(GROUP, first_entry())
        found = await self.witness.check(opened)
        self.witness.model = found
        self.witness.acked |= {e.index: e.header.header_crc for e in found}
        self.witness.opened(opened.log)
        self.log = opened
        assert opened.log.recovered_commit <= self.committed
        ballot = self.store.ballots.get(GROUP)
        assert ballot[0] >= self.vote[0]
        self.term = max(self.term, *self.store.ballots.get(GROUP)[:1], opened.log.last_term)

    async def live(self) -> None:
        for _ in range(STEPS):
            await self.rng.choice(
                (self.append, self.append, self.append, self.drain, self.truncate, self.commit, self.elect,
                 self.remove, self.look)
            )()  # fmt: skip

    async def append(self) -> None:
        count = self.rng.randint(1, 6)
        self.witness.appended(append(self.log.log, count, size=self.rng.choice((0, 1, 100, 500, 3000)), term=self.term))

    async def drain(self) -> None:
        await self.store.writer.drain()
        log = self.log.log
        assert log.durable_index == log.last_index or log.failed is not None

    async def truncate(self) -> None:
        log = self.log.log
        if log.last_index > self.committed:
            index = self.rng.randint(self.committed + 1, log.last_index)
            if index > log.first_index:
                self.term += 1
                self.witness.truncated(index)
                log.truncate_from(index)

    async def commit(self) -> None:
        log = self.log.log
        if log.durable_index > self.committed:
            self.committed = self.rng.randint(self.committed, log.durable_index)
        log.note_commit(self.committed)
        log.note_applied(self.committed)
        for index in range(log.first_index, self.committed + 1):
            if log.ends_segment(index):
                log.put_state(index, b"state at %d" % index)

    async def remove(self) -> None:
        log = self.log.log
        log.remove_before(self.rng.randint(1, self.committed))
        self.witness.removed(log)
        self.witness.model = [e for e in self.witness.model if e.index >= log.first_index]

    async def elect(self) -> None:
        if self.rng.random() < 0.3:
            self.term += 1
            vote = (max(self.term, self.store.ballots.get(GROUP)[0] + 1), self.rng.choice((None, 1, 2)))
            self.store.ballots.set(GROUP, *vote)
            await self.store.writer.drain()
            if self.store.ballots.durable(GROUP):
                self.vote = vote

    async def look(self) -> None:
        log = self.log.log
        assert await everything(log) == self.witness.model
        if log.next_offset > log.log_start_offset:
            offset = self.rng.randint(log.log_start_offset, log.next_offset - 1)
            end = self.rng.randint(offset + 1, log.next_offset)
            frames = list(iter_entries(await log.read_from_offset(offset, end, self.rng.randint(1, 3000))))
            assert frames == self.between(offset, end)[: len(frames)]
            assert frames

    def between(self, offset: int, end: int) -> list[Entry]:
        return [e for e in self.witness.model if e.header.next_offset > offset and e.header.base_offset < end]


@pytest.mark.parametrize("seed", range(40))
def test_a_life(seed: int) -> None:
    life = Life(seed)
    rng = life.rng

    async def one() -> None:
        await life.start()
        fault = rng.choice(("none", "crash", "crash", "sync", "full"))
        if fault == "crash":
            life.files.crash_after(rng.randint(1, 150), bytes_written=rng.randint(0, 2000))
        elif fault == "sync":
            life.files.fail_sync(rng.choice(("*.log", "marks", "ballots-b", "groups/*")))
        elif fault == "full":
            life.files.disk_full(rng.randint(0, 30_000))
        try:
            await life.live()
            if rng.random() < 0.5:
                await life.store.close()
        except TinymqError:
            assert fault in ("sync", "full")

    for _ in range(LIVES):
        with suppress(Crash):
            run(one())
        if rng.random() < 0.6:
            life.files.power_cut()
        else:
            life.files.kill()
    run(life.start())

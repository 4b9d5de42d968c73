"""Random runs of a log against a list: appends, transactions, truncations, trims, power cuts, kills."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.log.published import discard, gone_before, publish, stage, visible
from tests.log.values import GROUP, OTHER, append, everything, faulty, first_entry, open_store, run
from tests.log.witness import Witness
from tinymq.base.errors import OffsetOutOfRange, TinymqError
from tinymq.format.entry import Entry, Kind, iter_entries
from tinymq.log import OpenedLog, Store
from tinymq.simulation.faulty_files import Crash, FaultyFiles

T = TypeVar("T")

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
        hard_state = self.store.votes.get(GROUP)
        assert hard_state[0] >= self.vote[0]
        self.term = max(self.term, *self.store.votes.get(GROUP)[:1], opened.log.last_term)

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
            if log.segments.end_at(index):
                log.save_snapshot(index, b"state at %d" % index)

    async def remove(self) -> None:
        log = self.log.log
        log.remove_before(self.rng.randint(1, self.committed))
        self.witness.removed(log)
        self.witness.model = [e for e in self.witness.model if e.index >= log.first_index]

    async def elect(self) -> None:
        if self.rng.random() < 0.3:
            self.term += 1
            vote = (max(self.term, self.store.votes.get(GROUP)[0] + 1), self.rng.choice((None, 1, 2)))
            self.store.votes.set(GROUP, *vote)
            await self.store.writer.drain()
            if self.store.votes.durable(GROUP):
                self.vote = vote

    async def look(self) -> None:
        log = self.log.log
        assert await everything(log) == self.witness.model
        if log.next_offset > log.log_start_offset:
            offset = self.rng.randint(log.log_start_offset, log.next_offset - 1)
            end = self.rng.randint(offset + 1, log.next_offset)
            frames = list(iter_entries(await log.reader.read_from_offset(offset, end, self.rng.randint(1, 3000))))
            assert frames == self.between(offset, end)[: len(frames)]
            assert frames

    def between(self, offset: int, end: int) -> list[Entry]:
        return [e for e in self.witness.model if e.header.next_offset > offset and e.header.base_offset < end]


@pytest.mark.parametrize("seed", range(40))
def test_random_lives_of_a_log(seed: int) -> None:
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


# ---- the same steps, chosen and shrunk by Hypothesis ------------------------------------

KINDS = st.sampled_from([Kind.DATA, Kind.DATA, Kind.NOOP, Kind.COMMAND])
HOW = st.sampled_from(["kill", "power_cut", "kill, then power_cut"])


class LogLife(RuleBasedStateMachine):
    """One log on one disk, through clean and unclean ends of its process; a second log shares its files."""

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.files = faulty(seed)
        self.witness = Witness()
        self.witness.begin(first_entry())
        self.committed, self.term, self.other = 1, 1, 1
        self.begin_process()
        self.do(self.start())

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def now(self, call: Callable[[], T]) -> T:
        """Run a step on the loop that the logs belong to."""

        async def inside() -> T:
            return call()

        return self.do(inside())

    async def start(self) -> None:
        """Check the disk against the promises, and continue from its content."""
        self.store = await open_store(self.files)
        await self.open_logs()

    async def open_logs(self) -> None:
        opened = await self.store.open_log(GROUP, first_entry())
        found = await self.witness.check(opened)
        assert opened.log.recovered_commit <= self.committed
        self.witness.model = found
        self.witness.acked |= {e.index: e.header.header_crc for e in found}
        self.witness.opened(opened.log)
        self.log = opened.log
        self.term = max(self.term, opened.log.last_term)
        beside = await self.store.open_log(OTHER, first_entry())
        assert beside.damage is None
        assert beside.log.last_index >= self.other
        self.beside, self.other = beside.log, beside.log.last_index

    def end_of_process(self) -> None:
        """No part of it keeps running."""
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        self.begin_process()

    def begin_process(self) -> None:
        """The writer's task ends with the machine; its error is dropped."""
        self.loop = asyncio.new_event_loop()

        def unasked(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            if not isinstance(context.get("exception"), Crash):
                loop.default_exception_handler(context)

        self.loop.set_exception_handler(unasked)

    # ---- operations -----------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 5), size=st.sampled_from([0, 1, 100, 600, 3000]), kind=KINDS, records=st.integers(1, 3),
        time_us=st.integers(0, 20),
    )  # fmt: skip
    def append(self, count: int, size: int, kind: Kind, records: int, time_us: int) -> None:
        values: dict[str, Any] = {"kind": kind, "records": records, "time_us": time_us}
        self.witness.appended(self.now(lambda: append(self.log, count, size=size, term=self.term, **values)))

    @rule(count=st.integers(1, 4), size=st.sampled_from([1, 100, 600, 3000]), time_us=st.integers(0, 20))
    def stage(self, count: int, size: int, time_us: int) -> None:
        for number in range(count):
            entry = self.now(lambda: stage(self.log, b"x" * size, number=number, time_us=time_us, term=self.term))  # noqa: B023
            self.witness.appended([entry])

    def staged(self) -> list[Entry]:
        """The batches that are neither published nor discarded."""
        ended = max((e.index for e in self.witness.model if e.header.kind in (Kind.PUBLISH, Kind.DISCARD)), default=0)
        return [e for e in self.witness.model if e.header.kind == Kind.STAGED and e.index > ended]

    @rule(records=st.integers(1, 3), every=st.integers(1, 2))
    def publish(self, records: int, every: int) -> None:
        if staged := self.staged()[::every]:
            batches = [(entry, records) for entry in staged]
            self.witness.appended([self.now(lambda: publish(self.log, batches, term=self.term))])

    @rule()
    def discard(self) -> None:
        self.witness.appended([self.now(lambda: discard(self.log, term=self.term))])

    @rule()
    def append_beside(self) -> None:
        self.now(lambda: append(self.beside, 1))

    @rule()
    def drain(self) -> None:
        self.do(self.store.writer.drain())
        assert self.log.durable_index == self.log.last_index
        self.other = self.beside.last_index

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        index = max(self.committed + 1, self.log.first_index + 1, self.log.last_index - back)
        if index <= self.log.last_index:
            self.term += 1
            self.witness.truncated(index)
            self.now(lambda: self.log.truncate_from(index))

    @rule(share=st.integers(0, 3))
    def commit(self, share: int) -> None:
        if self.log.durable_index > self.committed:
            self.committed += (self.log.durable_index - self.committed) * share // 3
        self.now(self.note)

    def note(self) -> None:
        self.log.note_commit(self.committed)
        self.log.note_applied(self.committed)
        for index in range(self.log.first_index, self.committed + 1):
            if self.log.segments.end_at(index):
                self.log.save_snapshot(index, b"state at %d" % index)

    @rule(back=st.integers(0, 10))
    def remove(self, back: int) -> None:
        self.now(lambda: self.log.remove_before(max(1, self.committed - back)))
        self.witness.removed(self.log)
        self.witness.model = [e for e in self.witness.model if e.index >= self.log.first_index]

    @rule(back=st.integers(0, 3))
    def settle_and_remove(self, back: int) -> None:
        """Trim as retention does, after storing the applied states."""
        self.drain()
        self.commit(3)
        self.drain()
        self.remove(back)

    # ---- restarts ----------------------------------------------------------------------------------

    @rule()
    def close_and_open(self) -> None:
        self.do(self.store.close())
        self.other = self.beside.last_index
        self.end_of_process()
        self.do(self.start())

    @rule()
    def close_the_log_alone(self) -> None:
        async def both() -> None:
            await self.store.close_log(GROUP)
            await self.store.close_log(OTHER)
            await self.open_logs()

        self.do(both())

    @rule(
        how=HOW, after=st.integers(0, 30), written=st.sampled_from([0, 1, 63, 64, 500, 5000]), count=st.integers(0, 12)
    )
    def crash(self, how: str, after: int, written: int, count: int) -> None:
        """Crash after so many disk operations, or at once if there are fewer."""
        self.files.crash_after(after, bytes_written=written)
        with suppress(Crash):
            self.witness.appended(self.now(lambda: append(self.log, count, size=200, term=self.term)))
            self.append_beside()
            self.do(self.store.writer.drain())
            self.remove(3)
            self.do(self.store.writer.drain())
        self.end_of_process()
        if how != "power_cut":
            self.files.kill()
        if how == "kill, then power_cut":
            self.do(self.start())  # what it found counted, so it is on the disk now
            self.end_of_process()
        if how != "kill":
            self.files.power_cut()
        self.do(self.start())

    # ---- reads ---------------------------------------------------------------------------------

    @rule(from_=st.integers(0, 30), length=st.integers(1, 30), bytes_max=st.sampled_from([1, 300, 5000]))
    def read_offsets(self, from_: int, length: int, bytes_max: int) -> None:
        log = self.log
        offset = log.log_start_offset + from_
        end = min(log.next_offset, offset + length)
        if offset >= end:
            return
        shown = visible(self.witness.model)
        wanted = [e for e in shown if e.header.next_offset > offset and e.header.base_offset < end]
        if not wanted or wanted[0].header.base_offset > offset:  # its batch is in a segment that is removed
            with pytest.raises(OffsetOutOfRange):
                self.do(log.reader.read_from_offset(offset, end, bytes_max))
            return
        frames = list(iter_entries(self.do(log.reader.read_from_offset(offset, end, bytes_max))))
        assert frames
        assert frames == wanted[: len(frames)]
        cached = log.reader.tail_from_offset(offset, end, bytes_max)
        if cached is not None:
            entries = list(iter_entries(cached))
            assert entries == wanted[: len(entries)]
            assert entries

    @rule(time_us=st.integers(-1, 22), upto=st.integers(0, 40))
    def look_for_times(self, time_us: int, upto: int) -> None:
        """Look up durable entries, as all callers do: only these are ever committed."""
        self.drain()
        end = min(self.log.next_offset, self.log.log_start_offset + upto)
        start = gone_before(self.witness.model)
        within = [
            e
            for e in visible(self.witness.model)
            if e.header.record_count and e.header.next_offset > start and e.header.base_offset < end
        ]
        found = self.do(self.log.time_index.entry_for_time(time_us, end, start))
        assert found == next((e for e in within if e.header.max_timestamp_us >= time_us), None)
        greatest = max((e.header.max_timestamp_us for e in within), default=None)
        found = self.do(self.log.time_index.entry_of_max_timestamp(end, start))
        assert found == next((e for e in within if e.header.max_timestamp_us == greatest), None)

    @rule()
    def read_all(self) -> None:
        assert self.do(everything(self.log)) == self.witness.model
        for entry in self.witness.model:
            assert self.log.term_at(entry.index) == entry.term

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        self.end_of_process()
        self.files.power_cut()
        self.do(self.start())
        self.read_all()
        self.end_of_process()
        self.loop.close()


TestLogLife = LogLife.TestCase
TestLogLife.settings = settings(
    max_examples=40, stateful_step_count=30, derandomize=True, database=None, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip

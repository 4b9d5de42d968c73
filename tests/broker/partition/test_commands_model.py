"""Channels, holds, transactions, retention and capacity of a partition beside a naive replay of its log: random lives.

The replay (naive.py) computes everything from all entries, committed or not, so it shares no state with the code under
test. Each decision of a leader before a batch is compared with the state of the whole log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.broker import values
from tests.broker.naive import Naive, Result
from tests.broker.partition.test_partition import Bench
from tests.fakes.batches import checked, payload
from tinymq.base.errors import BatchTooLarge, Closed, NotLeader, OutcomeUnknown, QuotaExceeded, TinymqError
from tinymq.base.topic_config import OnFull, Retention, TopicConfig
from tinymq.broker.partition.partition import Acks, Partition
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.state.staged import StagedBatch, TransactionId
from tinymq.broker.state.state import PartitionState
from tinymq.format.entry import Entry, Kind
from tinymq.proto import partition_pb2 as pb

PRODUCERS_MAX = 3
SIZE = len(payload(1))

names = st.sampled_from(["a", "a", "b"])
near = st.integers(-3, 3)
epochs = st.sampled_from([0, 0, 0, -1, 1])  # against the newest
numbers = st.integers(1, 6)
config = st.builds(
    TopicConfig,
    retention_ms=st.sampled_from([None, 1000, 2000]),
    retention_bytes=st.sampled_from([None, None, 1, 3 * SIZE, 5 * SIZE]),
    max_records=st.sampled_from([None, None, 3, 10]),
    max_bytes=st.sampled_from([None, None, SIZE, 4 * SIZE, 6 * SIZE]),
    on_full=st.sampled_from([OnFull.DROP_OLDEST, OnFull.DROP_OLDEST, OnFull.REJECT]),
)


class Call:
    """Commands that were accepted."""

    def __init__(self, commands: list[pb.Command]) -> None:
        self.commands = commands
        self.answers: list[list[CommandOutcome] | TinymqError] = []


class CommandsLife(RuleBasedStateMachine):
    """One replica that leads, loses its leadership and restarts, while batches and commands of all kinds arrive."""

    @initialize(topic=config)
    def begin(self, topic: TopicConfig) -> None:
        self.loop = asyncio.new_event_loop()
        self.bench = Bench(PRODUCERS_MAX)
        self.leading = True
        self.calls: list[Call] = []
        self.replays: dict[tuple[int, int], Naive] = {}
        self.said: list[pb.Command] = []  # commands of the call under construction
        self.transactions = 0  # begun
        self.staging: list[tuple[asyncio.Task[Any], int]] = []  # calls on transactions: the entry that each waits for
        self.partition.configure(topic)

    @property
    def partition(self) -> Partition:
        return self.bench.partition

    @property
    def entries(self) -> list[Entry]:
        return self.bench.group.log.entries

    @property
    def applied(self) -> Naive:
        return self.replay(self.bench.group.applied)

    @property
    def whole(self) -> Naive:
        """The state once everything is applied."""
        return self.replay(len(self.entries))

    def replay(self, upto: int) -> Naive:
        """Computed once: do not change the result."""
        key = (upto, self.entries[upto - 1].header.header_crc)
        if key not in self.replays:
            self.replays[key] = Naive(self.entries[:upto])
        return self.replays[key]

    def in_loop(self, do: Any) -> None:
        async def run() -> None:
            do()
            for _ in range(5):
                await asyncio.sleep(0)

        self.loop.run_until_complete(run())

    # ---- steps --------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4), batches=st.integers(1, 6))
    def fill(self, count: int, batches: int) -> None:
        for _ in range(batches):
            self.produce(count, b"v", Acks.QUORUM)

    @rule(count=st.integers(1, 4), value=st.sampled_from([b"v", b"v" * 700]), acks=st.sampled_from(Acks))
    def produce(self, count: int, value: bytes, acks: Acks) -> None:
        data, before, topic = payload(count, value=value), self.whole, self.partition.config
        size, length = len(data), len(self.entries)
        try:
            self.partition.produce(*checked(data), acks, 1.0, lambda answers: None)
        except NotLeader:
            assert not self.leading
        except BatchTooLarge:
            assert not Naive().fits(topic, 0, count, size)
        except QuotaExceeded:
            acknowledged = topic.retention is Retention.ACKNOWLEDGED and before.read_by_all > self.applied.start
            assert len(self.entries) <= length + acknowledged, "only the move that makes room by reading is written"
            assert not before.fits(topic, self.applied.start, count, size), (
                "the batch fits, even with the uncommitted ones"
            )
            if topic.on_full is OnFull.DROP_OLDEST:
                self.check_held(before, before.needed(topic, count, size))
        else:
            self.check_room(before, count, size)

    def check_room(self, before: Naive, count: int, size: int) -> None:
        """A batch was appended, whose records have their room now."""
        after, topic = self.whole, self.partition.config
        assert after.fits(topic, after.start, 0, 0), "over the bound"
        assert after.start == before.needed(topic, count, size), "more was dropped than necessary"

    def check_held(self, before: Naive, needed: int | None) -> None:
        """A live or uncommitted hold lies below the records that had to go."""
        if needed is None:
            return
        now_us = self.bench.group.append_time_now_us()
        holds = [offset for offset, until_us in before.holds.values() if until_us > now_us]
        tail = self.entries[self.bench.group.applied :]
        for entry in tail:
            if entry.header.kind == Kind.COMMAND:
                said = pb.Commands.FromString(entry.payload).commands
                holds += [c.hold.offset for c in said if c.HasField("hold")]
        live = [offset for offset, until_us in self.applied.holds.values() if until_us > now_us]
        assert min([*holds, *live], default=needed) < needed

    # ---- transactions

    @rule(count=st.integers(1, 4), place=st.integers(0, 2))
    def stage(self, count: int, place: int) -> None:
        """A batch of one of the open transactions, or of the next one."""
        before, data, topic = self.whole, payload(count), self.partition.config
        names = list(before.staged)
        transaction = TransactionId(names[place].producer_id, 0, 1) if place < len(names) else self.next_transaction()
        number = len(before.staged.get(values.name_of(transaction), ()))
        batch = StagedBatch(transaction, 0, number)
        task = self.loop.create_task(self.partition.transactions.stage(batch, 0, *checked(data)))
        self.in_loop(lambda: None)
        size = len(data)
        if not task.done():
            self.check_room(before, count, size)
            self.staging.append((task, len(self.entries)))
            return
        refused = task.exception()
        if isinstance(refused, BatchTooLarge):
            assert not Naive().fits(topic, 0, count, size)
        elif isinstance(refused, QuotaExceeded):
            assert not before.fits(topic, self.applied.start, count, size)
            if topic.on_full is OnFull.DROP_OLDEST:
                self.check_held(before, before.needed(topic, count, size))
        else:
            assert isinstance(refused, NotLeader)
            assert not self.leading

    def next_transaction(self) -> TransactionId:
        self.transactions += 1
        return TransactionId(self.transactions, 0, 1)

    @rule(place=st.integers(0, 2), publish=st.booleans())
    def end(self, place: int, publish: bool) -> None:
        before = self.whole
        names = list(before.staged)
        if place >= len(names):
            return
        transaction = TransactionId(names[place].producer_id, 0, 1)
        task = self.loop.create_task(self.partition.transactions.end(transaction, publish=publish))
        self.in_loop(lambda: None)
        if not self.leading:
            assert isinstance(task.exception(), NotLeader)
            return
        assert not task.done(), "nothing refuses a decision"
        assert self.entries[-1].header.record_count == publish * sum(each.count for each in before.staged[names[place]])
        self.staging.append((task, len(self.entries)))

    def check_staging(self) -> None:
        """A call is answered when its entry is applied, and not before."""
        for task, index in self.staging[:]:
            assert task.done() == (index <= self.bench.group.applied)
            if task.done():
                task.result()
                self.staging.remove((task, index))

    # ---- commands with plausible arguments; alone or with others in one call

    together = st.sampled_from([False, False, True])

    def say(self, command: pb.Command, together: bool) -> None:
        self.said.append(command)
        if not together:
            commands, self.said = self.said, []
            self.command(commands)

    @rule(name=names, epoch=epochs, near=near, together=together)
    def open(self, name: str, epoch: int, near: int, together: bool) -> None:
        known = self.whole.channels.get(name)
        newest = 0 if known is None else known.epoch
        self.say(values.opens(name, max(0, newest + epoch), max(0, self.whole.start + near)), together)

    @rule(name=names, epoch=epochs, near=near, stale=st.sampled_from([0, 0, 0, 1]), together=together)
    def move_on(self, name: str, epoch: int, near: int, stale: int, together: bool) -> None:
        known = self.whole.channels.get(name)
        offset, newest, generation = (0, 0, 1) if known is None else (known.position, known.epoch, known.generation)
        offset = max(0, offset + near)
        self.say(values.commits(offset, name, max(0, newest + epoch), max(0, generation - stale)), together)

    @rule(name=names, epoch=epochs, near=near, end=st.booleans(), number=numbers, together=together)
    def seek(self, name: str, epoch: int, near: int, end: bool, number: int, together: bool) -> None:
        known = self.whole.channels.get(name)
        newest = 0 if known is None else known.epoch
        offset = max(0, (self.whole.end if end else self.whole.start) + near)
        self.say(values.seeks(offset, number, name, max(0, newest + epoch)), together)

    @rule(name=names, number=st.one_of(numbers, st.integers(7, 10_000)), together=together)
    def take(self, name: str, number: int, together: bool) -> None:
        self.say(values.consumes(number, name), together)

    @rule(name=names, together=together)
    def delete(self, name: str, together: bool) -> None:
        self.say(values.deletes(name), together)

    @rule(near=st.integers(-1, 5), together=together)
    def trim(self, near: int, together: bool) -> None:
        self.say(values.moves(max(0, self.whole.start + near)), together)

    @rule(near=st.integers(-1, 5), number=numbers, lease_ms=st.sampled_from([1, 500, 3000]), together=together)
    def hold(self, near: int, number: int, lease_ms: int, together: bool) -> None:
        self.say(values.holds(max(0, self.whole.start + near), number, lease_ms), together)

    @rule(number=numbers, together=together)
    def release(self, number: int, together: bool) -> None:
        self.say(values.releases(number), together)

    def command(self, commands: list[pb.Command]) -> None:
        call, length, before = Call(commands), len(self.entries), Naive(self.entries[: self.bench.group.applied])

        def do() -> None:
            try:
                self.partition.command(commands, 1.0, call.answers.append)
            except NotLeader:
                assert not self.leading
            else:
                self.calls.append(call)

        self.in_loop(do)
        if call.answers:
            assert len(self.entries) == length, "written, but answered before the commit"
            assert isinstance(call.answers[0], list)
            assert [Result.of(o) for o in call.answers[0]] == [before.do(c) for c in commands]
            assert self.same(before, self.applied), "the command would have changed something"
            self.calls.remove(call)

    @staticmethod
    def same(one: Naive, two: Naive) -> bool:
        return (one.start, one.channels, one.holds) == (two.start, two.channels, two.holds)

    @rule(config=config)
    def configure(self, config: TopicConfig) -> None:
        self.partition.configure(config)

    @rule(later_us=st.sampled_from([1000, 600_000, 1_500_000]))
    def time_passes(self, later_us: int) -> None:
        self.bench.group.later_us += later_us

    @rule()
    def retain(self) -> None:
        before, length, topic = self.applied, len(self.entries), self.partition.config
        now_us = self.bench.group.append_time_now_us() if self.leading else 0
        self.partition.retain()
        assert self.bench.group.log.log_start_offset <= self.partition.log_start
        for entry in self.entries[length:]:
            (said,) = pb.Commands.FromString(entry.payload).commands
            if said.HasField("remove_acknowledged"):
                assert topic.retention is Retention.ACKNOWLEDGED
                assert before.start < said.remove_acknowledged.upto <= before.read_by_all
            elif said.move_start.reason == pb.MoveStart.RETENTION:
                assert topic.retention is Retention.TIME
                assert said.move_start.offset == before.due(topic, now_us) > before.start
            else:
                assert topic.on_full is OnFull.DROP_OLDEST
                assert self.whole.fits(topic, self.whole.start, 0, 0)
        if self.leading and len(self.entries) == length == self.bench.group.applied:
            if topic.retention is Retention.ACKNOWLEDGED:
                held = before.held(now_us)
                assert before.start >= min(before.read_by_all, before.end if held is None else held)
                return
            assert before.due(topic, now_us) == before.start, "expired records stay"

    @rule(count=st.integers(1, 4))
    def commit(self, count: int) -> None:
        count = min(count, len(self.entries) - self.bench.group.applied)
        self.in_loop(lambda: self.bench.group.commit(count))
        self.answers()
        self.check_staging()

    def answers(self) -> None:
        """Return the calls in the applied entries, in order, as the replay sees them."""
        answers = [t for answers in self.applied.answers.values() for t in answers]
        for call in [c for c in self.calls if c.answers]:
            self.calls.remove(call)
            assert isinstance(call.answers[0], list)
            outcomes = [Result.of(outcome) for outcome in call.answers[0]]
            assert len(call.answers) == 1
            assert any(answers[at : at + len(outcomes)] == outcomes for at in range(len(answers)))

    @precondition(lambda self: self.leading)
    @rule(keep=st.booleans())
    def lose(self, keep: bool) -> None:
        self.in_loop(lambda: self.bench.group.lose_leadership(keep_tail=keep))
        self.leading = False
        assert all(isinstance(task.exception(), OutcomeUnknown) for task, _ in self.staging)
        self.staging.clear()
        for call in self.calls:
            assert [type(answer) for answer in call.answers] in ([OutcomeUnknown], [NotLeader])
        self.calls.clear()

    @precondition(lambda self: not self.leading)
    @rule()
    def win(self) -> None:
        self.in_loop(self.bench.group.win)
        self.leading = True

    @precondition(lambda self: not self.leading)
    @rule()
    def start_again(self) -> None:
        """Restart from the last dump."""
        bench, before = self.bench, self.partition
        bench.partition = bench.make_partition(PRODUCERS_MAX)
        bench.partition.load(before.dump())
        bench.partition.attach(bench.group)
        bench.partition.configure(before.config)
        bench.group.machine = bench.partition

    # ---- invariants ------------------------------------------------------------------------------------------

    @invariant()
    def check_it_is_as_the_replay(self) -> None:
        if not hasattr(self, "bench"):
            return
        state, naive = self.partition.state, self.applied
        assert (state.log_start, state.high_watermark) == (naive.start, naive.end)
        assert (state.kept_records, state.kept_bytes) == (naive.records, naive.bytes)
        assert (state.staged.waiting, state.lowest_kept_index) == (naive.waiting, naive.kept_from)
        cursors = {name: (c.position, c.epoch, c.generation) for name, c in state.cursors.items()}
        assert cursors == {name: (c.position, c.epoch, c.generation) for name, c in naive.channels.items()}
        lowest = state.holds.lowest(naive.now_us)
        assert (None if lowest is None else lowest.offset) == naive.held(naive.now_us)

    def teardown(self) -> None:
        """Every replica of this log has the same bytes, from whichever snapshot it started."""
        if not hasattr(self, "bench"):
            return
        replica = PartitionState(PRODUCERS_MAX)
        for entry in self.entries[: self.bench.group.applied]:
            replica.apply(entry)
            copy = PartitionState(PRODUCERS_MAX)
            copy.load(replica.dump())
            assert copy.dump() == replica.dump()
            replica = copy
        assert replica.dump() == self.partition.dump()
        self.in_loop(lambda: self.partition.close(Closed("over")))
        self.loop.close()


TestCommandsLife = CommandsLife.TestCase
TestCommandsLife.settings = settings(
    max_examples=20, stateful_step_count=30, derandomize=True, database=None, deadline=None
)


def some_config(rng: random.Random) -> TopicConfig:
    on_full = rng.choice([OnFull.DROP_OLDEST, OnFull.DROP_OLDEST, OnFull.REJECT])
    return TopicConfig(
        retention_ms=rng.choice([None, 1000, 2000]),
        retention_bytes=rng.choice([None, None, 3 * SIZE, 5 * SIZE]),
        max_records=rng.choice([None, 3, 10]),
        max_bytes=rng.choice([None, None, 4 * SIZE, 6 * SIZE]),
        on_full=on_full,
        retention=rng.choice(list(Retention)) if on_full is OnFull.REJECT else Retention.TIME,
    )


@pytest.mark.parametrize("seed", range(25))
def test_many_commands_of_all_kinds(seed: int) -> None:
    """The same steps with weights. Cases that Hypothesis rarely draws, such as a full partition with an uncommitted
    hold, occur in each run.
    """
    rng = random.Random(seed)
    life = CommandsLife()
    life.begin(topic=some_config(rng))

    def name() -> str:
        return rng.choice("aab")

    def epoch() -> int:
        return rng.choice([0, 0, 0, 0, -1, 1])

    def near() -> int:
        return rng.randint(-2, 3)

    def number() -> int:
        return rng.choice([rng.randint(1, 6), rng.randint(7, 10_000)])

    def together() -> bool:
        return rng.random() < 0.3

    steps: list[tuple[int, Callable[[], object]]] = [
        (6, lambda: life.fill(rng.randint(1, 3), rng.randint(1, 4))),
        (2, lambda: life.produce(rng.randint(1, 3), rng.choice([b"v", b"v" * 700]), Acks.LEADER)),
        (9, lambda: life.commit(rng.randint(1, 6))),
        (4, lambda: life.stage(rng.randint(1, 3), rng.randint(0, 2))),
        (3, lambda: life.end(rng.randint(0, 2), rng.random() < 0.7)),
        (3, lambda: life.open(name(), epoch(), near(), together())),
        (6, lambda: life.move_on(name(), epoch(), near(), rng.choice([0, 0, 0, 1]), together())),
        (3, lambda: life.seek(name(), epoch(), near(), rng.random() < 0.5, number(), together())),
        (6, lambda: life.take(name(), number(), together())),
        (1, lambda: life.delete(name(), together())),
        (1, lambda: life.trim(near(), together())),
        (4, lambda: life.hold(near(), rng.randint(1, 3), rng.choice([1, 500, 3000]), together())),
        (1, lambda: life.release(rng.randint(1, 3), together())),
        (1, lambda: life.configure(some_config(rng))),
        (2, lambda: life.time_passes(rng.choice([1000, 600_000, 1_500_000]))),
        (4, life.retain),
        (1, lambda: life.lose(rng.random() < 0.5) if life.leading else life.win()),
        (2, lambda: None if life.leading else life.win()),
        (1, lambda: None if life.leading else life.start_again()),
    ]
    for _ in range(100):
        (step,) = rng.choices([do for _, do in steps], [weight for weight, _ in steps])
        step()
        life.check_it_is_as_the_replay()
    life.teardown()

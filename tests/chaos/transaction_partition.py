"""A partition of the random lives of transactions: a log, and the leader's part that ships."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tinymq.base.errors import NotLeader, OutcomeUnknown
from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import StagedBatch, StagedEntry, StagedTransactions, TransactionId
from tinymq.broker.transactions.led_transactions import LedTransactions, SentBatch
from tinymq.broker.transactions.staging import Staging

if TYPE_CHECKING:
    from tests.chaos.transaction_lives import TransactionWorld


class Item(NamedTuple):
    """An entry of the partition's log."""

    transaction: TransactionId
    batch: StagedBatch | None  # None: the end
    publish: bool = False


class PartitionModel:
    """The committed log, its readers, and the present leader's tail."""

    def __init__(self, world: TransactionWorld, place: PartitionId) -> None:
        self.world, self.place = world, place
        self.log: list[Item] = []
        self.tail: list[Item] = []
        self.staged = StagedTransactions()
        self.visible: list[StagedBatch] = []
        self.term = 0
        self.led: LedTransactions | None = None

    def elect(self) -> None:
        """Let another broker lead. It keeps some of the entries that were not committed yet."""
        self.stop()
        kept = self.world.rng.randint(0, len(self.tail))
        self.term += 1
        tail, self.tail = self.tail[:kept], []
        for item in tail:
            self._apply(item)
        world, place = self.world, self.place
        log = TermLog(self, self.term)
        self.led = LedTransactions(
            str(place.partition), Staging(self.staged), log,
            lambda transaction, coordinator: world.ask_coordinator(transaction, place), world.clock,
        )  # fmt: skip
        self.led.start()

    def stop(self) -> None:
        if self.led is not None:
            self.led.close(NotLeader("another leader took over"))

    # ---- what clients and the coordinator ask

    async def stage(self, batch: StagedBatch) -> None:
        assert self.led is not None
        await self.led.stage(SentBatch(batch, 0, b"", 1, 0, 0))

    async def held(self, transaction: TransactionId, sets: Collection[int] | None = None) -> int:
        assert self.led is not None
        return await self.led.held(transaction, sets)

    async def end(self, transaction: TransactionId, *, publish: bool, sets: Collection[int] | None = None) -> None:
        assert self.led is not None
        await self.led.end(transaction, publish=publish, sets=sets)

    # ---- the log

    def commit(self, index: int, term: int) -> None:
        while term == self.term and len(self.log) < index:
            self._apply(self.tail.pop(0))
            assert self.led is not None
            self.led.staging.applied(len(self.log))

    def _apply(self, item: Item) -> None:
        self.log.append(item)
        if item.batch is not None:
            self.staged.stage(item.batch, StagedEntry(len(self.log), 1, 100, 0, 0), 0)
            return
        ended = self.staged.end(item.transaction)
        if item.publish and ended:
            batches = {index: each.batch for index, each in enumerate(self.log, 1)}
            self.visible += [batch for entry in ended.entries if (batch := batches[entry.entry_index]) is not None]
            self.world.published(self, item.transaction)


class TermLog:
    """The partition's log, as the leader of one term has it (StagingLog)."""

    def __init__(self, partition: PartitionModel, term: int) -> None:
        self._partition, self._term = partition, term

    def append(self, sent: SentBatch) -> int:
        return self._append(Item(sent.batch.transaction, sent.batch))

    def append_end(self, transaction: TransactionId, entries: Sequence[StagedEntry], *, publish: bool) -> int:
        return self._append(Item(transaction, None, publish))

    def _append(self, item: Item) -> int:
        partition, world = self._partition, self._partition.world
        if self._term != partition.term:
            raise NotLeader("another leader took over")
        partition.tail.append(item)
        index = len(partition.log) + len(partition.tail)
        world.later(world.delay(), lambda: partition.commit(index, self._term))
        return index

    async def applied(self, index: int) -> None:
        while self._term == self._partition.term and index > len(self._partition.log):
            await self._partition.world.clock.sleep(0.002)
        if self._term != self._partition.term:
            raise OutcomeUnknown("another leader took over")

    async def confirm(self) -> None:
        await self._partition.world.clock.sleep(0.002)
        if self._term != self._partition.term:
            raise NotLeader("another leader took over")

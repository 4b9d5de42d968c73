"""The coordinator of transactions, on the broker that leads the partition of `__coordinator` with the transactional id.

Every decision is a replicated command, and every answer is applied state. Before the coordinator answers a partition, a
majority confirms that this broker leads. In memory it keeps only which ends are under way, so a failover loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import structlog

from tinymq.base.clock import Clock
from tinymq.base.errors import (
    InvalidRequest,
    NotFound,
    NotLeader,
    NotReady,
    TinymqError,
    TransactionAborted,
)
from tinymq.base.meter import Meter
from tinymq.base.types import PartitionId, check_transactional_id, transaction_name
from tinymq.broker.coordinator.changes import Changes
from tinymq.broker.coordinator.coordinator import coordinator_of
from tinymq.broker.coordinator.held_counts import HeldCounts
from tinymq.broker.coordinator.led_replicas import LedReplicas, Replicas, confirm
from tinymq.broker.coordinator.sink_coordinator import SinkCoordinator
from tinymq.broker.coordinator.transaction_ends import IdDecisions, PartitionLeaders, TransactionEnds
from tinymq.broker.coordinator.transaction_errors import error_of, resolution_error
from tinymq.broker.coordinator.transaction_topics import TransactionTopics
from tinymq.broker.coordinator.unfinished import Unfinished, UnfinishedWatch
from tinymq.broker.groups.groups import COORDINATOR_TOPIC
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.serve.producer_ids import BLOCK, ProducerIds
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions import rules
from tinymq.broker.transactions.commands import (
    TIMEOUT_US_MAX,
    Abort,
    Add,
    Begin,
    Commit,
    Expire,
    IdCommand,
    NoteLoss,
    Register,
    Resolve,
    TimeOut,
)
from tinymq.broker.transactions.half.half_commands import EndHalf
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.broker.transactions.transactional_id import Phase, Transaction, TransactionalId
from tinymq.format.feature_level import TRANSACTIONS_LEVEL
from tinymq.registry.service import RegistryService

TIMEOUT_US_MIN = 1_000_000  # of a transaction
EXPIRE_EVERY_S = 60.0

logger = structlog.get_logger("tinymq.broker")


class StandingQuestion(NamedTuple):
    """A partition asks about a transaction."""

    transaction: TransactionId
    place: PartitionId
    end: bool = False  # roll it back if it is open: a new reader of a group waits for its end


class RegisteredOwner(NamedTuple):
    """The result of a registration. Every call of the owner names both."""

    producer_id: int
    epoch: int


class TransactionCoordinator:
    """One per broker, for the partitions of `__coordinator` that it leads."""

    def __init__(
        self, registry: RegistryService, replicas: Replicas, producer_ids: ProducerIds, leaders: PartitionLeaders,
        clock: Clock, meter: Meter,
    ) -> None:  # fmt: skip
        self._registry = registry
        self._topics = TransactionTopics(registry)
        self._replicas = replicas
        self._producer_ids = producer_ids
        self._clock = clock
        self._meter = meter
        self._led = LedReplicas(replicas, self._advance, clock)
        self._changes = Changes(clock)
        self._ends = TransactionEnds(IdDecisions(), leaders, self._topics, self._changes.wake)
        self._held = HeldCounts(leaders, self._topics, clock)
        self.sinks = SinkCoordinator(self.find, self._topics, producer_ids, leaders, clock)
        self._expired_s: dict[str, float] = {}  # monotonic time of the newest search for expired ids, by replica
        self._watches: dict[str, UnfinishedWatch] = {}  # by replica

    def start(self) -> asyncio.Task[None]:
        return self._led.start()

    async def stop(self) -> None:
        await self._led.stop()
        await self._ends.stop()
        await self.sinks.stop()

    def on_decided(self, replica: CoordinatorReplica, name: str) -> None:
        """A command on a transactional id is applied: tell the partitions of a decision, and wake waiting calls."""
        if replica.leading:
            self._ends.send(replica, name)
        self._changes.wake(name)

    def on_role(self, replica: CoordinatorReplica) -> None:
        """Note that a replica began to lead, or stopped."""
        self._changes.wake_all()
        self.sinks.on_role()

    # ---- what owners ask ----------------------------------------------------------------------------------------

    async def register(self, name: str) -> RegisteredOwner:
        """Give a transactional id to the caller. This fences the previous owner, and aborts its open transaction.

        Raises InvalidName, NotLeader, NotReady, QuotaExceeded (too many ids, or unfinished transactions), and
        OutcomeUnknown: register again.
        """
        replica = self.find(check_transactional_id(name))
        fresh_producer_id = await self._producer_ids.take()
        for _ in range(BLOCK):  # after a loss, skip the ids of a block taken before it: they may have been used
            if fresh_producer_id >= replica.transactional_ids.loss.fresh_producer_id:
                break
            fresh_producer_id = await self._producer_ids.take()
        state = await self._decide(replica, name, Register(fresh_producer_id), ends_open="replaced")
        logger.info("transactional_id_registered", id=name, producer_id=state.producer_id, epoch=state.epoch)
        return RegisteredOwner(state.producer_id, state.epoch)

    async def begin(self, name: str, owner: RegisteredOwner, timeout_us: int) -> TransactionId:
        """Begin a transaction. An open transaction of the same owner is aborted.

        `timeout_us` after its beginning it is aborted if it is not decided by then. Raises InvalidRequest, Fenced,
        NotLeader, NotReady, QuotaExceeded (decided transactions wait for their partitions), and OutcomeUnknown: begin
        again.
        """
        if not TIMEOUT_US_MIN <= timeout_us <= TIMEOUT_US_MAX:
            bounds = f"{TIMEOUT_US_MIN // 1_000_000} s to {TIMEOUT_US_MAX // 60_000_000} min"
            raise InvalidRequest(f"a time-out of {timeout_us / 1e6:g} s", hint=f"transactions may last {bounds}")
        state = await self._decide(self.find(name), name, Begin(*owner, timeout_us), ends_open="replaced")
        return TransactionId(*owner, state.number)

    async def add(self, name: str, transaction: TransactionId, places: Collection[PartitionId]) -> None:
        """Add partitions to a transaction, before a batch is staged in them. It may be called again.

        Raises UnknownPartition; InvalidRequest for a topic that acknowledges records before they are synced, and for
        too many partitions; Fenced, TransactionAborted, NotLeader, NotReady, QuotaExceeded, OutcomeUnknown.
        """
        await self._topics.check(places)
        replica = self.find(name)
        ids = replica.transactional_ids
        if name in ids.sinks.states and ids.owner_of(transaction.producer_id) is None:
            await self.sinks.add(name, transaction, places)
        else:
            await self._decide(replica, name, Add(transaction, frozenset(places)))

    async def commit(
        self, name: str, transaction: TransactionId, expected: Mapping[PartitionId, int], decide_s: float
    ) -> None:
        """Commit a transaction. Returns when the decision is replicated; from then on it is irrevocable.

        `expected`: how many batches the owner has staged, by partition. A call for a transaction that is committed
        already returns, too. Raises TransactionAborted, also if a partition has lost a batch; DeadlineExceeded if the
        leaders of its partitions have not answered within `decide_s` seconds, and the transaction is still open;
        Fenced, NotLeader, NotReady; OutcomeUnknown, after which the call may be repeated.
        """
        replica = self.find(name)

        def places_now() -> frozenset[PartitionId] | None:
            found = _open(replica, name, transaction)
            return None if found is None else found.unconfirmed

        held = await self._held.ask(replica, transaction, places_now, decide_s)
        result = await replica.decide(name, Commit(transaction, expected, held))
        if isinstance(result, TransactionalId):
            result = rules.outcome(result, transaction)
            self._meter.transaction_decided("committed" if result is Refusal.COMMITTED else "incomplete")
            if result is not Refusal.COMMITTED:
                logger.warning("transaction_incomplete", id=name, number=transaction.number)
        if result is not Refusal.COMMITTED:
            assert result is not None, "a commit removes no transactional id"
            raise error_of(result, name)

    async def abort(self, name: str, transaction: TransactionId) -> None:
        """Roll a transaction back. It may be called again. Raises InvalidRequest if the transaction is committed;
        Fenced, NotLeader, NotReady, OutcomeUnknown."""
        try:
            await self._decide(self.find(name), name, Abort(transaction), ends_open="rolled_back")
        except TransactionAborted:
            return

    async def abort_open(self, name: str) -> None:
        """Roll back the open transaction of a transactional id, if it has one, whoever owns the id.

        Raises NotFound, NotLeader, NotReady, DeadlineExceeded, OutcomeUnknown.
        """
        replica = self.find(name)
        await confirm(replica)
        state = replica.transactional_ids.states.get(name)
        if state is None:
            raise NotFound(f"no transactional id {name!r}", hint="it was never registered, or it has expired")
        if state.open is not None:
            await self.abort(name, state.id_of(state.open))
            logger.info("transaction_aborted_by_operator", id=name, number=state.open.number)

    async def resolve(self, number: int, transaction: TransactionId, *, publish: bool) -> None:
        """Decide, as an operator, about a transaction that may be lost with a part of the log of the coordinator's
        partition `number`. Partitions with batches of it are told when they ask next, within seconds. It may be
        repeated. Raises InvalidRequest (not lost, or decided otherwise before), NotLeader, NotReady, OutcomeUnknown.
        """
        replica = self.at(number)
        await confirm(replica)
        self.check_loss_noted(replica)
        refusal = await replica.decide("", Resolve(transaction, publish))
        name = transaction_name(*transaction)
        if isinstance(refusal, Refusal):
            raise resolution_error(refusal, name)
        logger.warning("transaction_resolved_by_operator", transaction=name, coordinator=number, publish=publish)

    async def wait_over(self, name: str, transaction: TransactionId, timeout_s: float) -> bool:
        """Wait until all partitions have applied the decision on a transaction. False: the time is up, or this broker
        no longer leads."""
        until_s = self._clock.monotonic() + timeout_s
        try:
            while found := rules.find(self.find(name).transactional_ids.states[name], transaction):
                if self._ends.have_applied(transaction, found.unconfirmed):
                    return True  # the sync that notes the confirmations may still be on its way
                await self._changes.wait(name, until_s - self._clock.monotonic())
        except KeyError:
            return True  # the id has expired since: its transactions are over
        except TinymqError:
            return False
        return True

    # ---- what partitions ask ------------------------------------------------------------------------------------

    async def standing(self, number: int, questions: Sequence[StandingQuestion]) -> list[Standing]:
        """Answer partitions that ask about transactions of the coordinator's partition `number`. Open transactions that
        a question wants ended are rolled back first.

        Raises NotLeader, NotReady, DeadlineExceeded (no majority confirmed that this broker leads), OutcomeUnknown.
        """
        replica = self.at(number)
        await confirm(replica)
        self.check_loss_noted(replica)
        ids = replica.transactional_ids
        for transaction, place, end in questions:
            if end and ids.standing(transaction, place) is Standing.OPEN:
                half = ids.half_messages.halves.get(transaction)
                name = half.group if half is not None else ids.owner_of(transaction.producer_id)
                if name is None:  # of a Spark sink: it stages no offset and no ack, so no group waits for its end
                    continue
                if half is not None:
                    await replica.decide_half(name, EndHalf(transaction, commit=False))
                else:
                    await replica.decide(name, Abort(transaction))
                self._meter.transaction_decided("rolled_back")
                logger.info("transaction_ended_for_group", id=name, number=transaction.number)
        return [ids.standing(transaction, place) for transaction, place, _ in questions]

    # ---- what people ask ----------------------------------------------------------------------------------------

    def led(self) -> list[int]:
        """The numbers of the coordinator's partitions that this broker leads, in order."""
        return sorted(number for (_, number), replica in self._replicas().items() if replica.leading)

    def unfinished(self) -> Unfinished:
        """The transactions here that are not over, as of a moment ago."""
        leading = {replica.name for replica in self._replicas().values() if replica.leading}
        seen = (watch.seen for name, watch in self._watches.items() if name in leading)
        return reduce(Unfinished.beside, seen, Unfinished())

    async def states(self, number: int) -> Mapping[str, TransactionalId]:
        """The transactional ids in the coordinator's partition `number`, as of a moment during this call.

        Raises NotLeader, NotReady, DeadlineExceeded.
        """
        replica = self.at(number)
        await confirm(replica)
        return dict(replica.transactional_ids.states)

    # ---- the replicas of this broker ------------------------------------------------------------------------------

    def find(self, name: str) -> CoordinatorReplica:
        """This broker's replica of the partition that has the transactional id. Raises NotLeader unless it leads."""
        return self._replica(None, name)

    def at(self, number: int) -> CoordinatorReplica:
        """This broker's replica of the partition `number` of `__coordinator`. Raises NotLeader unless it leads."""
        return self._replica(number)

    def _replica(self, number: int | None, name: str = "") -> CoordinatorReplica:
        topic = self._registry.get_topic(COORDINATOR_TOPIC)
        if topic is None:
            raise NotLeader(f"the topic {COORDINATOR_TOPIC} is not made yet")
        number = coordinator_of(name, len(topic.queues)) if number is None else number
        replica = self._replicas().get((topic.topic_id, number))
        if replica is None:
            raise NotLeader(f"{COORDINATOR_TOPIC}/{number}: no replica is open here")
        replica.check_leading()
        self.check_loss_noted(replica)
        return replica

    def check_loss_noted(self, replica: CoordinatorReplica) -> None:
        """Raises NotReady until the state knows of an accepted loss, because it may lack decisions."""
        if replica.group.membership.recovery_epoch != replica.transactional_ids.loss.recovery_epoch:
            raise NotReady(f"{replica.name} has lost a part of its log, and is noting that")

    async def _decide(
        self, replica: CoordinatorReplica, name: str, command: IdCommand, *, ends_open: str = ""
    ) -> TransactionalId:
        """Replicate a command of an owner. Returns the state after it, or raises the error of its refusal.

        `ends_open` is how an open transaction that the command aborts is counted.
        """
        before = replica.transactional_ids.states.get(name)
        result = await replica.decide(name, command)
        if isinstance(result, Refusal):
            raise error_of(result, name)
        assert result is not None, "a command of an owner removes no transactional id"
        if ends_open and before is not None and result.outcome != before.outcome:
            self._meter.transaction_decided(ends_open)
        return result

    # ---- time -------------------------------------------------------------------------------------------------------

    async def _advance(self, replica: CoordinatorReplica) -> None:
        """Abort transactions whose time is up, send ends again, and forget ids that nobody uses."""
        if replica.group.feature_level < TRANSACTIONS_LEVEL:
            return
        try:
            await self._note_loss(replica)
            self.check_loss_noted(replica)
            now_us = replica.group.append_time_now_us()
            await self.sinks.advance(replica, now_us)
            for name in list(replica.transactional_ids.unfinished):
                state = replica.transactional_ids.states[name]
                if rules.time_out(state, now_us) is not state:
                    await replica.decide(name, TimeOut())
                    self._meter.transaction_decided("timed_out")
                    logger.info("transaction_timed_out", id=name, number=state.number)
                self._ends.send(replica, name)
            now_s = self._clock.monotonic()
            self._watch(replica, now_us, now_s)
            if now_s - self._expired_s.get(replica.name, 0.0) >= EXPIRE_EVERY_S:
                self._expired_s[replica.name] = now_s
                await self.sinks.expire(replica, now_us)
                for name, state in list(replica.transactional_ids.states.items()):
                    if rules.is_expired(state, now_us):
                        await replica.decide(name, Expire())
        except TinymqError as error:
            logger.info("transactions_wait", replica=replica.name, error=error.code, reason=str(error))

    def _watch(self, replica: CoordinatorReplica, now_us: int, now_s: float) -> None:
        ids = replica.transactional_ids
        watch = self._watches.setdefault(replica.name, UnfinishedWatch())
        sets = (each for name in ids.sinks.unfinished for each in ids.sinks.states[name].transactions.values())
        watch.look((ids.states[name] for name in ids.unfinished), sets, now_us, now_s)

    async def _note_loss(self, replica: CoordinatorReplica) -> None:
        """Note an accepted loss of a part of the log, before anything is decided or answered by what is left."""
        epoch = replica.group.membership.recovery_epoch
        if epoch != replica.transactional_ids.loss.recovery_epoch:
            fresh = await self._registry.take_producer_ids(1)  # above all that any broker has taken
            await replica.decide("", NoteLoss(epoch, fresh.start))
            logger.warning("coordinator_lost_decisions", replica=replica.name, recovery_epoch=epoch)


def _open(replica: CoordinatorReplica, name: str, transaction: TransactionId) -> Transaction | None:
    """The transaction, if it is open in the applied state."""
    state = replica.transactional_ids.states.get(name)
    found = None if state is None else rules.find(state, transaction)
    return found if found is not None and found.phase is Phase.OPEN else None

"""The coordinator of the applications of Spark's sink: a part of the coordinator of transactions.

Every decision is a replicated command, and every answer is applied state. The rules are in
tinymq/broker/transactions/sink_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import structlog

from tinymq.base.clock import Clock
from tinymq.base.errors import InvalidRequest, TinymqError
from tinymq.base.types import PartitionId, check_transactional_id
from tinymq.broker.coordinator.changes import Changes
from tinymq.broker.coordinator.held_counts import HeldCounts
from tinymq.broker.coordinator.transaction_ends import DecidedEnd, PartitionLeaders, TransactionEnds
from tinymq.broker.coordinator.transaction_errors import error_of
from tinymq.broker.coordinator.transaction_topics import TransactionTopics
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.serve.producer_ids import BLOCK, ProducerIds
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions import sink_rules as rules
from tinymq.broker.transactions.message_parts import Counts
from tinymq.broker.transactions.rules import Refusal
from tinymq.broker.transactions.sink_application import SetsTransaction, SinkApplication
from tinymq.broker.transactions.sink_commands import (
    RUN_LENGTH_MAX,
    SETS_MAX,
    TIMEOUT_US_MAX,
    AddToSets,
    CommitSets,
    ConfirmSets,
    DiscardSets,
    ExpireApplication,
    OpenSet,
    SinkCommand,
    TimeOutSets,
)
from tinymq.broker.transactions.transactional_id import Phase

TIMEOUT_US_MIN = 1_000_000  # of the sets of a run

logger = structlog.get_logger("tinymq.broker")


class SinkJob(NamedTuple):
    """The version that a task or a driver writes."""

    application: str
    version: int
    query: str  # "": a batch
    temporary: bool = False  # the name of the application is never used again


class OpenedSet(NamedTuple):
    """The set of a task."""

    transaction: TransactionId
    writer: int


class SinkDecisions:
    """The transactions of sets (Decisions)."""

    def ends(self, replica: CoordinatorReplica, name: str) -> Iterable[DecidedEnd]:
        state = replica.transactional_ids.sinks.states.get(name, rules.NEW)
        places: dict[int, list[PartitionId]] = {}
        for place, each in rules.ends(state):
            places.setdefault(each.producer_id, []).append(place)
        for producer_id, some in places.items():
            found = state.transactions[producer_id]
            publish = found.phase is Phase.COMMITTED
            yield DecidedEnd(found.id, some, publish, found.sets if publish else None)

    async def confirm(
        self, replica: CoordinatorReplica, name: str, transaction: TransactionId, places: frozenset[PartitionId]
    ) -> None:
        await replica.decide_sink(name, ConfirmSets(transaction.producer_id, places))


class SinkCoordinator:
    """One per broker, for the partitions of `__coordinator` that it leads."""

    def __init__(
        self,
        find: Callable[[str], CoordinatorReplica],
        topics: TransactionTopics,
        producer_ids: ProducerIds,
        leaders: PartitionLeaders,
        clock: Clock,
    ) -> None:
        """`find` returns the replica here that leads the partition with a name. It raises NotLeader, NotReady."""
        self._find = find
        self._producer_ids = producer_ids
        self._clock = clock
        self._changes = Changes(clock)
        self._ends = TransactionEnds(SinkDecisions(), leaders, topics, self._changes.wake)
        self._held = HeldCounts(leaders, topics, clock)

    async def stop(self) -> None:
        await self._ends.stop()

    def on_decided(self, replica: CoordinatorReplica, name: str) -> None:
        """A command on an application is applied: tell the partitions of a decision, and wake waiting calls."""
        if replica.leading:
            self._ends.send(replica, name)
        self._changes.wake(name)

    def on_role(self) -> None:
        """Note that a replica here began to lead, or stopped."""
        self._changes.wake_all()

    # ---- what tasks and drivers ask -----------------------------------------------------------------------------

    async def open_set(self, job: SinkJob, run: str, timeout_us: int) -> OpenedSet | None:
        """Begin a set, for one attempt at a task. None: the version is committed, and there is nothing to write.

        Another call begins another set. All sets of a `run` can be committed together. They are dropped `timeout_us`
        after the newest `open_set` or `add` of the run, unless they are committed. Raises InvalidName, InvalidRequest,
        VersionReused, NotLeader, NotReady, QuotaExceeded, OutcomeUnknown: open another one.
        """
        _check_job(job)
        if not TIMEOUT_US_MIN <= timeout_us <= TIMEOUT_US_MAX:
            raise InvalidRequest(f"a time-out of {timeout_us / 1e6:g} s", hint="sets are kept for 1 s to 7 days")
        if not 0 < len(run) <= RUN_LENGTH_MAX:
            raise InvalidRequest(f"run={run!r:.100}", hint=f"name it by 1 to {RUN_LENGTH_MAX} characters")
        replica = self._find(check_transactional_id(job.application))
        fresh = await self._fresh_producer_id(replica)
        command = OpenSet(job.version, run, job.query, fresh, timeout_us, job.temporary)
        result = await replica.decide_sink(job.application, command)
        if result is Refusal.COMMITTED:
            return None
        found = rules.open_of(_state(result, job.application), job.version, run)
        assert found is not None, "the set that was opened"
        return OpenedSet(found.id, found.opened - 1)

    async def add(self, name: str, transaction: TransactionId, places: Collection[PartitionId]) -> None:
        """Add partitions, before a batch is staged in them, and renew the time of the run. It may be called again.

        Raises TransactionAborted, InvalidRequest (too many partitions), NotLeader, NotReady, QuotaExceeded,
        OutcomeUnknown.
        """
        await self._decide(name, AddToSets(transaction.producer_id, frozenset(places)))

    async def commit(
        self, job: SinkJob, transaction: TransactionId | None, sets: Collection[int], expected: Counts, decide_s: float
    ) -> None:
        """Commit a version with these sets of one run. Returns when the decision is replicated; from then on it is
        irrevocable. If the version is committed already, the call changes nothing.

        `transaction`: None if no task had a row. `expected`: how many batches the sets have, by partition. Raises
        TransactionAborted, also if a partition has lost a batch; DeadlineExceeded if the leaders of partitions have not
        answered within `decide_s` seconds, and the sets are still open; VersionReused, InvalidName, InvalidRequest,
        NotLeader, NotReady, QuotaExceeded; OutcomeUnknown, after which the call may be repeated.
        """
        _check_job(job)
        numbers = tuple(sorted({*sets}))
        if (transaction is None) is bool(numbers) or len(numbers) > SETS_MAX:
            raise InvalidRequest(f"{len(numbers)} sets in a commit", hint=f"name the transaction, and 1 to {SETS_MAX}")
        name, replica, held = job.application, self._find(check_transactional_id(job.application)), {}
        if transaction is not None:
            producer_id = transaction.producer_id

            def places_now() -> frozenset[PartitionId] | None:
                found = _open(replica, name, producer_id)
                return None if found is None else found.unconfirmed

            held = dict(await self._held.ask(replica, transaction, places_now, decide_s, numbers))
        # The leaders' counts stay true while the command is on its way: only a decision ends staged batches.
        command = CommitSets(
            version=job.version,
            query=job.query,
            producer_id=transaction.producer_id if transaction is not None else 0,
            sets=numbers,
            expected=expected,
            held=held,
            temporary=job.temporary,
        )
        result = await replica.decide_sink(name, command)
        if result is Refusal.COMMITTED:
            return
        state = _state(result, name)
        if state.committed is None or state.committed.version != job.version:
            logger.warning("sink_version_incomplete", application=name, version=job.version)
            raise error_of(Refusal.ABORTED, name)
        logger.info("sink_version_committed", application=name, version=job.version, sets=len(numbers))

    async def discard(self, name: str, transaction: TransactionId) -> None:
        """Drop all sets of a run, unless they are committed: then this changes nothing. Raises NotLeader, NotReady,
        OutcomeUnknown."""
        replica = self._find(check_transactional_id(name))
        await replica.decide_sink(name, DiscardSets(transaction.producer_id))

    async def wait_over(self, name: str, version: int, timeout_s: float) -> bool:
        """Wait until all partitions show what was committed up to this version. False: the time is up, or this broker
        no longer leads."""
        until_s = self._clock.monotonic() + timeout_s
        try:
            while waiting := _unfinished(self._find(name), name, version):
                if all(self._ends.have_applied(each.id, each.unconfirmed) for each in waiting):
                    return True  # without the sync that notes it
                await self._changes.wait(name, until_s - self._clock.monotonic())
        except TinymqError:
            return False
        return True

    # ---- time -------------------------------------------------------------------------------------------------------

    async def advance(self, replica: CoordinatorReplica, now_us: int) -> None:
        """Drop the sets of runs whose time is up, and send ends again. Raises as `replica.decide_sink`."""
        sinks = replica.transactional_ids.sinks
        for name in list(sinks.unfinished):
            state = sinks.states[name]
            if rules.time_out(state, now_us) is not state:
                await replica.decide_sink(name, TimeOutSets())
                logger.info("sink_sets_timed_out", application=name)
            self._ends.send(replica, name)

    async def expire(self, replica: CoordinatorReplica, now_us: int) -> None:
        """Forget applications that nobody uses. Raises as `replica.decide_sink`."""
        for name, state in list(replica.transactional_ids.sinks.states.items()):
            if rules.is_expired(state, now_us):
                await replica.decide_sink(name, ExpireApplication())

    # ---- parts ------------------------------------------------------------------------------------------------------

    async def _fresh_producer_id(self, replica: CoordinatorReplica) -> int:
        fresh = await self._producer_ids.take()
        for _ in range(BLOCK):  # after a loss, skip the ids of a block taken before it: they may have been used
            if fresh >= replica.transactional_ids.loss.fresh_producer_id:
                break
            fresh = await self._producer_ids.take()
        return fresh

    async def _decide(self, name: str, command: SinkCommand) -> SinkApplication:
        return _state(await self._find(name).decide_sink(name, command), name)


def _check_job(job: SinkJob) -> None:
    if len(job.query) > RUN_LENGTH_MAX:
        raise InvalidRequest(f"query={job.query!r:.100}", hint=f"at most {RUN_LENGTH_MAX} characters")


def _state(result: SinkApplication | Refusal | None, name: str) -> SinkApplication:
    """The state after a command. Raises the error of a refusal."""
    if isinstance(result, Refusal):
        raise error_of(result, name)
    assert result is not None, "a command of a task or a driver leaves an application"
    return result


def _open(replica: CoordinatorReplica, name: str, producer_id: int) -> SetsTransaction | None:
    state = replica.transactional_ids.sinks.states.get(name, rules.NEW)
    found = state.transactions.get(producer_id)
    return found if found is not None and found.phase is Phase.OPEN else None


def _unfinished(replica: CoordinatorReplica, name: str, version: int) -> list[SetsTransaction]:
    state = replica.transactional_ids.sinks.states.get(name, rules.NEW)
    committed = (each for each in state.transactions.values() if each.phase is Phase.COMMITTED)
    return [each for each in committed if each.version <= version]

"""service Transactions: the calls of owners of transactional ids, and of Spark's sink, at their coordinators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from tinymq.base.errors import InvalidRequest, NotFound, NotLeader
from tinymq.base.types import PartitionId, TopicId, check_transactional_id
from tinymq.broker.coordinator.coordinator import coordinator_of
from tinymq.broker.coordinator.sink_coordinator import SinkJob
from tinymq.broker.coordinator.transaction_coordinator import RegisteredOwner, TransactionCoordinator
from tinymq.broker.coordinator.transaction_errors import error_of
from tinymq.broker.groups.groups import COORDINATOR_TOPIC
from tinymq.broker.partition.admission import check_topic_id
from tinymq.broker.transactions.led_transactions import HungTransaction
from tinymq.broker.transactions.rules import Refusal
from tinymq.broker.transactions.transactional_id import Phase, Transaction, TransactionalId
from tinymq.format.feature_level import TRANSACTIONS_LEVEL, check
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.rpc.common.access import ADDED_TOPICS, CLUSTER, ROLLED_BACK, SOME_TOPIC, TRANSACTIONAL_ID
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.caller import may_describe, require
from tinymq.rpc.common.presence import require as require_fields
from tinymq.rpc.common.rpc_method import unary
from tinymq.rpc.services.staged_batches import transaction_of

TRANSACTION_MS = 60_000  # after which a transaction is rolled back, if its owner says nothing else
SETS_MS = 24 * 3600 * 1000  # after which the sets of Spark's sink are dropped, if their task says nothing else
TIMEOUT_S = 10.0
TIMEOUT_S_MAX = 600.0
COORDINATORS_S = 10.0  # to make the topic of the coordinators
LISTED_MAX = 1000  # transactional ids in one answer
LISTED_PLACES_MAX = 50_000  # and partitions of their transactions: 1.5 MB. The last id may exceed it


class TransactionsService(pb_grpc.TransactionsServicer):
    """service Transactions."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @unary(operation="write", resource=TRANSACTIONAL_ID)
    async def RegisterOwner(self, request: pb.RegisterOwnerRequest, context: Context) -> pb.RegisterOwnerReply:
        name = check_transactional_id(request.transactional_id)
        check("a transactional id", TRANSACTIONS_LEVEL, self._serving.running().registry.feature_level)
        await self._serving.running_groups().make_coordinators(COORDINATORS_S)
        owner = await (await self._coordinator(name)).register(name)
        return pb.RegisterOwnerReply(
            producer_id=owner.producer_id, epoch=owner.epoch, coordinator=await self._number_of(name)
        )

    @unary(operation="write", resource=TRANSACTIONAL_ID)
    async def BeginTransaction(self, request: pb.BeginTransactionRequest, context: Context) -> pb.BeginTransactionReply:
        require_fields(request, "producer_id", "epoch")
        name, owner = request.transactional_id, RegisteredOwner(request.producer_id, request.epoch)
        timeout_us = (request.timeout_ms or TRANSACTION_MS) * 1000
        begun = await (await self._coordinator(name)).begin(name, owner, timeout_us)
        ref = pb.TransactionRef(producer_id=begun.producer_id, epoch=begun.epoch, number=begun.number)
        return pb.BeginTransactionReply(transaction=ref)

    @unary(operation="write", resource=TRANSACTIONAL_ID, also=(("write", ADDED_TOPICS),))
    async def AddPartitions(self, request: pb.AddPartitionsRequest, context: Context) -> pb.AddPartitionsReply:
        transaction = transaction_of(request.transaction)
        places = _counts(request.partitions).keys() | _counts(request.offsets).keys()
        coordinator = await self._coordinator(request.transactional_id)
        await coordinator.add(request.transactional_id, transaction, places)
        return pb.AddPartitionsReply()

    @unary(operation="write", resource=TRANSACTIONAL_ID)
    async def CommitTransaction(
        self, request: pb.CommitTransactionRequest, context: Context
    ) -> pb.CommitTransactionReply:
        name, transaction = request.transactional_id, transaction_of(request.transaction)
        expected = _counts(request.partitions)
        clock, timeout_s = self._serving.running().env.clock, _timeout_s(request.timeout_ms)
        until_s = clock.monotonic() + timeout_s
        coordinator = await self._coordinator(name)
        await coordinator.commit(name, transaction, expected, timeout_s)
        # The transaction is decided: failures from here on are no errors of the commit.
        left_s = max(0.0, until_s - clock.monotonic())
        visible = request.visible and await coordinator.wait_over(name, transaction, left_s)
        return pb.CommitTransactionReply(visible=visible)

    @unary(operation="write", resource=ROLLED_BACK)
    async def AbortTransaction(self, request: pb.AbortTransactionRequest, context: Context) -> pb.AbortTransactionReply:
        name, coordinator = request.transactional_id, await self._coordinator(request.transactional_id)
        if request.HasField("transaction"):
            await coordinator.abort(name, transaction_of(request.transaction))
        else:
            await coordinator.abort_open(name)
        return pb.AbortTransactionReply()

    @unary(operation="write", resource=TRANSACTIONAL_ID)
    async def OpenSet(self, request: pb.OpenSetRequest, context: Context) -> pb.OpenSetReply:
        job, coordinator = _job(request), await self._sink_coordinator(request.application)
        opened = await coordinator.sinks.open_set(job, request.run, (request.timeout_ms or SETS_MS) * 1000)
        if opened is None:
            return pb.OpenSetReply(committed=True)
        producer_id, epoch, number = opened.transaction
        return pb.OpenSetReply(
            transaction=pb.TransactionRef(producer_id=producer_id, epoch=epoch, number=number),
            coordinator=await self._number_of(job.application),
            writer=opened.writer,
        )

    @unary(operation="write", resource=TRANSACTIONAL_ID)
    async def CommitSets(self, request: pb.CommitSetsRequest, context: Context) -> pb.CommitSetsReply:
        job, expected = _job(request), _counts(request.partitions)
        transaction = transaction_of(request.transaction) if request.HasField("transaction") else None
        clock, timeout_s = self._serving.running().env.clock, _timeout_s(request.timeout_ms)
        until_s = clock.monotonic() + timeout_s
        sinks = (await self._sink_coordinator(job.application)).sinks
        await sinks.commit(job, transaction, request.writers, expected, timeout_s)
        left_s = max(0.0, until_s - clock.monotonic())  # as of CommitTransaction
        visible = request.visible and await sinks.wait_over(job.application, job.version, left_s)
        return pb.CommitSetsReply(visible=visible)

    @unary(operation="write", resource=TRANSACTIONAL_ID)
    async def DiscardSets(self, request: pb.DiscardSetsRequest, context: Context) -> pb.DiscardSetsReply:
        coordinator = await self._coordinator(request.application)
        await coordinator.sinks.discard(request.application, transaction_of(request.transaction))
        return pb.DiscardSetsReply()

    @unary(operation="describe", resource=TRANSACTIONAL_ID, filters=True)
    async def ListTransactionalIds(
        self, request: pb.ListTransactionalIdsRequest, context: Context
    ) -> pb.ListTransactionalIdsReply:
        if request.limit > LISTED_MAX:
            raise InvalidRequest(f"a list of {request.limit} ids", hint=f"ask for up to {LISTED_MAX}")
        name = request.transactional_id
        if name:
            require("describe", "transactional_id", name)
            coordinator = await self._coordinator(name)
            state = (await coordinator.states(await self._number_of(name))).get(name)
            return pb.ListTransactionalIdsReply(ids=[] if state is None else [_to_wire(name, state)])
        found = await self._led(request.after)
        reply = pb.ListTransactionalIdsReply()
        most, places = request.limit or LISTED_MAX, 0
        for name in islice(sorted(found), most):
            if places > LISTED_PLACES_MAX:
                break
            reply.ids.append(_to_wire(name, found[name]))
            places += sum(len(each.unconfirmed) for each in found[name].transactions.values())
        reply.more = len(reply.ids) < len(found)
        return reply

    @unary(operation="describe", resource=SOME_TOPIC, filters=True)
    async def ListHungTransactions(
        self, request: pb.ListHungTransactionsRequest, context: Context
    ) -> pb.ListHungTransactionsReply:
        if request.limit > LISTED_MAX:
            raise InvalidRequest(f"a list of {request.limit} transactions", hint=f"ask for up to {LISTED_MAX}")
        most = request.limit or LISTED_MAX
        broker, found = self._serving.running(), list[tuple[str, int, HungTransaction]]()
        for (topic_id, number), partition in broker.replica_host.partitions.items():
            topic = broker.registry.get_topic_by_id(TopicId(topic_id))
            if topic is not None and may_describe("topic", topic.name):
                found += ((topic.name, number, hung) for hung in partition.transactions.hung)
        found.sort(key=lambda each: (each[0], each[1], each[2].transaction))
        return pb.ListHungTransactionsReply(
            transactions=[_hung_to_wire(*each) for each in found[:most]], more=len(found) > most
        )

    @unary(operation="alter", resource=CLUSTER)
    async def ResolveTransaction(
        self, request: pb.ResolveTransactionRequest, context: Context
    ) -> pb.ResolveTransactionReply:
        require_fields(request, "coordinator", "commit")
        transaction = transaction_of(request.transaction)
        broker, coordinator = self._serving.running(), self._serving.deciding()
        topic = broker.registry.get_topic(COORDINATOR_TOPIC)
        queue = topic.queue(request.coordinator) if topic is not None else None
        if queue is None:
            raise NotFound(f"{COORDINATOR_TOPIC} has no partition {request.coordinator}")
        if not queue.has_replica(broker.env.broker_id):
            raise broker.elsewhere(queue)
        await coordinator.resolve(request.coordinator, transaction, publish=request.commit)
        return pb.ResolveTransactionReply()

    async def _led(self, after: str) -> dict[str, TransactionalId]:
        """The ids behind `after` in all partitions that this broker leads, as far as the caller may see them."""
        coordinator, found = self._serving.deciding(), dict[str, TransactionalId]()
        for number in coordinator.led():
            try:
                states = await coordinator.states(number)
            except NotLeader:  # this broker has just lost the leadership: the new leader lists it
                continue
            found.update((n, s) for n, s in states.items() if n > after and may_describe("transactional_id", n))
        return found

    # ---- the coordinator of an id -------------------------------------------------------------------------------

    async def _coordinator(self, name: str) -> TransactionCoordinator:
        """The coordinator of this broker, if the partition with the id has a replica here.

        Raises InvalidName, NotReady, Fenced (no id was ever registered), and NotLeader with the leader, as far as it is
        known.
        """
        broker, coordinator = self._serving.running(), self._serving.deciding()
        number = await self._number_of(check_transactional_id(name))
        topic = broker.registry.get_topic(COORDINATOR_TOPIC)
        queue = topic.queue(number) if topic is not None else None
        if queue is not None and not queue.has_replica(broker.env.broker_id):
            raise broker.elsewhere(queue)
        return coordinator

    async def _sink_coordinator(self, application: str) -> TransactionCoordinator:
        """As `_coordinator`. The first application or transactional id of the cluster makes the topic. Raises
        UnsupportedVersion below the feature level."""
        name = check_transactional_id(application)
        check("Spark's exactly-once sink", TRANSACTIONS_LEVEL, self._serving.running().registry.feature_level)
        await self._serving.running_groups().make_coordinators(COORDINATORS_S)
        return await self._coordinator(name)

    async def _number_of(self, name: str) -> int:
        """The partition of `__coordinator` that has the id."""
        broker = self._serving.running()
        topic = broker.registry.get_topic(COORDINATOR_TOPIC)
        if topic is None:
            await broker.refresh()
            topic = broker.registry.get_topic(COORDINATOR_TOPIC)
        if topic is None:
            raise error_of(Refusal.FENCED, name)
        return coordinator_of(name, len(topic.queues))


def _job(request: pb.OpenSetRequest | pb.CommitSetsRequest) -> SinkJob:
    require_fields(request, "version")
    return SinkJob(request.application, request.version, request.query, request.temporary)


def _counts(partitions: Sequence[pb.TransactionPartition]) -> Mapping[PartitionId, int]:
    """The number of batches by partition. Raises InvalidRequest, InvalidName."""
    counts: dict[PartitionId, int] = {}
    for each in partitions:
        require_fields(each, "partition")
        check_topic_id(each.topic_id)
        place = PartitionId(each.topic_id, each.partition)
        if place in counts:
            raise InvalidRequest(f"partition {each.partition} is named twice")
        counts[place] = each.batches
    return counts


def _to_wire(name: str, state: TransactionalId) -> pb.TransactionalIdInfo:
    info = pb.TransactionalIdInfo(
        transactional_id=name,
        producer_id=state.producer_id,
        epoch=state.epoch,
        used_us=state.used_us,
        transactions=map(_transaction_to_wire, state.transactions.values()),
    )
    if state.outcome is not None:
        producer_id, epoch, number = state.outcome.transaction
        info.outcome_of.producer_id, info.outcome_of.epoch, info.outcome_of.number = producer_id, epoch, number
        info.committed = state.outcome.phase is Phase.COMMITTED
    return info


def _transaction_to_wire(transaction: Transaction) -> pb.TransactionInfo:
    return pb.TransactionInfo(
        number=transaction.number,
        epoch=transaction.epoch,
        state=transaction.phase.value,
        until_us=transaction.until_us,
        unconfirmed=[
            pb.TransactionPartition(topic_id=place.topic_id, partition=place.partition)
            for place in sorted(transaction.unconfirmed)
        ],
    )


def _hung_to_wire(topic: str, partition: int, hung: HungTransaction) -> pb.HungTransactionInfo:
    producer_id, epoch, number = hung.transaction
    return pb.HungTransactionInfo(
        transaction=pb.TransactionRef(producer_id=producer_id, epoch=epoch, number=number),
        coordinator=hung.coordinator,
        topic=topic,
        partition=partition,
        reason=hung.hang.value,
        batches=hung.staged.batches,
        records=hung.staged.records,
        bytes=hung.staged.bytes,
    )


def _timeout_s(timeout_ms: int) -> float:
    return min(timeout_ms / 1000 or TIMEOUT_S, TIMEOUT_S_MAX)

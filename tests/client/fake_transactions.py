"""Transactions of the cluster in memory: the brokers' own rules decide, and every partition confirms at once."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any
from zlib import crc32

from tinymq.base.errors import Fenced, NotFound, OutcomeUnknown, OutOfOrderSequence, TinymqError, TransactionAborted
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator.transaction_errors import error_of
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions import rules
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.broker.transactions.transactional_id import Phase, TransactionalId
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import to_wire
from tinymq.proto.methods import method_of

if TYPE_CHECKING:
    from tests.client.fake_cluster import FakeCluster, FakePartition

COORDINATOR_TOPIC = "__coordinator"
TRANSACTION_CALLS = (
    pb.RegisterOwnerRequest, pb.BeginTransactionRequest, pb.AddPartitionsRequest, pb.CommitTransactionRequest,
    pb.AbortTransactionRequest, pb.ListTransactionalIdsRequest,
)  # fmt: skip


class FakeTransactions:
    """The coordinators and the staged batches of a FakeCluster. Faults are fields that a test sets."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.ids: dict[str, TransactionalId] = {}
        self.staged: dict[PartitionId, dict[TransactionId, list[bytes]]] = {}
        self.now_us = 1_700_000_000_000_000
        self.calls: list[str] = []  # names of the calls that were carried out
        self.added: list[int] = []  # how many partitions each AddPartitions named
        self.lost: Counter[str] = Counter()  # by name: answers left that are lost after the call is carried out
        self.errors: dict[str, deque[TinymqError]] = {}  # by name: the errors of the next calls
        self.numbers: list[tuple[int, int]] = []  # (partition, number) of each batch that came, in order
        self.invisible = 0  # commits left that are answered before the partitions show the records
        self._cluster = cluster

    # ---- what tests do --------------------------------------------------------------------------------

    def time_out(self, name: str) -> None:
        """Let the time of the open transaction pass."""
        self.now_us += 16 * 60_000_000
        self._put(name, rules.time_out(self.ids[name], self.now_us))

    def forget(self, topic: str, partition: int = 0) -> None:
        """Lose what is staged in a partition."""
        self.staged.pop(PartitionId(self._cluster.topics[topic][0], partition), None)

    def refuse(self, name: str, *errors: TinymqError) -> None:
        """Answer the next calls of this name with these errors, and do nothing else."""
        self.errors.setdefault(name, deque()).extend(errors)

    def register(self, name: str) -> TransactionalId:
        """Another program takes the id."""
        after = rules.register(self.ids.get(name), 1000 + len(self.ids), self.now_us)
        self._put(name, after)
        return after

    # ---- what brokers do ------------------------------------------------------------------------------

    def answer(self, broker: int, request: Any) -> Any:
        """Raises OutcomeUnknown where the answer is lost."""
        name = method_of(request).name
        reply = _REPLIES[name]()
        try:
            self._check_leading(broker, request)
            if self.errors.get(name):
                raise self.errors[name].popleft()
            self._carry_out(request, reply)
        except TinymqError as error:
            reply.error.CopyFrom(to_wire(error))
            return reply
        self.calls.append(name)
        if self.lost[name]:
            self.lost[name] -= 1
            raise OutcomeUnknown(f"fake:{broker}: the answer was lost")
        return reply

    def stage(self, at: FakePartition, batch: pb.ProduceBatch) -> bool:
        """Stage a batch. True: it is a duplicate."""
        place = PartitionId(batch.topic_id, batch.partition)
        ref, number = _id(batch.transaction.transaction), batch.transaction.number
        self.numbers.append((batch.partition, number))
        state = next((each for each in self.ids.values() if each.producer_id == ref.producer_id), None)
        if rules.standing(state, ref, place) is not Standing.OPEN:
            fenced = state is None or ref.epoch < state.epoch
            raise Fenced("fenced") if fenced else TransactionAborted("it has ended")
        held = self.staged.setdefault(place, {}).setdefault(ref, [])
        if number > len(held):
            raise OutOfOrderSequence(f"{number} after {len(held)} batches")
        if number == len(held):
            held.append(batch.payload)
            return False
        assert held[number] == batch.payload, "a number names one batch"
        return True

    def _check_leading(self, broker: int, request: Any) -> None:
        if COORDINATOR_TOPIC not in self._cluster.topics:
            self._cluster.add_topic(COORDINATOR_TOPIC, 16)
        if not request.transactional_id:
            return
        partitions = self._cluster.topics[COORDINATOR_TOPIC][1]
        at = partitions[crc32(request.transactional_id.encode()) % len(partitions)]
        if at.leader != broker:
            raise self._cluster.not_leader(at)

    def _carry_out(self, request: Any, reply: Any) -> None:
        name = request.transactional_id
        match request:
            case pb.RegisterOwnerRequest():
                state = self.register(name)
                reply.producer_id, reply.epoch, reply.coordinator = state.producer_id, state.epoch, _number(name)
            case pb.BeginTransactionRequest():
                begun = rules.begin(
                    self.ids[name], request.producer_id, request.epoch, self.now_us, request.timeout_ms * 1000
                )
                state = self._decided(name, begun)
                reply.transaction.producer_id, reply.transaction.epoch = state.producer_id, state.epoch
                reply.transaction.number = state.number
            case pb.AddPartitionsRequest():
                self.added.append(len(request.partitions))
                places = [PartitionId(each.topic_id, each.partition) for each in request.partitions]
                self._decided(name, rules.add(self.ids[name], _id(request.transaction), places))
            case pb.CommitTransactionRequest():
                reply.visible = self._commit(name, request)
            case pb.AbortTransactionRequest():
                self._abort(name, request)
            case pb.ListTransactionalIdsRequest():
                names = [name] if name else sorted(self.ids)
                reply.ids.extend(_info(each, self.ids[each]) for each in names if each in self.ids)

    def _commit(self, name: str, request: pb.CommitTransactionRequest) -> bool:
        state, ref = self.ids[name], _id(request.transaction)
        expected = {PartitionId(each.topic_id, each.partition): each.batches for each in request.partitions}
        found = rules.find(state, ref)
        held = {place: len(self.staged.get(place, {}).get(ref, ())) for place in found.unconfirmed} if found else {}
        after = rules.commit(state, ref, expected, held)
        if isinstance(after, TransactionalId):
            self._put(name, after)
        if (refusal := rules.outcome(self.ids[name], ref)) is not Refusal.COMMITTED:
            raise error_of(refusal, name)
        if self.invisible:
            self.invisible -= 1
            return False
        return True

    def _abort(self, name: str, request: pb.AbortTransactionRequest) -> None:
        if name not in self.ids:
            raise NotFound(f"no transactional id {name!r}")
        state = self.ids[name]
        ref = _id(request.transaction) if request.HasField("transaction") else state.open and state.id_of(state.open)
        if ref is not None:
            after = rules.abort(state, ref)
            if after is not Refusal.ABORTED:
                self._decided(name, after)

    def _decided(self, name: str, after: TransactionalId | Refusal) -> TransactionalId:
        if isinstance(after, Refusal):
            raise error_of(after, name)
        self._put(name, after)
        return self.ids[name]

    def _put(self, name: str, state: TransactionalId) -> None:
        """Carry out what is decided."""
        for end in rules.ends(state):
            payloads = self.staged.get(end.place, {}).pop(end.transaction, [])
            topics = self._cluster.topics.values()
            at = next((partitions[end.place.partition] for found, partitions in topics if found == end.place[0]), None)
            for payload in payloads if end.publish and at is not None else ():
                at.append(payload)
            state = rules.confirm(state, end.transaction, end.place)
        self.ids[name] = state
        self._cluster.notify()


_REPLIES = {
    "RegisterOwner": pb.RegisterOwnerReply,
    "BeginTransaction": pb.BeginTransactionReply,
    "AddPartitions": pb.AddPartitionsReply,
    "CommitTransaction": pb.CommitTransactionReply,
    "AbortTransaction": pb.AbortTransactionReply,
    "ListTransactionalIds": pb.ListTransactionalIdsReply,
}


def _number(name: str) -> int:
    return crc32(name.encode()) % 16


def _id(ref: pb.TransactionRef) -> TransactionId:
    assert all(ref.HasField(name) for name in ("producer_id", "epoch", "number")), "each is set"
    return TransactionId(ref.producer_id, ref.epoch, ref.number)


def _info(name: str, state: TransactionalId) -> pb.TransactionalIdInfo:
    info = pb.TransactionalIdInfo(
        transactional_id=name, producer_id=state.producer_id, epoch=state.epoch, used_us=state.used_us
    )
    for each in state.transactions.values():
        places = [pb.TransactionPartition(topic_id=p.topic_id, partition=p.partition) for p in each.unconfirmed]
        info.transactions.add(number=each.number, state=each.phase.value, until_us=each.until_us, unconfirmed=places)
    if state.outcome is not None:
        info.outcome_of.producer_id, info.outcome_of.epoch, info.outcome_of.number = state.outcome.transaction
        info.committed = state.outcome.phase is Phase.COMMITTED
    return info

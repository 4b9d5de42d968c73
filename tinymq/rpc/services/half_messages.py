"""service HalfMessages: the calls of senders and checkers of a producer group, at the group's coordinator."""

from __future__ import annotations

from tinymq.base.errors import InvalidRequest, NotLeader
from tinymq.base.types import PartitionId, check_producer_group
from tinymq.broker.coordinator.coordinator import coordinator_of
from tinymq.broker.groups.groups import COORDINATOR_TOPIC
from tinymq.broker.half_messages.half_coordinator import CHECKS_MAX, Check, HalfCoordinator
from tinymq.broker.partition.admission import check_topic_id
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.half.half_message import CHECK_AFTER_US, HalfMessage
from tinymq.format.feature_level import TRANSACTIONS_LEVEL, check
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.rpc.common.access import PRODUCER_GROUP, TOPIC
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.caller import may_describe, require
from tinymq.rpc.common.presence import require as require_fields
from tinymq.rpc.common.rpc_method import unary
from tinymq.rpc.services.staged_batches import transaction_of

TIMEOUT_S = 10.0
TIMEOUT_S_MAX = 600.0
WAIT_S_MAX = 10.0  # of a checker
COORDINATORS_S = 10.0  # to make the topic of the coordinators
MEMBER_BYTES = 16
LISTED_MAX = 1000  # half messages in one answer


class HalfMessagesService(pb_grpc.HalfMessagesServicer):
    """service HalfMessages."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @unary(operation="write", resource=PRODUCER_GROUP, also=(("write", TOPIC),))
    async def BeginHalfMessage(self, request: pb.BeginHalfMessageRequest, context: Context) -> pb.BeginHalfMessageReply:
        group = check_producer_group(request.producer_group)
        require_fields(request, "partition")
        check_topic_id(request.topic_id)
        check("a half message", TRANSACTIONS_LEVEL, self._serving.running().registry.feature_level)
        await self._serving.running_groups().make_coordinators(COORDINATORS_S)
        place = PartitionId(request.topic_id, request.partition)
        check_after_us = request.check_after_ms * 1000 or CHECK_AFTER_US
        begun = await self._coordinator(group).begin(group, place, request.context, check_after_us)
        return pb.BeginHalfMessageReply(transaction=_ref(begun), coordinator=self._number_of(group))

    @unary(operation="write", resource=PRODUCER_GROUP)
    async def EndHalfMessage(self, request: pb.EndHalfMessageRequest, context: Context) -> pb.EndHalfMessageReply:
        require_fields(request, "commit")
        group, transaction = request.producer_group, transaction_of(request.transaction)
        clock, timeout_s = self._serving.running().env.clock, min(request.timeout_ms / 1000 or TIMEOUT_S, TIMEOUT_S_MAX)
        until_s = clock.monotonic() + timeout_s
        coordinator = self._coordinator(group)
        await coordinator.end(group, transaction, commit=request.commit, decide_s=timeout_s)
        # The half message is decided: failures from here on are no errors of the call.
        left_s = max(0.0, until_s - clock.monotonic())
        visible = request.commit and request.visible and await coordinator.wait_over(group, transaction, left_s)
        return pb.EndHalfMessageReply(visible=visible)

    @unary(operation="write", resource=PRODUCER_GROUP)
    async def AwaitChecks(self, request: pb.AwaitChecksRequest, context: Context) -> pb.AwaitChecksReply:
        if len(request.member) != MEMBER_BYTES:
            raise InvalidRequest(f"a checker's name of {len(request.member)} bytes", hint=f"{MEMBER_BYTES} random ones")
        if request.checks_max > CHECKS_MAX:
            raise InvalidRequest(f"{request.checks_max} checks in one answer", hint=f"ask for up to {CHECKS_MAX}")
        check("a half message", TRANSACTIONS_LEVEL, self._serving.running().registry.feature_level)
        await self._serving.running_groups().make_coordinators(COORDINATORS_S)
        wait_s = min(request.wait_ms / 1000, WAIT_S_MAX)
        found = await self._coordinator(request.producer_group).checks(
            request.producer_group, request.member, request.checks_max or CHECKS_MAX, wait_s
        )
        return pb.AwaitChecksReply(checks=map(_check_to_wire, found))

    @unary(operation="write", resource=PRODUCER_GROUP)
    async def CountCheck(self, request: pb.CountCheckRequest, context: Context) -> pb.CountCheckReply:
        require_fields(request, "number")
        group, transaction = request.producer_group, transaction_of(request.transaction)
        await self._coordinator(group).count(group, transaction, request.number)
        return pb.CountCheckReply()

    @unary(operation="describe", resource=PRODUCER_GROUP, filters=True)
    async def ListHalfMessages(self, request: pb.ListHalfMessagesRequest, context: Context) -> pb.ListHalfMessagesReply:
        if request.limit > LISTED_MAX:
            raise InvalidRequest(f"a list of {request.limit} half messages", hint=f"ask for up to {LISTED_MAX}")
        group, after = request.producer_group, TransactionId(0, 0, 0)
        if request.HasField("after"):
            after = transaction_of(request.after)
        if group:
            require("describe", "producer_group", group)
            coordinator, numbers = self._coordinator(group), [self._number_of(group)]
        else:
            coordinator = self._serving.checking()
            numbers = coordinator.led()
        found: dict[TransactionId, pb.HalfMessageInfo] = {}
        asked: list[int] = []
        for number in numbers:
            try:
                halves = await coordinator.halves(number)
                shown = {each for each in {half.group for half in halves.values()} if not group or each == group}
                checkers = {
                    each: coordinator.checkers(number, each) for each in shown if may_describe("producer_group", each)
                }
            except NotLeader:  # this broker has just lost the leadership: the new leader lists these
                if group:
                    raise
                continue
            asked.append(number)
            found.update(
                (each, _to_wire(half, checkers[half.group]))
                for each, half in halves.items()
                if each > after and half.group in checkers
            )
        listed = sorted(found)[: request.limit or LISTED_MAX]
        more = len(listed) < len(found)
        return pb.ListHalfMessagesReply(messages=[found[each] for each in listed], more=more, coordinators=asked)

    # ---- the coordinator of a producer group -----------------------------------------------------------------------

    def _coordinator(self, group: str) -> HalfCoordinator:
        """The coordinator of this broker, if the partition with the producer group has a replica here.

        Raises InvalidName, NotReady, and NotLeader with the leader, as far as it is known.
        """
        broker, coordinator = self._serving.running(), self._serving.checking()
        topic = broker.registry.get_topic(COORDINATOR_TOPIC)
        queue = topic.queue(self._number_of(check_producer_group(group))) if topic is not None else None
        if queue is not None and not queue.has_replica(broker.env.broker_id):
            raise broker.elsewhere(queue)
        return coordinator

    def _number_of(self, group: str) -> int:
        """The partition of `__coordinator` that has the producer group. Raises NotLeader: there is no such topic."""
        topic = self._serving.running().registry.get_topic(COORDINATOR_TOPIC)
        if topic is None:
            raise NotLeader(f"the topic {COORDINATOR_TOPIC} is not made yet")
        return coordinator_of(group, len(topic.queues))


def _ref(transaction: TransactionId) -> pb.TransactionRef:
    producer_id, epoch, number = transaction
    return pb.TransactionRef(producer_id=producer_id, epoch=epoch, number=number)


def _check_to_wire(check: Check) -> pb.HalfMessageCheck:
    half = check.half
    return pb.HalfMessageCheck(
        transaction=_ref(half.transaction),
        number=half.checks,
        topic_id=half.place.topic_id,
        partition=half.place.partition,
        context=half.context,
        begun_us=half.begun_us,
        batch=check.batch,
    )


def _to_wire(half: HalfMessage, checkers: int) -> pb.HalfMessageInfo:
    return pb.HalfMessageInfo(
        transaction=_ref(half.transaction),
        producer_group=half.group,
        topic_id=half.place.topic_id,
        partition=half.place.partition,
        context=half.context,
        state=half.phase.value,
        begun_us=half.begun_us,
        check_us=half.due_us,
        checks=half.checks,
        checkers=checkers,
    )

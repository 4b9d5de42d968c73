"""Half messages that are not over, asked of their coordinators."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from tinymq.base.errors import NotFound, NotReady
from tinymq.base.types import check_producer_group, parse_transaction_name, transaction_name
from tinymq.client.cluster.cluster import JITTERED, Cluster
from tinymq.client.cluster.coordinator_calls import COORDINATOR_TOPIC
from tinymq.client.cluster.half_calls import HalfCalls
from tinymq.client.cluster.routing import Broker
from tinymq.client.cluster.transaction_descriptions import BROKER_TIMEOUT_S, TIMEOUT_S_MIN
from tinymq.client.common.values import as_datetime
from tinymq.proto import tinymq_pb2 as pb


@dataclass(frozen=True, slots=True)
class HalfMessageDescription:
    """A half message that is not over.

    for half in mq.admin.list_half_messages("checkout"):
        print(half.name, half.producer_group, half.topic, half.partition, half.context)
        print(half.state, half.begun_at, half.check_at, half.checks, half.checkers)
    """

    name: str  # "1042-0-1"
    producer_group: str
    topic: str  # or its id in hex, if it was deleted
    partition: int
    context: bytes  # that its sender passed to `half_message`
    state: str  # "open"; "committed" or "aborted": its partition has not carried that out yet
    begun_at: datetime
    check_at: datetime  # when its next check is due, or was
    checks: int  # that were answered, all of them without an outcome
    checkers: int  # of its producer group, as its coordinator has heard of them within a minute


class HalfAdmin:
    """The questions of an admin about half messages."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def all(self, producer_group: str | None, timeout_s: float) -> list[HalfMessageDescription]:
        """The half messages of a producer group, or of all, in the order in which they began, as far as brokers that
        lead their coordinators answer. Raises the last error if no broker answers."""
        if producer_group is not None:
            check_producer_group(producer_group)
        found, _ = await self._ask(timeout_s)
        return [each for each in found if producer_group in (None, each.producer_group)]

    async def describe(self, name: str, timeout_s: float) -> HalfMessageDescription:
        """One half message. Raises NotFound, InvalidRequest (it is not the name of a half message), NotReady (a
        coordinator did not answer, and may have it)."""
        parse_transaction_name(name)
        left = self._cluster.countdown(timeout_s)
        async for _ in self._cluster.attempts(timeout_s, JITTERED):
            found, complete = await self._ask(max(TIMEOUT_S_MIN, left()))
            for each in found:
                if each.name == name:
                    return each
            if complete:
                raise NotFound(f"no half message {name} is open", hint="see: tinymq half list")
        raise NotReady(f"half message {name} was not found, and not every coordinator has answered")

    async def _ask(self, timeout_s: float) -> tuple[list[HalfMessageDescription], bool]:
        """The half messages of all brokers that answer, and whether these have asked all coordinators. Raises the last
        error if no broker answers."""
        left = self._cluster.countdown(timeout_s)
        view = await self._cluster.refresh(timeout_s=left(), every=True)
        broker_s = min(BROKER_TIMEOUT_S, max(TIMEOUT_S_MIN, left()))
        listed = (self._listed(broker, broker_s) for broker in view.brokers.values())
        answers = await asyncio.gather(*listed, return_exceptions=True)
        found: dict[str, HalfMessageDescription] = {}
        asked: set[int] = set()
        failure: BaseException | None = None
        for answer in answers:
            if isinstance(answer, BaseException):
                failure = answer
            else:
                asked.update(answer.coordinators)
                found.update((each.name, each) for each in map(self._described, answer.messages))
        if failure is not None and all(isinstance(answer, BaseException) for answer in answers):
            raise failure
        coordinators = view.topics.get(COORDINATOR_TOPIC)
        halves = sorted(found.values(), key=lambda each: (each.begun_at, parse_transaction_name(each.name)))
        return halves, coordinators is None or asked.issuperset(coordinators.numbers)

    async def end(self, name: str, commit: bool, timeout_s: float) -> bool:
        """Decide about a half message. Returns whether its partition shows it. Raises NotFound, TransactionAborted,
        InvalidRequest, OutcomeUnknown."""
        left = self._cluster.countdown(timeout_s)
        half = await self.describe(name, left())
        numbers = parse_transaction_name(name)
        ref = pb.TransactionRef(producer_id=numbers.producer_id, epoch=numbers.epoch, number=numbers.number)
        calls = HalfCalls(self._cluster, half.producer_group)
        return await calls.end(ref, commit, max(TIMEOUT_S_MIN, left()), visible=True)

    async def _listed(self, broker: Broker, timeout_s: float) -> pb.ListHalfMessagesReply:
        """The half messages whose coordinators this broker leads, in one reply."""
        total = pb.ListHalfMessagesReply()
        while True:
            after = total.messages[-1].transaction if total.messages else None
            request = pb.ListHalfMessagesRequest(after=after)
            reply: pb.ListHalfMessagesReply = await self._cluster.ask_broker(broker.address, request, timeout_s)
            before = 0 if after is None else after.producer_id
            total.MergeFrom(reply)
            if not reply.more or not reply.messages or reply.messages[-1].transaction.producer_id <= before:
                return total  # the last one, or the broker goes in circles

    def _described(self, info: pb.HalfMessageInfo) -> HalfMessageDescription:
        names = {topic.topic_id: topic.name for topic in self._cluster.view.topics.values()}
        ref = info.transaction
        return HalfMessageDescription(
            name=transaction_name(ref.producer_id, ref.epoch, ref.number),
            producer_group=info.producer_group,
            topic=names.get(info.topic_id, info.topic_id.hex()),
            partition=info.partition,
            context=info.context,
            state=info.state,
            begun_at=as_datetime(info.begun_us),
            check_at=as_datetime(info.check_us),
            checks=info.checks,
            checkers=info.checkers,
        )

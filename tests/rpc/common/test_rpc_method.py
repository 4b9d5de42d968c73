"""Every RPC of every service declares the permission that a caller needs, and its errors have the form of
its replies.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpc import StatusCode

from tinymq.base.errors import BrokenInvariant, UnknownTopic
from tinymq.gateway.queue_service import QueueService
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import TRAILER
from tinymq.proto.methods import METHODS, Method
from tinymq.rpc.common.access import (
    ADDED_TOPICS,
    CHANNEL,
    CLUSTER,
    CONSUMER,
    CURSORS,
    DEAD_LETTERS,
    GROUP,
    GROUP_TOPICS,
    LEVEL,
    PRODUCER_GROUP,
    QUEUE_CHANNEL,
    ROLLED_BACK,
    SOME_TOPIC,
    TOPIC,
    TRANSACTIONAL_ID,
    Access,
    field_of,
)
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.rpc_method import access_of, item, unary
from tinymq.rpc.services.admin import AdminService
from tinymq.rpc.services.broker import BrokerService
from tinymq.rpc.services.channels import ChannelsService
from tinymq.rpc.services.dead_letters import DeadLettersService
from tinymq.rpc.services.groups import GroupsService
from tinymq.rpc.services.half_messages import HalfMessagesService
from tinymq.rpc.services.schedules import SchedulesService
from tinymq.rpc.services.transactions import TransactionsService
from tinymq.rpc.services.users import UsersService
from tinymq.rpc.services.workers import WorkersService

SERVICES: dict[str, type] = {
    "Broker": BrokerService,
    "Channels": ChannelsService,
    "Groups": GroupsService,
    "Workers": WorkersService,
    "DeadLetters": DeadLettersService,
    "Schedules": SchedulesService,
    "Transactions": TransactionsService,
    "HalfMessages": HalfMessagesService,
    "Users": UsersService,
    "Admin": AdminService,
    "QueueService": QueueService,
}
EXPECTED = {
    "Broker.Produce": Access("write", TOPIC),
    "Broker.Fetch": Access("read", TOPIC),
    "Broker.Metadata": Access("describe", TOPIC, filters=True),
    "Broker.ListOffsets": Access("describe", TOPIC),
    "Broker.OpenProducer": Access("write", SOME_TOPIC),
    "Groups.CreateGroup": Access("create", GROUP, (("read", GROUP_TOPICS),)),
    "Groups.AlterGroup": Access("alter", GROUP, (("write", DEAD_LETTERS),)),
    "Groups.DeleteGroup": Access("delete", GROUP),
    "Groups.ListGroups": Access("describe", GROUP, filters=True),
    "Groups.Heartbeat": Access("read", GROUP),
    "Groups.AwaitAssignment": Access("read", GROUP),
    "Groups.ListMembers": Access("describe", GROUP),
    "Workers.Work": Access("read", GROUP, (("read", TOPIC),)),
    "DeadLetters.ExplainRecord": Access("describe", TOPIC),
    "DeadLetters.RedriveRecord": Access("write", TOPIC),
    "DeadLetters.PurgeRecords": Access("delete", TOPIC),
    "Schedules.ListScheduled": Access("describe", TOPIC),
    "Schedules.CancelScheduled": Access("write", TOPIC),
    "Transactions.RegisterOwner": Access("write", TRANSACTIONAL_ID),
    "Transactions.BeginTransaction": Access("write", TRANSACTIONAL_ID),
    "Transactions.AddPartitions": Access("write", TRANSACTIONAL_ID, (("write", ADDED_TOPICS),)),
    "Transactions.CommitTransaction": Access("write", TRANSACTIONAL_ID),
    "Transactions.AbortTransaction": Access("write", ROLLED_BACK),
    "Transactions.ListTransactionalIds": Access("describe", TRANSACTIONAL_ID, filters=True),
    "Transactions.ListHungTransactions": Access("describe", SOME_TOPIC, filters=True),
    "Transactions.ResolveTransaction": Access("alter", CLUSTER),
    "Transactions.OpenSet": Access("write", TRANSACTIONAL_ID),
    "Transactions.CommitSets": Access("write", TRANSACTIONAL_ID),
    "Transactions.DiscardSets": Access("write", TRANSACTIONAL_ID),
    "HalfMessages.BeginHalfMessage": Access("write", PRODUCER_GROUP, (("write", TOPIC),)),
    "HalfMessages.EndHalfMessage": Access("write", PRODUCER_GROUP),
    "HalfMessages.AwaitChecks": Access("write", PRODUCER_GROUP),
    "HalfMessages.CountCheck": Access("write", PRODUCER_GROUP),
    "HalfMessages.ListHalfMessages": Access("describe", PRODUCER_GROUP, filters=True),
    "Channels.SetConsumer": Access("read", CHANNEL, (("read", TOPIC),)),
    "Channels.UnsetConsumer": Access("read", CHANNEL, (("read", TOPIC),)),
    "Channels.GetConsumer": Access("describe", CHANNEL, (("describe", TOPIC),)),
    "Channels.Change": Access("read", CURSORS, (("read", TOPIC),)),
    "Channels.List": Access("describe", TOPIC),
    "Channels.Trim": Access("delete", TOPIC),
    "Channels.Hold": Access("read", TOPIC),
    "Users.WhoAmI": Access("switch", CLUSTER),
    "Users.ChangeUser": Access("switch", CLUSTER),
    "Users.ListUsers": Access("switch", CLUSTER),
    "Users.TestAccess": Access("switch", CLUSTER),
    "Users.SwitchAccess": Access("switch", CLUSTER),
    "Users.ChangeQuota": Access("switch", CLUSTER),
    "Users.ListQuotas": Access("switch", CLUSTER),
    "Users.MakeAdministrator": Access("secret", CLUSTER),
    "Admin.CreateTopic": Access("create", TOPIC),
    "Admin.DeleteTopic": Access("delete", TOPIC),
    "Admin.AlterTopic": Access("alter", TOPIC),
    "Admin.AddPartition": Access("alter", TOPIC),
    "Admin.DeletePartition": Access("delete", TOPIC),
    "Admin.TransferLeader": Access("alter", TOPIC),
    "Admin.ClusterStatus": Access("describe", CLUSTER),
    "Admin.FeatureLevel": Access("alter", LEVEL),
    "Admin.DescribeScan": Access("known", CLUSTER, filters=True),
    "Admin.ListScans": Access("describe", CLUSTER),
    "Admin.DescribeSelf": Access("secret", CLUSTER),
    "Admin.Form": Access("secret", CLUSTER),
    "Admin.Survey": Access("secret", CLUSTER),
    "Admin.TakeOver": Access("secret", CLUSTER),
    "QueueService.ProduceMessage": Access("write", TOPIC),
    "QueueService.AsyncProduceMessage": Access("write", TOPIC),
    "QueueService.ConsumeMessage": Access("read", CONSUMER, (("read", TOPIC),)),
    "QueueService.Settle": Access("read", GROUP, (("read", TOPIC),)),
    "QueueService.FetchMessage": Access("read", TOPIC),
    "QueueService.CreateQueue": Access("create", TOPIC),
    "QueueService.DeleteQueue": Access("delete", TOPIC),
    "QueueService.GetQueueSize": Access("describe", TOPIC, (("describe", QUEUE_CHANNEL),)),
}


def declared(method: Method) -> Access:
    return access_of(SERVICES[method.service], method)


def test_every_rpc_has_its_operation_and_resource() -> None:
    """Access control will read these declarations: an RPC that is new or changes its access changes this table too."""
    assert {method.label: declared(method) for method in METHODS.values()} == EXPECTED


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.label)
def test_a_request_names_the_resource_of_its_rpc(method: Method) -> None:
    access = declared(method)
    for resource in (access.resource, *(resource for _, resource in access.also)):
        named = field_of(resource, method.request.DESCRIPTOR) is not None
        assert named or resource.targets is not None or resource in (CLUSTER, SOME_TOPIC)


class Failing:
    """A service whose RPCs raise `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self._serving = Serving()

    @unary(operation="delete", resource=TOPIC)
    async def DeleteTopic(self, request: pb.DeleteTopicRequest, context: Context) -> pb.DeleteTopicReply:
        raise self.error

    @unary(operation="describe", resource=TOPIC)
    async def ListOffsets(self, request: pb.ListOffsetsRequest, context: Context) -> pb.ListOffsetsReply:
        raise self.error

    @unary(operation="delete", resource=TOPIC)
    async def DeleteQueue(self, request: pb.DeleteQueueRequest, context: Context) -> pb.DeleteQueueReply:
        raise self.error


class Aborted(Exception):
    pass


class Statuses:
    """The context of a call, which records the status that ends it."""

    ended: tuple[Any, ...] = ()

    async def abort(self, code: StatusCode, details: str, trailers: tuple[tuple[str, Any], ...]) -> None:
        self.ended = (code, details, pb.Error.FromString(dict(trailers)[TRAILER]).code)
        raise Aborted


def test_an_error_takes_the_form_of_the_reply() -> None:
    async def main() -> None:
        service, context = Failing(UnknownTopic("no topic", hint="make one")), Statuses()
        told: Any = context
        assert (await service.DeleteTopic(pb.DeleteTopicRequest(), told)).error.code == "UnknownTopic"
        (answer,) = (await service.ListOffsets(pb.ListOffsetsRequest(), told)).answers
        assert answer.error.code == "UnknownTopic"
        with pytest.raises(Aborted):
            await service.DeleteQueue(pb.DeleteQueueRequest(), told)
        assert context.ended == (StatusCode.NOT_FOUND, "no topic (make one)", "UnknownTopic")

    asyncio.run(main())


def test_a_bug_is_answered_as_one_and_reported() -> None:
    async def main() -> None:
        seen: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, about: seen.append(about["exception"]))
        bug = KeyError("x")
        context: Any = Statuses()
        reply = await Failing(bug).DeleteTopic(pb.DeleteTopicRequest(), context)
        assert reply.error.code == BrokenInvariant.code
        assert seen == [bug]

    asyncio.run(main())


def test_an_item_has_its_own_error() -> None:
    async def found(offset: int) -> pb.OffsetAnswer:
        if offset:
            raise UnknownTopic("no topic")
        return pb.OffsetAnswer(partition=1, offset=5)

    async def main() -> None:
        assert (await item(pb.OffsetAnswer, found(0), partition=7)).offset == 5
        failed = await item(pb.OffsetAnswer, found(1), partition=7)
        assert (failed.partition, failed.error.code) == (7, "UnknownTopic")

    asyncio.run(main())

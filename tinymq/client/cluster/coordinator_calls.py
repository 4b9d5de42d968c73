"""The calls of a member to the coordinator of its group, wherever that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from tinymq.base.errors import NotFound, OutcomeUnknown
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leader_calls import ask_leader
from tinymq.proto import tinymq_pb2 as pb

COORDINATOR_TOPIC = "__coordinator"


class CoordinatorCalls:
    """Finds the partition of `__coordinator` that has the group, and asks its leader."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group

    async def heartbeat(self, request: pb.HeartbeatRequest, timeout_s: float) -> pb.HeartbeatReply:
        """Raises NotFound (no such group), Fenced (another session has the instance id), Unavailable, ..."""
        reply: pb.HeartbeatReply = await self._ask(request, timeout_s)
        return reply

    async def assignment(self, request: pb.AwaitAssignmentRequest, timeout_s: float) -> pb.AwaitAssignmentReply:
        """Raises as `heartbeat`."""
        reply: pb.AwaitAssignmentReply = await self._ask(request, timeout_s)
        return reply

    async def members(self, request: pb.ListMembersRequest, timeout_s: float) -> pb.ListMembersReply:
        """Raises as `heartbeat`."""
        reply: pb.ListMembersReply = await self._ask(request, timeout_s)
        return reply

    async def _ask(self, request: Any, timeout_s: float) -> Any:
        left: Callable[[], float] = self._cluster.countdown(timeout_s)
        topic = await self._cluster.topic(COORDINATOR_TOPIC, timeout_s)
        number = topic.numbers[crc32(self._group.encode()) % len(topic.numbers)]
        try:
            return await ask_leader(self._cluster, topic, number, request, timeout_s=max(0.05, left()), changes=False)
        except NotFound as error:
            if COORDINATOR_TOPIC in error.message:
                raise OutcomeUnknown(error.message) from None
            raise

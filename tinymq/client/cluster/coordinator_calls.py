"""The calls of a member to the coordinator of its group, which they find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from tinymq.base.errors import NotFound, OutcomeUnknown
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leader_calls import ask_leader
from tinymq.client.cluster.routing import Topic
from tinymq.proto import tinymq_pb2 as pb

COORDINATOR_TOPIC = "__coordinator"


async def coordinator_of(cluster: Cluster, name: str, timeout_s: float) -> tuple[Topic, int]:
    """Return the topic `__coordinator`, and the number of its partition that has the group or transactional id `name`.

    Raises UnknownTopic while the cluster has neither groups nor transactional ids.
    """
    topic = await cluster.topic(COORDINATOR_TOPIC, timeout_s)
    return topic, topic.numbers[crc32(name.encode()) % len(topic.numbers)]


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
        topic, number = await coordinator_of(self._cluster, self._group, timeout_s)
        try:
            return await ask_leader(self._cluster, topic, number, request, timeout_s=max(0.05, left()), changes=False)
        except NotFound as error:
            if COORDINATOR_TOPIC in error.message:
                raise OutcomeUnknown(error.message) from None
            raise

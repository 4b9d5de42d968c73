"""Transfers a partition's leadership on behalf of a user."""

from __future__ import annotations

from tinymq.base.errors import BrokerUnreachable, NotLeader
from tinymq.base.retry import Backoff
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leader_calls import topic_with
from tinymq.proto import tinymq_pb2 as pb

PAUSE_S = 0.1  # between two attempts to find the leader
ANSWER_S = 0.5  # the broker gives up so long before the client does, so that its answer arrives


async def transfer_leader(cluster: Cluster, name: str, partition: int, to: int, timeout_s: float) -> int:
    """Ask the partition's leader to make `to` the leader, and return the new leader's id.

    With `to` 0 the leader chooses. A leader that cannot transfer now is not asked again: its error is raised. Only a
    leader that is unknown or unreachable is looked for until the deadline. Raises as `AsyncAdmin.transfer_leader`.
    """
    left = cluster.countdown(timeout_s)
    topic = await topic_with(cluster, name, partition, timeout_s)
    last: BrokerUnreachable | NotLeader  # set by the first attempt, which is always made
    async for attempt in cluster.attempts(left(), Backoff(PAUSE_S, PAUSE_S), stop_s=PAUSE_S):
        address = cluster.view.address(cluster.view.partition(name, partition).leader)
        last = NotLeader(f"{name}/{partition}: no leader is known")
        if address is not None:
            wait_s = max(0.001, attempt.left_s - min(ANSWER_S, attempt.left_s / 2))
            request = pb.TransferLeaderRequest(
                topic=name, partition=partition, to=to, timeout_ms=max(1, int(wait_s * 1000))
            )
            try:
                reply = await cluster.ask_broker(address, request, max(0.001, attempt.left_s))
            except NotLeader as error:
                last = error
                if cluster.learn(topic.name, partition, error):
                    attempt.at_once()
            except BrokerUnreachable as error:
                last = error
            else:
                cluster.refresh_soon()
                return int(reply.leader)
    raise last

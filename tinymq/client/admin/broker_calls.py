"""How the admin asks brokers: a change that any broker can make once, or a question for each broker.

Both have one convention for errors. A change raises what a broker answered, as `Cluster.ask` does. A question returns
the error of a broker in the place of its reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from tinymq.base.errors import TinymqError
from tinymq.client.admin import cluster_status
from tinymq.client.admin.cluster_status import ClusterStatus
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Broker
from tinymq.proto import tinymq_pb2 as pb

COMMAND_ID_BYTES = 16
LEADERS_WAIT_S_MAX = 10.0  # how long a broker waits for new partitions to have leaders
ANSWER_S = 1.0  # for such a broker's answer to arrive, after that wait
BROKER_TIMEOUT_S = 2.0  # for one broker's answer, when all of them are asked: a dead broker delays the call this long
TIMEOUT_S_MIN = 0.001

Replies = Mapping[int, Any]
"""By broker id: the broker's reply, or the TinymqError that came instead of it."""


def answers_of(replies: Replies) -> dict[int, Any]:
    """The replies without the errors. Raises the last error if there is nothing else."""
    answers = {broker: reply for broker, reply in replies.items() if not isinstance(reply, TinymqError)}
    errors = [reply for reply in replies.values() if isinstance(reply, TinymqError)]
    if errors and not answers:
        raise errors[-1]
    return answers


class BrokerCalls:
    """The calls of an admin that concern no single partition."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def change(self, request: Any, timeout_s: float, *, waits_for_leaders: bool = False) -> Any:
        """Ask any broker for a change until one has decided it, and return the reply.

        Sets the request's `timeout_ms`, and its `command_id`, by which brokers recognise a request that is sent again:
        the change is made once. Raises as `Cluster.ask`.
        """
        wait_s = min(LEADERS_WAIT_S_MAX, timeout_s) if waits_for_leaders else timeout_s
        request.timeout_ms = int(wait_s * 1000)
        request.command_id = self._cluster.rng.randbytes(COMMAND_ID_BYTES)
        attempt_s = wait_s + ANSWER_S if waits_for_leaders else None
        return await self._cluster.ask(request, timeout_s=timeout_s, attempt_s=attempt_s, changes=True)

    async def each(self, request: Any, timeout_s: float) -> Replies:
        """Ask each broker that the registry knows now. `answers_of` leaves out the errors."""
        left = self._cluster.countdown(timeout_s)
        view = await self._cluster.refresh(timeout_s=left())
        return await self.each_of(view.brokers.values(), request, left())

    async def status(self, timeout_s: float) -> ClusterStatus:
        """The state of each broker, with the topics as the best informed broker has them."""
        left = self._cluster.countdown(timeout_s)
        view = await self._cluster.refresh(timeout_s=left())
        brokers = sorted(view.brokers.values(), key=lambda broker: broker.broker_id)
        replies, topics = await asyncio.gather(
            self.each_of(brokers, pb.ClusterStatusRequest(), left()),
            self.each_of(brokers, pb.MetadataRequest(all=True), left()),
        )
        newest = cluster_status.newest_topics(topics.values())
        return cluster_status.summarise(view.cluster_id, brokers, replies, newest)

    async def each_of(self, brokers: Iterable[Broker], request: Any, timeout_s: float) -> Replies:
        """Ask each of these brokers, all at the same time."""
        broker_s = min(BROKER_TIMEOUT_S, max(TIMEOUT_S_MIN, timeout_s))

        async def ask(broker: Broker) -> Any:
            try:
                return await self._cluster.ask_broker(broker.address, request, broker_s)
            except TinymqError as error:
                return error

        asked = list(brokers)
        replies = await asyncio.gather(*map(ask, asked))
        return {broker.broker_id: reply for broker, reply in zip(asked, replies, strict=True)}

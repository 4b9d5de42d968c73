"""The questions of this broker's leaders about transactions, gathered into one request for each coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tinymq.base.errors import InvalidRequest, NotReady, TinymqError
from tinymq.base.types import GroupId, PartitionId, TopicId
from tinymq.broker.coordinator.transaction_coordinator import StandingQuestion
from tinymq.broker.groups.groups import COORDINATOR_TOPIC
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.rules import PARTITIONS_MAX, Standing
from tinymq.registry.service import RegistryService

Ask = Callable[[GroupId, Sequence[StandingQuestion]], Awaitable[Sequence[Standing]]]
"""PeerTransactionCalls.standings."""

Waiting = list[tuple[StandingQuestion, "asyncio.Future[Standing]"]]


class StandingQuestions:
    """One request to each coordinator is under way. Questions that come meanwhile travel with the next one.

    So an answer is never older than its question: a question does not join a request that has been sent.
    """

    def __init__(self, registry: RegistryService, ask: Ask) -> None:
        self._registry = registry
        self._ask = ask
        self._waiting: dict[int, Waiting] = {}  # by the coordinator's number
        self._sending: dict[int, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        """End the requests under way. The callers that wait are cancelled."""
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def ask(
        self, place: PartitionId, transaction: TransactionId, coordinator: int, *, end: bool = False
    ) -> Standing:
        """The standing of a transaction at the partition `coordinator` of `__coordinator`. With `end`, it is rolled
        back first if it is open.

        Raises InvalidRequest (there is no such partition), and as `PeerTransactionCalls.standings`.
        """
        group = self._group(coordinator)
        answer: asyncio.Future[Standing] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(coordinator, []).append((StandingQuestion(transaction, place, end), answer))
        if coordinator not in self._sending:
            self._sending[coordinator] = asyncio.get_running_loop().create_task(self._send(coordinator, group))
        return await answer

    def _group(self, coordinator: int) -> GroupId:
        topic = self._registry.get_topic(COORDINATOR_TOPIC)
        if topic is None:
            raise NotReady(f"the topic {COORDINATOR_TOPIC} is not known here yet")
        if coordinator >= len(topic.queues):
            raise InvalidRequest(f"{COORDINATOR_TOPIC} has no partition {coordinator}")
        return GroupId(TopicId(topic.topic_id), coordinator)

    async def _send(self, coordinator: int, group: GroupId) -> None:
        """Send the waiting questions, request after request, until none is left."""
        asked: Waiting = []
        try:
            while waiting := self._waiting.pop(coordinator, []):
                asked, rest = waiting[:PARTITIONS_MAX], waiting[PARTITIONS_MAX:]
                if rest:
                    self._waiting[coordinator] = rest
                await self._request(group, asked)
        finally:
            del self._sending[coordinator]
            for _, answer in (*asked, *self._waiting.pop(coordinator, ())):
                answer.cancel()  # this changes only questions without an answer, which exist only when the broker stops

    async def _request(self, group: GroupId, asked: Waiting) -> None:
        try:
            standings = await self._ask(group, [question for question, _ in asked])
        except TinymqError as error:
            for _, answer in asked:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), standing in zip(asked, standings, strict=True):
            if not answer.done():
                answer.set_result(standing)

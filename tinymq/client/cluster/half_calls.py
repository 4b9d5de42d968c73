"""The calls on one producer group to its coordinator, which they find. Each call is idempotent, and is repeated until
its deadline.

At the deadline a call raises OutcomeUnknown if an attempt may have taken effect, else DeadlineExceeded.
"""

from __future__ import annotations

from typing import Any

from tinymq.base.errors import TinymqError, UnknownTopic
from tinymq.client.cluster.cluster import JITTERED, Cluster
from tinymq.client.cluster.coordinator_calls import coordinator_of
from tinymq.client.cluster.leader_calls import ATTEMPT_S_MIN, at_leader
from tinymq.client.cluster.transactional_id_calls import COMMIT_PART, Place
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.methods import method_of


class HalfCalls:
    """Finds the partition of `__coordinator` that has the producer group, and asks its leader."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group

    async def begin(
        self, place: Place, context: bytes, check_after_ms: int, timeout_s: float
    ) -> pb.BeginHalfMessageReply:
        """Begin a half message in a partition. Raises InvalidName, Denied, QuotaExceeded (too many are open)."""
        topic_id, partition = place
        request = pb.BeginHalfMessageRequest(
            producer_group=self._group, topic_id=topic_id, partition=partition, context=context,
            check_after_ms=check_after_ms,
        )  # fmt: skip
        reply: pb.BeginHalfMessageReply = await self._ask_first(request, timeout_s)
        return reply

    async def end(self, transaction: pb.TransactionRef, commit: bool, timeout_s: float, *, visible: bool) -> bool:
        """Commit a half message, or roll it back. With `visible`, wait until the partition shows a committed one.
        Returns whether it does.

        Raises TransactionAborted (a commit of what is rolled back), InvalidRequest (a roll-back of what is committed),
        OutcomeUnknown. Once it is decided as asked, it raises nothing.
        """
        request = pb.EndHalfMessageRequest(
            producer_group=self._group, transaction=transaction, commit=commit, visible=visible
        )
        left = self._cluster.countdown(timeout_s)
        reply: pb.EndHalfMessageReply = await self._ask(request, timeout_s)
        async for _ in self._cluster.attempts(left(), JITTERED):
            if reply.visible or not (commit and visible) or not left():
                break
            try:
                reply = await self._ask(request, left())
            except TinymqError:
                continue  # it is decided; nobody says whether it is visible
        return reply.visible

    async def checks(self, member: bytes, most: int, wait_s: float) -> pb.AwaitChecksReply:
        """Half messages to check, as soon as there are some, or nothing after `wait_s` seconds.

        Raises InvalidName, Denied, UnsupportedVersion, QuotaExceeded (too many checkers).
        """
        request = pb.AwaitChecksRequest(
            producer_group=self._group, member=member, checks_max=most, wait_ms=int(wait_s * 1000)
        )
        reply: pb.AwaitChecksReply = await self._ask_first(request, wait_s + self._cluster.attempt_s, changes=False)
        return reply

    async def count(self, transaction: pb.TransactionRef, number: int, timeout_s: float) -> None:
        """Answer a check without an outcome."""
        request = pb.CountCheckRequest(producer_group=self._group, transaction=transaction, number=number)
        await self._ask(request, timeout_s)

    async def _ask_first(self, request: Any, timeout_s: float, *, changes: bool = True) -> Any:
        """As `_ask`. The cluster's first call makes the topic; after that, this finds the topic's leader."""
        left = self._cluster.countdown(timeout_s)
        try:
            return await self._ask(request, timeout_s, changes=changes)
        except UnknownTopic:
            try:
                await coordinator_of(self._cluster, self._group, left())
            except UnknownTopic:
                return await self._cluster.ask(request, timeout_s=max(ATTEMPT_S_MIN, left()), changes=changes)
            # Another call has made it meanwhile. Or it is another topic that does not exist: then it is missing again.
            return await self._ask(request, max(ATTEMPT_S_MIN, left()), changes=changes)

    async def _ask(self, request: Any, timeout_s: float, *, changes: bool = True) -> Any:
        left = self._cluster.countdown(timeout_s)
        topic, number = await coordinator_of(self._cluster, self._group, timeout_s)

        async def ask(address: str, left_s: float) -> Any:
            waits_s = request.wait_ms / 1000 if isinstance(request, pb.AwaitChecksRequest) else 0.0
            attempt_s = max(ATTEMPT_S_MIN, min(left_s, self._cluster.attempt_s + waits_s))
            if isinstance(request, pb.EndHalfMessageRequest):
                request.timeout_ms = max(1, int(attempt_s * COMMIT_PART * 1000))
            return await self._cluster.ask_broker(address, request, attempt_s)

        what, left_s = f"{method_of(request).name} of {self._group!r}", max(ATTEMPT_S_MIN, left())
        return await at_leader(self._cluster, topic, number, ask, what=what, timeout_s=left_s, changes=changes)

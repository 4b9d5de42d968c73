"""Calls that only a partition's leader answers: find the leader, and ask it until it answers or the time is up.

Every request here has the same effect when it is sent twice, so an attempt without an answer is made again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tinymq.base.errors import (
    DeadlineExceeded,
    Held,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
    UnknownPartition,
    UnknownTopic,
)
from tinymq.client.cluster import lookups
from tinymq.client.cluster.call_errors import UNCLEAR_HINT, may_pass
from tinymq.client.cluster.cluster import JITTERED, Cluster
from tinymq.client.cluster.routing import Topic
from tinymq.proto.methods import method_of

ATTEMPT_S_MIN = 0.001
LAST_ATTEMPT_S = 0.1  # once a broker has answered, no attempt begins with less time left
REFUSED_ATTEMPT_S = 0.5  # the same bound after a leader's refusal; half of the call's time if that is less


async def topic_with(cluster: Cluster, name: str, partition: int, timeout_s: float, *, create: bool = False) -> Topic:
    """Return a topic that has this partition, as tinymq.client.cluster.lookups.topic_with."""
    return await lookups.topic_with(cluster, name, (partition,), timeout_s, create=create)


def no_refusal(_reply: Any) -> TinymqError | None:
    """Return None, for replies whose items have no errors of their own."""
    return None


async def ask_leader(
    cluster: Cluster,
    topic: Topic,
    partition: int,
    request: Any,
    *,
    timeout_s: float,
    refusal: Callable[[Any], TinymqError | None] = no_refusal,
    changes: bool = True,
) -> Any:
    """Return the leader's reply to `request`. Arguments and errors as `at_leader`."""

    async def ask(address: str, left_s: float) -> Any:
        attempt_s = max(ATTEMPT_S_MIN, min(left_s, cluster.attempt_s))
        if "timeout_ms" in request.DESCRIPTOR.fields_by_name:
            request.timeout_ms = max(1, int(attempt_s * 1000))
        return await cluster.ask_broker(address, request, attempt_s)

    what = method_of(request).name
    return await at_leader(
        cluster, topic, partition, ask, what=what, timeout_s=timeout_s, refusal=refusal, changes=changes
    )  # fmt: skip


async def at_leader(
    cluster: Cluster,
    topic: Topic,
    partition: int,
    ask: Callable[[str, float], Awaitable[Any]],
    *,
    what: str,
    timeout_s: float,
    refusal: Callable[[Any], TinymqError | None] = no_refusal,
    changes: bool = True,
    repeatable: bool = True,
    goes_on: Callable[[bool], bool] = lambda unclear: True,
) -> Any:
    """Call `ask` with the leader's address and the seconds left, until it returns a reply; return that.

    `refusal` finds the error of an item in a reply. `changes`: the question does more than look. `repeatable`: it may
    be asked again after an unknown outcome. `goes_on` decides after a failure that may pass whether to go on; its
    argument says whether an attempt had an unknown outcome. `what` names the question in errors.

    Raises a definite error of the leader. At the deadline it raises OutcomeUnknown if an attempt may have taken effect,
    else the last refusal (Held, QuotaExceeded), else DeadlineExceeded. An error that follows an attempt of unknown
    outcome has the detail `unclear`.
    """
    reasons: dict[str, str] = {}
    last: TinymqError | None = None
    refused: TinymqError | None = None  # the last refusal by a leader
    unclear = False
    async for attempt in cluster.attempts(timeout_s, JITTERED):
        address = await _leader(cluster, topic, partition)
        if address is not None:
            try:
                reply = await ask(address, attempt.left_s)
                last = refusal(reply)
            except TinymqError as error:
                last = error
            if last is None:
                return reply
            reasons[address] = last.message.removeprefix(f"{address}: ")
            unclear = unclear or (changes and isinstance(last, OutcomeUnknown))
            if not isinstance(last, DeadlineExceeded):
                refused = last if isinstance(last, Held | QuotaExceeded) else None
            if isinstance(last, NotLeader) and cluster.learn(topic.name, partition, last):
                attempt.at_once()
                continue
            if isinstance(last, OutcomeUnknown) and not repeatable:
                raise last
            if not await passes(cluster, topic, partition, last):
                if unclear:
                    last.detail["unclear"] = "true"
                raise last
        if not goes_on(unclear):
            if unclear:
                break
            raise last or NotReady(f"{topic.name}/{partition}: no leader is known")
        # An attempt with little time left would end in silence, and hide the answer that a leader has given.
        attempt.reserve_s = LAST_ATTEMPT_S if refused is None else min(REFUSED_ATTEMPT_S, timeout_s / 2)
        attempt.stop_s = attempt.reserve_s if last is not None else 0.0
    within = f"{what} of {topic.name}/{partition} within {timeout_s:.3g} s"
    raise _give_up(within, tried=cluster.trouble(reasons), refused=refused, unclear=unclear)


async def _leader(cluster: Cluster, topic: Topic, partition: int) -> str | None:
    """Return the address of the leader, as far as it is known. Raises if the partition does not exist any more."""
    try:
        placement = cluster.view.partition(topic.name, partition)
    except (UnknownTopic, UnknownPartition) as error:
        if not await passes(cluster, topic, partition, error):
            raise
        return None
    return cluster.view.address(placement.leader)


async def passes(cluster: Cluster, topic: Topic, partition: int, error: TinymqError) -> bool:
    """May the same request to the leader succeed soon?"""
    if isinstance(error, UnknownTopic | UnknownPartition):  # the broker may lag, and lack a new partition
        try:
            return await cluster.still_there(topic.name, topic.topic_id, cluster.attempt_s, partition)
        except TinymqError as unanswered:
            return unanswered.retriable or isinstance(unanswered, OutcomeUnknown)
    return may_pass(error)


def _give_up(what: str, *, tried: str, refused: TinymqError | None, unclear: bool) -> TinymqError:
    if unclear:
        return OutcomeUnknown(f"no answer to {what}, and it may have been done: {tried}", hint=UNCLEAR_HINT)
    if refused is not None:
        return refused
    return DeadlineExceeded(f"the leader did not answer {what}: {tried or 'no leader is known'}")

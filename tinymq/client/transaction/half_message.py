"""AsyncHalfMessage: a record that is stored, and delivered when its sender or a checker says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from tinymq.base.config import MIB
from tinymq.base.errors import BatchTooLarge, InvalidRequest, OutcomeUnknown, TinymqError, TransactionAborted
from tinymq.base.types import check_producer_group, transaction_name
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.half_calls import HalfCalls
from tinymq.client.common.argument_checks import WAIT_S_MIN, check_wait
from tinymq.client.common.config import ProducerConfig
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.produce.delivery import staged_delivery_of
from tinymq.client.produce.producer import LEAVING_IN_ERROR_S, ProducerCore
from tinymq.client.transaction.half_staging import HalfStaging
from tinymq.client.transaction.refusals import aborted_by
from tinymq.client.transaction.transaction import Wait

LOG = logging.getLogger("tinymq.client")

CheckAfter = timedelta | float
"""How long after it is stored a half message is checked first: a timedelta, or seconds."""

CHECK_AFTER_S = 6.0
CHECK_AFTER_S_MIN, CHECK_AFTER_S_MAX = 1.0, 3600.0
CONTEXT_BYTES_MAX = 4096
BYTES_MAX = MIB - 16 * 1024  # of its record: what a checker can be shown
DROPPING_SHARE = 0.25  # of the call's time, LEAVING_IN_ERROR_S at most: kept for the roll-back, if it is not stored
STAGED_S_MAX = 60.0  # after twice this time, brokers drop a half message that was begun and never stored
UNKNOWN_HINT = "call it again; if nobody answers, the checkers of the producer group are asked"


class AsyncHalfMessage:
    """A half message: a record that is on a majority of disks, and that nobody sees before it is committed. Made by
    AsyncClient.half_message().

        half = await mq.half_message("orders", b"...", producer_group="checkout", context=b"order 42")
        paid = True  # what a transaction of your own came to
        if paid:
            await half.commit()
        else:
            await half.rollback()
        print(half.name, half.topic, half.partition, half.producer_group)

    If neither is called, a checker of the producer group is asked (AsyncClient.checker). For one task at a time.
    """

    name: str
    """The name under which `tinymq half list` shows it, such as "1042-0-1"."""
    producer_group: str
    """The group whose checkers are asked."""
    topic: str
    """The topic of the record."""
    partition: int
    """The partition of the record."""

    def __init__(self, cluster: Cluster, calls: HalfCalls, producer_group: str) -> None:
        self.producer_group = producer_group
        self._cluster = cluster
        self._calls = calls
        self._outcome: bool | None = None  # True: committed; False: rolled back

    def __repr__(self) -> str:
        state = {None: "open", True: "committed", False: "rolled back"}[self._outcome]
        return (
            f"<{type(self).__name__} {self.name} of {self.producer_group!r} in {self.topic}/{self.partition}, {state}>"
        )

    async def commit(self, wait: Wait = "visible", *, timeout: float | None = None) -> bool:
        """Deliver the record. Returns whether its partition shows it already.

        Waits until the decision is on a majority of disks: from then on it is irrevocable. With wait="visible" it also
        waits until the partition shows the record; if the time is up before that, it returns False, and the record
        follows. `timeout` in seconds; request_timeout_ms if not given. A second call is answered alike.

        Raises TransactionAborted (it was rolled back: by a checker, by a person, or because nobody knew its outcome),
        OutcomeUnknown (no coordinator has answered: call it again), DeadlineExceeded (it is not decided), Denied.
        """
        if wait not in ("visible", "decided"):
            raise InvalidRequest(f"wait={wait!r}", hint="one of 'visible', 'decided'")
        return await self._end(True, timeout, visible=wait == "visible")

    async def rollback(self, *, timeout: float | None = None) -> None:
        """Drop the record: nobody will ever see it. A second call does nothing.

        `timeout` in seconds; request_timeout_ms if not given. Raises InvalidRequest (it is committed), OutcomeUnknown,
        DeadlineExceeded, Denied.
        """
        await self._end(False, timeout, visible=False)

    async def _end(self, commit: bool, timeout: float | None, *, visible: bool) -> bool:
        self._cluster.check_loop()
        check_wait(timeout, least_s=WAIT_S_MIN)
        timeout_s = self._cluster.config.request_timeout_ms / 1000 if timeout is None else timeout
        try:
            shown = await self._calls.end(self._transaction, commit, timeout_s, visible=visible)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(error.message, hint=UNKNOWN_HINT, **error.detail) from error
        except TransactionAborted:
            self._outcome = False
            raise
        self._outcome = commit
        return shown

    def _staged(self, staging: HalfStaging, topic: str, partition: int) -> None:
        assert staging.begun is not None, "it is staged"
        self._transaction = ref = staging.begun.transaction
        self.name = transaction_name(ref.producer_id, ref.epoch, ref.number)
        self.topic, self.partition = topic, partition


async def send_half_message(
    cluster: Cluster, wake: Callable[[Callable[[], None]], None], topic: str, value: bytes | None, *,
    producer_group: str, context: bytes, key: bytes | None, headers: HeadersLike | None, timestamp: Timestamp | None,
    partition: int | None, check_after: CheckAfter, timeout: float | None,
) -> AsyncHalfMessage:  # fmt: skip
    """Store a half message. See AsyncClient.half_message."""
    check_after_ms = _check(producer_group, context, key, value, check_after, timeout)
    timeout_s = min(STAGED_S_MAX, cluster.config.request_timeout_ms / 1000 if timeout is None else timeout)
    storing_s = timeout_s - min(LEAVING_IN_ERROR_S, DROPPING_SHARE * timeout_s)
    calls, left = HalfCalls(cluster, producer_group), cluster.countdown(timeout_s)
    staging = HalfStaging(calls, context, check_after_ms, cluster.countdown(storing_s))
    timeout_ms = max(1, int(storing_s * 1000))
    config = ProducerConfig(linger_ms=0, delivery_timeout_ms=timeout_ms, block_ms_max=timeout_ms)
    producer = ProducerCore(cluster, config, wake, staging)
    staging.on_failed = lambda error: cluster.loop.call_soon(producer.abandon, error)
    half = AsyncHalfMessage(cluster, calls, producer_group)
    try:
        delivery = await producer.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)
        staged = await staged_delivery_of(delivery)
        if not left():  # the brokers may have dropped it by now
            raise TransactionAborted("the half message was not stored in time")
    except BaseException as error:
        await staging.close()
        producer.abandon(TransactionAborted("the half message was not stored"))
        await _drop(calls, staging, min(LEAVING_IN_ERROR_S, left()))
        if not isinstance(error, TinymqError) or staging.begun is None or aborted_by(error) is error:
            raise
        raise aborted_by(error) from error
    producer.abandon(TransactionAborted("the half message is stored"))
    half._staged(staging, staged.topic, staged.partition)
    return half


async def _drop(calls: HalfCalls, staging: HalfStaging, timeout_s: float) -> None:
    """Roll back a half message that was begun, and perhaps stored, so that no checker has to be asked about it."""
    if staging.begun is not None:
        try:
            await asyncio.shield(calls.end(staging.begun.transaction, False, timeout_s, visible=False))
        except TinymqError as error:
            LOG.info("a half message that was not stored is rolled back later: %s", error)


def _check(
    producer_group: object, context: object, key: bytes | None, value: bytes | None, check_after: CheckAfter,
    timeout: float | None,
) -> int:  # fmt: skip
    """Check the arguments. Returns when the first check is due, in milliseconds."""
    if not isinstance(producer_group, str):
        raise InvalidRequest(f"producer_group={producer_group!r:.300}", hint="pass a name as text, such as 'checkout'")
    check_producer_group(producer_group)
    if not isinstance(context, bytes) or len(context) > CONTEXT_BYTES_MAX:
        raise InvalidRequest(f"context={context!r:.100}", hint=f"pass up to {CONTEXT_BYTES_MAX} bytes")
    check_wait(timeout, least_s=WAIT_S_MIN)
    size = len(value or b"") + len(key or b"")
    if size > BYTES_MAX:
        raise BatchTooLarge(
            f"a half message of {size} bytes", hint=f"at most {BYTES_MAX}: a checker is shown all of it"
        )
    seconds = check_after.total_seconds() if isinstance(check_after, timedelta) else check_after
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not CHECK_AFTER_S_MIN <= seconds <= CHECK_AFTER_S_MAX:  # NaN is not, either
        raise InvalidRequest(f"check_after={check_after!r}", hint="pass a timedelta or seconds, from 1 s to 1 h")
    return int(seconds * 1000)

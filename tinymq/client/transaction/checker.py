"""AsyncChecker: answers for half messages whose senders neither committed nor rolled them back."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from tinymq.base.errors import Closed, Denied, InvalidRequest, TinymqError
from tinymq.base.types import check_producer_group, transaction_name
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.half_calls import HalfCalls
from tinymq.client.common.argument_checks import check_count, check_wait
from tinymq.client.transaction.half_check import HalfCheck, Verdict, parse_check
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

CheckHandler = Callable[[HalfCheck], Verdict | Awaitable[Verdict]]
"""Says what became of a half message. It is called in a thread, or awaited if it is `async`."""

CONCURRENCY, CONCURRENCY_MAX = 4, 64
MEMBER_BYTES = 16
WAIT_S = 5.0  # for something to check, in one call
RETRY_S = 0.5
STOP_TIMEOUT_S = 10.0


class AsyncChecker:
    """Answers for half messages of a producer group, from its making until `close`, or until its client is closed. Made
    by AsyncClient.checker().

        async def check(half):
            return "commit" if await orders.exist(half.context) else "rollback"

        async with mq.checker("checkout", check) as checker:
            print(checker.producer_group, checker.closed)

    A program that does nothing else calls `checker.wait()` there.

    Any number of programs may check for one group; each half message is shown to one of them at a time.
    """

    producer_group: str
    """The group for which it answers."""

    def __init__(self, cluster: Cluster, producer_group: str, handler: CheckHandler, concurrency: int) -> None:
        if not isinstance(producer_group, str):
            raise InvalidRequest(f"producer_group={producer_group!r:.300}", hint="pass a name as text")
        if not callable(handler):
            raise InvalidRequest(f"{handler!r:.100} is no handler", hint="pass a function of one argument")
        self.producer_group = check_producer_group(producer_group)
        self._concurrency = check_count("concurrency", concurrency, 1, CONCURRENCY_MAX)
        self._cluster = cluster
        self._handler = handler
        self._calls = HalfCalls(cluster, self.producer_group)
        self._member = os.urandom(MEMBER_BYTES)
        self._timeout_s = cluster.config.request_timeout_ms / 1000
        self._pool: ThreadPoolExecutor | None = None
        if not _is_async(handler):
            self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix=f"tinymq-{self.producer_group}")
        self._running: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()  # a handler has ended
        self._failure: TinymqError | None = None
        self._closed = False
        self._polling = cluster.loop.create_task(self._poll())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.producer_group!r}{' (closed)' if self._closed else ''}>"

    @property
    def closed(self) -> bool:
        """Has it ended? Then it answers nothing more."""
        return self._closed

    async def wait(self) -> None:
        """Wait until the checker ends: by `close`, or because it cannot go on. Raises why: Denied, UnsupportedVersion,
        QuotaExceeded (too many checkers)."""
        self._cluster.check_loop()
        await asyncio.wait([self._polling])
        if self._failure is not None:
            raise self._failure

    async def close(self, timeout: float | None = STOP_TIMEOUT_S) -> None:
        """Take no further checks, and wait for the handlers that have begun, up to `timeout` seconds; None: without a
        limit. Checks without an answer go to another checker. A second call does nothing."""
        self._cluster.check_loop()
        check_wait(timeout)
        self._closed = True
        self._polling.cancel()
        await asyncio.gather(self._polling, return_exceptions=True)
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=timeout)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- checks

    async def _poll(self) -> None:
        """Take checks, as many as handlers are free, until `close`."""
        while True:
            self._freed.clear()
            free = self._concurrency - len(self._running)
            if not free:
                await self._freed.wait()
                continue
            try:
                reply = await self._calls.checks(self._member, free, min(WAIT_S, self._timeout_s))
            except (Denied, InvalidRequest) as error:
                LOG.error("checks for the producer group %s end: %s", self.producer_group, error)
                self._failure, self._closed = error, True
                return
            except Closed:
                return
            except TinymqError as error:
                LOG.debug("no checks for the producer group %s: %s", self.producer_group, error)
                await self._cluster.clock.sleep(RETRY_S)
                continue
            for message in reply.checks:
                task = asyncio.create_task(self._check(message))
                self._running.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._freed.set()

    async def _check(self, message: pb.HalfMessageCheck) -> None:
        ref = message.transaction
        name = transaction_name(ref.producer_id, ref.epoch, ref.number)
        try:
            limits = self._cluster.config.limits
            verdict = await self._ask(
                parse_check(message, self.producer_group, name, await self._topic(message.topic_id), limits)
            )
        except Exception:
            LOG.exception("the checker of %s failed for %s, which is checked again", self.producer_group, name)
            return
        try:
            if verdict == "unknown":
                await self._calls.count(ref, message.number, self._timeout_s)
            else:
                await self._calls.end(ref, verdict == "commit", self._timeout_s, visible=False)
        except TinymqError as error:  # the half message is decided, perhaps otherwise, or it will be checked again
            LOG.warning("half message %s of %s, answered with %s: %s", name, self.producer_group, verdict, error)

    async def _ask(self, check: HalfCheck) -> Verdict:
        """Call the handler. Raises the handler's exception, and InvalidRequest for an answer that is not a verdict."""
        if self._pool is not None:
            verdict = await asyncio.get_running_loop().run_in_executor(self._pool, self._handler, check)
        else:
            verdict = self._handler(check)
        if inspect.isawaitable(verdict):
            verdict = await verdict
        if verdict not in ("commit", "rollback", "unknown"):
            raise InvalidRequest(
                f"a checker answered {verdict!r:.100}", hint="return 'commit', 'rollback' or 'unknown'"
            )
        return verdict

    async def _topic(self, topic_id: bytes) -> str:
        """The name of a topic, or its id in hex if it was deleted."""
        for refreshed in (False, True):
            if refreshed:
                await self._cluster.refresh(timeout_s=self._timeout_s, every=True)
            for topic in self._cluster.view.topics.values():
                if topic.topic_id == topic_id:
                    return topic.name
        return topic_id.hex()


def _is_async(handler: CheckHandler) -> bool:
    call = getattr(handler, "__call__", None)  # noqa: B004 - of an object whose class defines `async __call__`
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)

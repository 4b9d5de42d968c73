"""The methods of ClientCore for half messages: a part of that class, so that its file stays short."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.facade.core.lazy_cluster import LazyCluster
from tinymq.client.facade.core.opened import OpenedObjects
from tinymq.client.transaction.checker import CONCURRENCY, AsyncChecker, CheckHandler
from tinymq.client.transaction.half_message import CHECK_AFTER_S, AsyncHalfMessage, CheckAfter, send_half_message


class HalfMessaging(ABC):
    """Stores half messages, and checks them."""

    _connection: LazyCluster
    _opened: OpenedObjects

    @abstractmethod
    def cluster(self) -> Cluster: ...

    async def half_message(
        self, topic: str, value: bytes | None, *, producer_group: str, context: bytes = b"", key: bytes | None = None,
        headers: HeadersLike | None = None, timestamp: Timestamp | None = None, partition: int | None = None,
        check_after: CheckAfter = CHECK_AFTER_S, timeout: float | None = None,
    ) -> AsyncHalfMessage:  # fmt: skip
        """Store a record that nobody sees until it is committed, by its `commit` or by a checker.

        When this returns, the record is on a majority of disks: now run a transaction of your own, and then call
        `commit` or `rollback`. If neither is called, the checkers of `producer_group` are asked, `check_after` (a
        timedelta or seconds, 1 s to 1 h) after this and then every 30 s. `context`: up to 4 KiB for them. Key, headers,
        timestamp and partition as in `send`; up to about 1 MB together. `timeout` in seconds, 60 at most;
        request_timeout_ms if not given. See docs/half-messages.md.

        Raises TransactionAborted (it was not stored, and is never seen), UnknownTopic, InvalidRequest, InvalidName,
        BatchTooLarge, Denied, UnsupportedVersion.
        """
        return await send_half_message(
            self.cluster(), self._connection.call_soon, topic, value, producer_group=producer_group, context=context,
            key=key, headers=headers, timestamp=timestamp, partition=partition, check_after=check_after,
            timeout=timeout,
        )  # fmt: skip

    def checker(self, producer_group: str, handler: CheckHandler, *, concurrency: int = CONCURRENCY) -> AsyncChecker:
        """Answer for half messages of `producer_group` whose senders did not say what became of them, from now on.

        `handler` gets a HalfCheck and returns "commit", "rollback" or "unknown". An `async` one runs on the client's
        loop and must not block; others run in threads. `concurrency`: how many it handles at a time. If it raises, the
        half message is checked again. Ends with the client. See docs/half-messages.md.
        Raises InvalidRequest, InvalidName.
        """
        return self._opened.keep(AsyncChecker(self.cluster(), producer_group, handler, concurrency))

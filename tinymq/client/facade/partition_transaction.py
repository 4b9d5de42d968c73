"""PartitionTransaction: an AsyncPartitionTransaction for threads. `send` stays in the calling thread."""

from __future__ import annotations

from types import TracebackType

from tinymq.client.common.one_thread import OneThread
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.facade.generated.partition_transaction import PartitionTransactionCalls
from tinymq.client.facade.loop_thread import LoopThread
from tinymq.client.transaction.partition_transaction import PartitionTransactionCore
from tinymq.client.transaction.refusals import check_plain


class PartitionTransaction(PartitionTransactionCalls):
    """A transaction of one partition. Made by Client.transaction() without an id; use it in `with`, which commits at
    the end, and drops the records if an exception leaves the block. One thread at a time sends.

        with mq.transaction() as tx:
            tx.send("orders", b"three pears", key=b"42")
            tx.send("orders", b"one plum", key=b"42")
        print(tx.visible)

    Single steps:

        tx = mq.transaction()
        tx.send_batch("orders", pa.table({"value": [b"one", b"two"]}))
        tx.commit(timeout=10.0)
        mq.transaction().abort()
    """

    def __init__(self, loop_thread: LoopThread, asynchronous: PartitionTransactionCore) -> None:
        super().__init__(loop_thread, asynchronous)
        self._one_thread = OneThread("transaction")

    def __repr__(self) -> str:
        return repr(self._async).replace("AsyncPartitionTransaction", "PartitionTransaction", 1)

    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: None = None, delay: None = None,
        deliver_at: None = None,
    ) -> None:  # fmt: skip
        """Add one record. It is kept in memory until the commit.

        All records go to one topic, and to one partition: the named one, or that of their keys, or any. A message_id, a
        delay and deliver_at are refused. Raises InvalidRequest, BatchTooLarge, Closed; the transaction stays as it is.
        """
        with self._one_thread:
            check_plain(message_id, delay, deliver_at)
            self._async.append(topic, value, key, headers, timestamp, partition)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self._loop_thread.alive:  # after the client was closed, nothing is committed: Closed
            self._loop_thread.run(self._async.__aexit__(kind, error, trace))

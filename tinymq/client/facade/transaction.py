"""Transaction: an AsyncTransaction for threads. `send` stays in the calling thread until a batch is full."""

from __future__ import annotations

from types import TracebackType

from tinymq.client.common.one_thread import OneThread
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.facade.consumer import Consumer
from tinymq.client.facade.generated.transaction import TransactionCalls
from tinymq.client.facade.loop_thread import LoopThread
from tinymq.client.produce.delivery import StagedDelivery, staged_delivery_of
from tinymq.client.transaction.refusals import check_plain
from tinymq.client.transaction.transaction import TransactionCore


class Transaction(TransactionCalls):
    """A transaction. Made by Client.transaction(); use it in `with`, which commits at the end, and rolls back if an
    exception leaves the block. One thread at a time sends.

        with mq.transaction("billing-1") as tx:
            tx.send("orders", b"...", key=b"42")
            tx.send("emails", b"...")
        print(tx.visible, tx.number)

    Single steps:

        tx = mq.transaction("billing-1", transaction_timeout_ms=10_000)
        tx.begin()
        tx.send_batch("orders", pa.table({"value": [b"one", b"two"]}))
        tx.commit(wait="decided")
        again = mq.transaction("billing-1")
        print(again.take_id().decided_number)
        again.begin()
        again.abort()
        print(tx.transactional_id)
    """

    def __init__(self, loop_thread: LoopThread, asynchronous: TransactionCore) -> None:
        super().__init__(loop_thread, asynchronous)
        self._one_thread = OneThread("transaction")

    def __repr__(self) -> str:
        return repr(self._async).replace("AsyncTransaction", "Transaction", 1)

    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: None = None, delay: None = None,
        deliver_at: None = None,
    ) -> StagedDelivery:  # fmt: skip
        """Give one record its place in the transaction's buffer. Waits for room up to block_ms_max, then raises
        BufferFull.

        The delivery ends when the record is staged: on a majority of disks, without an offset. Nobody need wait for it,
        because `commit` does. A message_id, a delay and deliver_at are refused. Raises TransactionAborted, Fenced,
        UnknownTopic, InvalidRequest, BatchTooLarge.
        """
        with self._one_thread:
            check_plain(message_id, delay, deliver_at)
            delivery = self._async.append(topic, value, key, headers, timestamp, partition)
            if delivery is not None:
                return staged_delivery_of(delivery)
            return self._loop_thread.run(
                self._async.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)
            )

    def commit_offsets(self, consumer: Consumer) -> None:
        """Commit, with the transaction, everything that a consumer will have handed out by then.

        Call it at the beginning of the block, before anything can fail. If the transaction is not committed, the
        consumer hands out the same messages again, to this member or to another. The consumer is made with a group and
        auto_commit=False. Raises InvalidRequest, TransactionAborted, and what joining the group raises.

            with mq.consumer("orders", group="enricher", auto_commit=False) as consumer:
                while messages := consumer.poll(timeout=5.0):
                    with mq.transaction("enricher-1") as tx:
                        tx.commit_offsets(consumer)
                        for message in messages:
                            tx.send("emails", message.value)
        """
        self._loop_thread.run(self._async.commit_offsets(consumer._async))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self._loop_thread.alive:  # after the client was closed, nothing is committed: Closed
            self._loop_thread.run(self._async.__aexit__(kind, error, trace))

"""Queue: an AsyncQueue for threads. Messages at hand are taken in the calling thread, and pushes stay there until a
batch is full."""

from __future__ import annotations

from tinymq.base.errors import Closed
from tinymq.base.types import RecordMetadata
from tinymq.client.common.argument_checks import check_count, check_wait
from tinymq.client.common.one_thread import OneThread
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.consume.records import Message
from tinymq.client.facade.generated.queue import QueueCalls
from tinymq.client.facade.loop_thread import LoopThread
from tinymq.client.produce.delivery import Delivery
from tinymq.client.produce.producer import ProducerCore
from tinymq.client.queue.queue import QueueCore


class Queue(QueueCalls):
    """A partition as a queue, read through a channel. Made by Client.queue(). For one thread at a time.

        with mq.queue("orders", channel="billing") as queue:
            queue.push(b"...")
            for message in queue.poll(max_records=100, timeout=1.0):
                handle(message)

    The messages that were handed out are committed when more are asked for, or when the `with` block ends without an
    exception.

    Single steps:

        queue = mq.queue("tasks", 0, "audit", start="earliest")
        queue.open()
        queue.push_nowait(b"...")
        queue.flush()
        print(queue.topic, queue.partition, queue.channel, queue.position(), queue.size(), queue.skipped)
        print(queue.peek(), queue.get(0), queue.is_empty())
        print(queue.poll(10))
        queue.commit()
        queue.seek("latest")
        queue.remove_before(Offset(1))
        queue.close()
        mq.admin.add_partition("tasks")
        mq.queue("tasks", 1).delete()  # with all its messages
    """

    def __init__(self, loop_thread: LoopThread, asynchronous: QueueCore) -> None:
        super().__init__(loop_thread, asynchronous)
        self._producer: ProducerCore | None = None  # of the client, or the queue's own
        self._is_own_producer = False
        self._one_thread = OneThread("queue")

    def __repr__(self) -> str:
        return repr(self._async).replace("AsyncQueue", "Queue", 1)

    def __next__(self) -> Message:
        """The next message. Waits for it without a limit. The message before it is done with."""
        reader = self._async.reader
        with self._one_thread:
            messages = reader.take(1)
            while not messages:
                self._loop_thread.run(reader.arrival(None))
                messages = reader.take(1)
            return messages[0]

    def poll(self, max_records: int = 1, timeout: float | None = 0.0) -> list[Message]:
        """Up to `max_records` messages: at once if there are any, else after up to `timeout` seconds (None: no limit).

        [] means that there is none: the leader was asked. While no leader answers this waits beyond `timeout`, up to
        request_timeout_ms, and then raises. The messages handed out before are done with, and are committed within
        commit_interval_ms. Raises Fenced when another consumer took the channel over, or somebody moved its cursor;
        OffsetOutOfRange when the next message is gone (on_trimmed="skip" goes on behind it).
        """
        check_count("max_records", max_records, 1)
        check_wait(timeout)
        with self._one_thread:
            return self._async.reader.take(max_records) or self._loop_thread.run(self._async.poll(max_records, timeout))

    def push(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
    ) -> RecordMetadata:
        """Write one message to the partition, and wait until a majority has it on disk. As Client.send."""
        if self._producer is None:
            self._async.reader.check()
            self._producer = self._loop_thread.do(self._async.writer.producer)
        return self._send(self._producer, value, key, headers, timestamp).result()

    def push_nowait(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
    ) -> Delivery:
        """Write one message behind those pushed before, and do not wait for it: `flush` does. As Producer.send."""
        if self._producer is None or not self._is_own_producer:
            self._async.reader.check()
            self._producer = self._loop_thread.do(self._async.writer.own_producer)
            self._is_own_producer = True
        return self._send(self._producer, value, key, headers, timestamp)

    def _send(
        self,
        producer: ProducerCore,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersLike | None,
        timestamp: Timestamp | None,
    ) -> Delivery:
        if self._async.closed:
            raise Closed("the queue is closed")
        topic, partition = self._async.topic, self._async.partition
        delivery = producer.append(topic, value, key, headers, timestamp, partition)
        if delivery is None:
            work = producer.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)
            delivery = self._loop_thread.run(work)
        return delivery

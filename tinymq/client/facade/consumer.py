"""Consumer: an AsyncConsumer for threads. Messages that were fetched already are taken in the calling thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tinymq.client.common.argument_checks import check_count, check_wait
from tinymq.client.common.one_thread import OneThread
from tinymq.client.consume.message_iterator import message_iterator
from tinymq.client.consume.records import Message
from tinymq.client.facade.generated.consumer import ConsumerCalls
from tinymq.client.facade.loop_thread import LoopThread
from tinymq.client.group.consumer import ConsumerCore


class Consumer(ConsumerCalls):
    """Reads topics, as a member of a group. Made by Client.consumer(); joined by the first use. For one thread at a
    time.

        with mq.consumer("orders", group="billing") as orders:
            for message in orders:
                handle(message)

    A message is committed when the next one is asked for, or when the `with` block ends without an exception.

    Single steps:

        consumer = mq.consumer("orders", group="billing", auto_commit=False)
        consumer.open()
        print(consumer.poll(timeout=5.0), consumer.assignment(), consumer.position())
        consumer.commit()
        print(consumer.committed(), consumer.lag())
        consumer.pause([("orders", 0)])
        consumer.resume()
        consumer.seek("orders", 0, "earliest")
        consumer.close()
    """

    def __init__(self, loop_thread: LoopThread, asynchronous: ConsumerCore) -> None:
        super().__init__(loop_thread, asynchronous)
        self._one_thread = OneThread("consumer")

    def __iter__(self) -> Iterator[Message]:
        """The messages from here on. Waits for each, without a limit. Drawing one says that those before are done.
        Raises as `next` does, and can be used after that."""
        return message_iterator(self._more_at_hand)

    def _more_at_hand(self) -> Iterator[Message]:
        """Wait for the next messages to be drawn."""
        with self._one_thread:
            while not self._async.more():
                self._loop_thread.run(self._async.arrival(None))
            return self._async.batch()

    def __next__(self) -> Message:
        """The next message. Waits for it without a limit. Messages that were handed out before count as done."""
        while True:
            for message in self._async.at_hand:
                return message
            with self._one_thread:
                if not self._async.more():
                    self._loop_thread.run(self._async.arrival(None))

    def pause(self, partitions: Sequence[tuple[str, int]] | None = None) -> None:
        """Hand out no records of these partitions, of all if not given, until `resume`. They stay this member's.

        It holds in the middle of an iteration, too. Callable from the callbacks.
        """
        # On the loop: an interrupt of this thread must not lose the rest of a batch that is put back.
        if self._loop_thread.is_here:
            self._async.pause(partitions)
        else:
            self._loop_thread.do(lambda: self._async.pause(partitions))

    def poll(self, timeout: float | None = None, max_records: int = 500) -> list[Message]:
        """Up to `max_records` messages: at once if there are any, else after up to `timeout` seconds ([] then).

        The messages of the poll before are done.
        """
        check_wait(timeout)
        check_count("max_records", max_records, 1)
        with self._one_thread:
            return self._async.take(max_records) or self._loop_thread.run(self._async.poll(timeout, max_records))

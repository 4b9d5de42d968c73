"""Client: the client for programs with threads. It has the same names as AsyncClient.

An AsyncClient on a background thread does the work (tinymq/client/facade/loop_thread.py). Methods that only pass a call
on to it are generated. The methods written here, and in the files beside this one, stay in the calling thread while
they can.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import NoReturn, Self, Unpack, overload

from tinymq.base.errors import Closed, TinymqError
from tinymq.base.types import RecordMetadata
from tinymq.client.common import forks
from tinymq.client.common.due import Delay
from tinymq.client.common.options import ClientOptions, HandlerOptions, TransactionOptions
from tinymq.client.common.servers import find_cluster
from tinymq.client.common.start_positions import Place
from tinymq.client.common.traces import trim
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.client.facade.generated.client import ClientCalls
from tinymq.client.facade.loop_thread import LoopThread
from tinymq.client.facade.partition_transaction import PartitionTransaction
from tinymq.client.facade.transaction import Transaction
from tinymq.client.produce.blocking_sender import BlockingSender
from tinymq.client.produce.delivery import Scheduled
from tinymq.client.serve.health import Health
from tinymq.client.serve.serving import STOP_TIMEOUT_S, Handlers, stopping_signals
from tinymq.client.serve.subscription import Handler, Kind, OnError
from tinymq.client.transaction.partition_transaction import PartitionTransactionCore
from tinymq.client.transaction.refusals import check_no_settings


class Client(ClientCalls):
    """A connection to a tinymq cluster.

        with Client("localhost:7070") as mq:
            mq.send("orders", b"...")

    `servers`: "host:port,host:port" or a list; any one of them finds the others. `context` names a cluster of
    `tinymq context list` instead. Without both, the environment names the cluster: TINYMQ_SERVERS, or else
    TINYMQ_CONTEXT. Settings: see ClientConfig.

    Connects when first used. A process may fork before that, not after: in the child of a process that has used a
    client every call raises Closed. Safe to share between threads. Raises InvalidConfig, NotFound (no such context),
    CorruptData (the file of contexts).

        with Client("localhost:7070") as mq:
            mq.admin.create_topic("invoices", partitions=6, exist_ok=True)
            print(mq.servers, mq.access.who_am_i().name)
            with mq.producer(compression="zstd") as producer:
                producer.send("orders", b"...")
            later = mq.send("orders", b"...", delay=3600)
            mq.cancel("orders", later.partition, later.schedule_id)
            with mq.transaction("billing-1") as tx:
                tx.send("orders", b"...")
            mq.half_message("orders", b"...", producer_group="checkout").commit()
            with mq.checker("checkout", lambda half: "commit") as checker:
                print(checker.producer_group)
            with mq.reader("orders", start=Offset(5), end="latest") as reader:
                print(len(reader.poll()))
            print(mq.frame("orders").count())
            with mq.scan("orders", 0, 0, 2) as scan:
                print(next(scan).num_rows)
            with mq.consumer("orders", group="billing") as consumer:
                print(consumer.poll(timeout=5.0))
            with mq.worker("emails", group="mailer") as worker:
                print(worker.poll(timeout=5.0))
            with mq.queue("orders", channel="audit") as queue:
                print(queue.size())

    Without `with`, `close` it:

        mq = Client("localhost:7070")
        mq.send("orders", b"...", key=b"42", headers={"trace": b"7"})
        mq.close()

    Handlers, for as long as the program runs (`serve` is `run` with a choice of signals):

        mq = Client("localhost:7070")

        @mq.subscribe("orders", group="shipping")
        def ship(message):
            print(message.value, bool(mq.health()))
            mq.stop()  # from a signal, usually

        mq.run()
        mq.serve(signals=False)
    """

    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        *,
        context: str | None = None,
        **settings: Unpack[ClientOptions],
    ) -> None:
        self._servers, self._config = find_cluster(servers, context, settings)
        found = {each.name: getattr(self._config, each.name) for each in fields(self._config)}
        self._make = partial(ClientCore, self._servers, **found)
        self._loop_thread = self._new_loop_thread()
        self._direct: BlockingSender | None = None
        self._closed = False
        self._serving = Handlers()
        forks.in_child(self, Client._forked)

    def __repr__(self) -> str:
        return f"<Client of {','.join(self._servers)}{' (closed)' if self._closed else ''}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client belongs to its process: pass its servers, and make a client where it is used")

    @property
    def servers(self) -> tuple[str, ...]:
        """The addresses of the brokers that the client asks first, as it was told them."""
        return self._servers

    @overload
    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, delay: None = None, deliver_at: None = None,
    ) -> RecordMetadata: ...  # fmt: skip
    @overload
    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, delay: Delay, deliver_at: None = None,
    ) -> Scheduled: ...  # fmt: skip
    @overload
    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, delay: None = None, deliver_at: datetime,
    ) -> Scheduled: ...  # fmt: skip
    @overload
    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, delay: Delay | None = None,
        deliver_at: datetime | None = None,
    ) -> RecordMetadata | Scheduled: ...  # fmt: skip
    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
        partition: int | None = None,
        delay: Delay | None = None,
        deliver_at: datetime | None = None,
    ) -> RecordMetadata | Scheduled:
        """Write one record and wait until a majority has it on disk. Sends at the same time share batches.

        A record that is sent again is never written twice. Raises UnknownTopic, InvalidRequest, BatchTooLarge; at the
        deadline (request_timeout_ms) QuotaExceeded or DeadlineExceeded if nothing was written, or OutcomeUnknown.

        With `delay` (a timedelta or seconds, 1 s to 30 days) or `deliver_at` (a datetime with a time zone), the record
        is on a majority of disks when this returns, and is delivered then. Until it is delivered, `cancel` takes it
        back. See docs/delayed-messages.md.
        """
        if self._closed:
            raise Closed("the client is closed")
        loop_thread = self._loop_thread
        loop_thread.check_thread()
        if self._direct is None:
            self._direct = loop_thread.do(lambda: self._async.shared_producer().direct())
        # A signal handler that sends while this thread is inside of `send` must not wait for the interrupted record:
        # it uses another producer.
        nested = self._direct.nested
        if delay is not None or deliver_at is not None:
            producer = loop_thread.do(lambda: self._async.shared_producer(nested=nested))
            delayed = producer.send_delayed(
                topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition, delay=delay,
                deliver_at=deliver_at,
            )  # fmt: skip
            return loop_thread.run(delayed).result()
        delivery = None if nested else self._direct.send(topic, value, key, headers, timestamp, partition)
        if delivery is None:
            producer = loop_thread.do(lambda: self._async.shared_producer(nested=nested))
            work = producer.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)
            delivery = loop_thread.run(work)
        return delivery.result()

    @overload
    def transaction(self, transactional_id: str, **settings: Unpack[TransactionOptions]) -> Transaction: ...
    @overload
    def transaction(self) -> PartitionTransaction: ...
    def transaction(
        self, transactional_id: str | None = None, **settings: Unpack[TransactionOptions]
    ) -> Transaction | PartitionTransaction:
        """A transaction: its records become visible when it commits, all of them or none. Use it in `with`.

        `transactional_id`: a name that this program uses alone. The first transaction of an id in this client fences
        the programs that used it before, and rolls back what they had open; the client keeps the id. One transaction of
        an id at a time. Settings: see TransactionConfig. docs/transactions.md tells the whole story.

        Without an id the records go to one partition, as one batch, and there are no settings. Raises InvalidRequest.
        """
        loop_thread, core = self._loop_thread, self._async
        if transactional_id is None:
            check_no_settings(settings)
            made = loop_thread.do(lambda: PartitionTransactionCore(core.cluster(), core.shared_producer))
            return PartitionTransaction(loop_thread, made)
        return Transaction(loop_thread, loop_thread.do(lambda: core.transaction(transactional_id, **settings)))

    def subscribe(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        kind: Kind | None = None,
        concurrency: int = 1,
        on_error: OnError = "retry",
        start: Place = "earliest",
        instance_id: str | None = None,
        group_settings: Mapping[str, object] | None = None,
        **settings: Unpack[HandlerOptions],
    ) -> Callable[[Handler], Handler]:
        """Subscribe the decorated function: `run` and `serve` call it for each record of the group `group`.

            @mq.subscribe("orders", group="billing")
            def bill(message): ...

            @mq.subscribe("emails", group="mailer", kind="queue", concurrency=16)
            def send(job): ...

        kind: "stream" divides partitions: a record that fails is tried again while its partition waits. "queue" leases
        records one by one: a record that fails comes again later, and the others go on. Without `kind` the handler
        takes the group as it is, and makes a stream group if there is none: name the kind if the handler needs one.
        concurrency: how many records are handled at a time; in a stream group, each of another partition. on_error,
        when the handler raises: "retry" by the group's rules, "skip", or "stop" `run`; `Retry` and `Reject` decide by
        themselves.
        group_settings: of a queue group that the handler makes. `start`, `instance_id` and other settings: see
        `consumer`, and WorkerConfig of a queue group (prefetch_records is twice the concurrency). See docs/groups.md.

        The handler runs in a thread; when it returns, its record is committed or acknowledged. Does not connect. Raises
        InvalidRequest, InvalidName, InvalidConfig.
        """
        return self._serving.subscriptions.subscribe(
            topics,
            group=group,
            concurrency=concurrency,
            on_error=on_error,
            start=start,
            instance_id=instance_id,
            settings=settings,
            kind=kind,
            group_settings=group_settings,
        )

    def serve(self, *, stop_timeout: float = STOP_TIMEOUT_S, signals: bool = True) -> None:
        """Call the subscribed handlers until `stop`, Ctrl-C or SIGTERM. Then finish what is started, and return.

        Handlers that have begun get `stop_timeout` seconds, or until a second signal. Records that were not handled are
        delivered again. `signals`: react to signals; only in the main thread. Raises the error that ended a
        subscription.
        """
        if self._closed:
            raise Closed("the client is closed")
        loop_thread = self._loop_thread
        try:
            with stopping_signals(lambda again: self._serving.stop(now=again)) if signals else contextlib.nullcontext():
                loop_thread.run(self._async.serve_with(self._serving, stop_timeout=stop_timeout, signals=False))
        except TinymqError as raised:
            trim(raised)
            raise

    def run(self, *, stop_timeout: float = STOP_TIMEOUT_S) -> None:
        """As `serve`: call the subscribed handlers until `stop`, Ctrl-C or SIGTERM. The client stays open.

        `stop_timeout`: seconds that handlers which have begun may take. Raises the error that ended a subscription.
        """
        try:
            self.serve(stop_timeout=stop_timeout)
        except TinymqError as raised:
            trim(raised)
            raise

    def stop(self, *, now: bool = False) -> None:
        """Finish what is started, release the rest, and end `run` or `serve`. `now`: do not wait for the handlers.

        Callable from any thread, and from handlers.
        """
        self._serving.stop(now=now)

    def health(self) -> Health:
        """Whether the handlers are live. Callable from any thread, for example by an HTTP server's probe; never blocks.

        False if `run` or `serve` is not running, if the client's loop is blocked, or if a handler has lost its group
        for more than 30 s.
        """
        return self._serving.health()

    def close(self) -> None:
        """Close producers (flushing them), queues, readers and connections. A second call does nothing.

        A queue that is still open commits the messages that are done with. It does not commit those that it handed out
        last, because the application may not have handled them. Raises NotDelivered.
        """
        self._closed = True
        self._loop_thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except TinymqError as another:
            if error is None:
                raise
            error.add_note(f"and {another}")

    def _new_loop_thread(self) -> LoopThread:
        interval_ms = self._config.switch_interval_ms
        return LoopThread(self._make, switch_interval_s=None if interval_ms is None else interval_ms / 1000)

    def _forked(self) -> None:
        """In the child of a fork: begin with a thread of our own, unless the client was closed before."""
        self._direct = None
        if not self._closed:
            self._loop_thread = self._new_loop_thread()


def loop_thread_of(client: Client) -> LoopThread:
    """Return the thread that runs a client's loop, for work of other packages of tinymq on that loop."""
    return client._loop_thread

"""ClientCore: the whole client on one event loop. It makes the cores of every other object of the client.

It does the work of AsyncClient, and of Client on a background thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, overload

from tinymq.base.clock import Clock
from tinymq.base.errors import TinymqError
from tinymq.base.types import RecordMetadata
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.argument_checks import WAIT_S_MIN, check_wait
from tinymq.client.common.config import (
    ConsumerConfig,
    ProducerConfig,
    QueueConfig,
    ReaderConfig,
    WorkerConfig,
    configure,
)
from tinymq.client.common.due import Delay
from tinymq.client.common.options import (
    ClientOptions,
    ConsumerOptions,
    HandlerOptions,
    ProducerOptions,
    QueueOptions,
    ReaderOptions,
    TransactionOptions,
    WorkerOptions,
)
from tinymq.client.common.servers import find_cluster
from tinymq.client.common.start_positions import Place, Places
from tinymq.client.common.transaction_config import TransactionConfig
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.consume.reader import ReaderCore
from tinymq.client.consume.scan import FETCH_BYTES_MAX, WAIT_MS, ScanCore, Tiers, read_range
from tinymq.client.facade.core.lazy_cluster import LazyCluster
from tinymq.client.facade.core.opened import OpenedObjects
from tinymq.client.frame.frame import FrameCore, OffsetRange, TimeRange
from tinymq.client.group.consumer import Callback, ConsumerCore
from tinymq.client.net.ports import Connector
from tinymq.client.produce.delivery import Scheduled
from tinymq.client.produce.producer import ProducerCore
from tinymq.client.queue.queue import QueueCore
from tinymq.client.serve.health import Health
from tinymq.client.serve.serving import STOP_TIMEOUT_S, Handlers, stopping_signals
from tinymq.client.serve.subscription import Handler, Kind, OnError
from tinymq.client.transaction.checker import CONCURRENCY, AsyncChecker, CheckHandler
from tinymq.client.transaction.half_message import CHECK_AFTER_S, AsyncHalfMessage, CheckAfter, send_half_message
from tinymq.client.transaction.owner import Owners
from tinymq.client.transaction.transaction import TransactionCore
from tinymq.client.work.worker import OnLost, WorkerCore

if TYPE_CHECKING:
    from tinymq.client.admin.access import AsyncAccess
    from tinymq.client.admin.admin import AsyncAdmin


class ClientCore:
    """The connection to a cluster, and the objects that were made with it. See AsyncClient."""

    servers: tuple[str, ...]
    """The addresses of the brokers that the client asks first, as it was told them."""

    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        *,
        context: str | None = None,
        connector: Connector | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        **settings: Unpack[ClientOptions],
    ) -> None:
        """Without a connector, the client speaks to real brokers."""
        self.servers, self.config = find_cluster(servers, context, settings)
        self._connection = LazyCluster(self.servers, self.config, connector, clock, rng)
        self._shared_producers: dict[bool, ProducerCore] = {}  # behind `send`; under True, the one for nested sends
        self._owners = Owners()
        self._opened = OpenedObjects()
        self._serving = Handlers()

    def __repr__(self) -> str:
        return f"<AsyncClient of {','.join(self.servers)}{' (closed)' if self._connection.closed else ''}>"

    @property
    def admin(self) -> AsyncAdmin:
        """Topics, channels, holds and the state of the cluster."""
        from tinymq.client.admin.admin import AsyncAdmin  # here: most programs need no admin calls

        return AsyncAdmin(self.cluster())

    @property
    def access(self) -> AsyncAccess:
        """Users, tokens and grants."""
        from tinymq.client.admin.access import AsyncAccess  # as above

        return AsyncAccess(self.cluster())

    @overload
    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, delay: None = None, deliver_at: None = None,
    ) -> RecordMetadata: ...  # fmt: skip
    @overload
    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, delay: Delay, deliver_at: None = None,
    ) -> Scheduled: ...  # fmt: skip
    @overload
    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, delay: None = None, deliver_at: datetime,
    ) -> Scheduled: ...  # fmt: skip
    @overload
    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, delay: Delay | None = None,
        deliver_at: datetime | None = None,
    ) -> RecordMetadata | Scheduled: ...  # fmt: skip
    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, delay: Delay | None = None,
        deliver_at: datetime | None = None,
    ) -> RecordMetadata | Scheduled:  # fmt: skip
        """Write one record and wait until a majority has it on disk. Sends at the same time share batches.

        A record that is sent again is never written twice. Raises UnknownTopic, InvalidRequest, BatchTooLarge; at the
        deadline (request_timeout_ms) QuotaExceeded or DeadlineExceeded if nothing was written, or OutcomeUnknown.

        With `delay` (a timedelta or seconds, 1 s to 30 days) or `deliver_at` (a datetime with a time zone), the record
        is on a majority of disks when this returns, and is delivered then. Until it is delivered, `cancel` takes it
        back. See docs/delayed-messages.md.
        """
        producer = self.shared_producer()
        if delay is not None or deliver_at is not None:
            stored = await producer.send_delayed(
                topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition, delay=delay,
                deliver_at=deliver_at,
            )  # fmt: skip
            return await stored
        delivery = producer.append_here(topic, value, key, headers, timestamp, partition)
        if delivery is None:
            work = producer.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)
            delivery = await work
        return await delivery

    async def cancel(self, topic: str, partition: int, schedule_id: int, *, timeout: float | None = None) -> bool:
        """Take a delayed record back, by the `partition` and `schedule_id` that its `send` returned. True: it is never
        delivered.

        False: it was delivered or canceled before, or there was none. `timeout` in seconds; request_timeout_ms if not
        given. Raises UnknownTopic, UnknownPartition, DeadlineExceeded (nothing has changed), OutcomeUnknown.
        """
        from tinymq.client.admin.schedule import cancel  # as above

        check_wait(timeout, least_s=WAIT_S_MIN)
        timeout_s = self.config.request_timeout_ms / 1000 if timeout is None else timeout
        return await cancel(self.cluster(), topic, partition, schedule_id, timeout_s)

    def producer(self, **settings: Unpack[ProducerOptions]) -> ProducerCore:
        """A producer with its own buffer and settings (see ProducerConfig). Use it in `async with`, which flushes."""
        producer = ProducerCore(self.cluster(), configure(ProducerConfig, settings), self._connection.call_soon)
        return self._opened.keep(producer)

    def transaction(self, transactional_id: str, **settings: Unpack[TransactionOptions]) -> TransactionCore:
        """A transaction: its records become visible when it commits, all of them or none. Use it in `async with`.

        `transactional_id`: a name that this program uses alone. The first transaction of an id in this client fences
        the programs that used it before, and rolls back what they had open; the client keeps the id. One transaction of
        an id at a time. Settings: see TransactionConfig. See docs/transactions.md.
        """
        config, cluster = configure(TransactionConfig, settings), self.cluster()
        owner = self._owners.owner(cluster, transactional_id)
        return self._opened.keep(TransactionCore(cluster, owner, config, self._connection.call_soon))

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
        """From now on, answer for half messages of `producer_group` whose senders neither committed nor rolled them
        back.

        `handler` gets a HalfCheck and returns "commit", "rollback" or "unknown". An `async` one runs on the client's
        loop and must not block; others run in threads. `concurrency`: how many it handles at a time. If it raises, the
        half message is checked again. Ends with the client. See docs/half-messages.md.
        Raises InvalidRequest, InvalidName.
        """
        return self._opened.keep(AsyncChecker(self.cluster(), producer_group, handler, concurrency))

    def reader(
        self, topic: str, partitions: Sequence[int] | None = None, start: Places = "earliest",
        end: Places | None = None, **settings: Unpack[ReaderOptions],
    ) -> ReaderCore:  # fmt: skip
        """A reader of `topic`: iterate over it, `poll` it, or take it as a table.

        start, end: "earliest", "latest", Offset(5), a datetime, or a dict of these by partition. `end` is the first
        place that is not read; without it the reader waits for new records. Without `partitions`, an `end` and a dict,
        it follows partitions that are added, from their beginning. Settings: see ReaderConfig (replica= among them).
        """
        config = configure(ReaderConfig, settings)
        reader = ReaderCore(
            self.cluster(), topic, config, self._connection.call_soon, partitions=partitions, start=start, end=end
        )
        return self._opened.keep(reader)

    def frame(
        self, topic: str, columns: Sequence[str] | None = None, partitions: Sequence[int] | None = None, *,
        offsets: OffsetRange | None = None, times: TimeRange | None = None, **settings: Unpack[ReaderOptions],
    ) -> FrameCore:  # fmt: skip
        """A topic as a table, up to its end at the first use (docs/frames.md). Settings: see ReaderConfig.

        columns: names of Message's fields; None: all. offsets: (first, end) of every partition, without `end`. times:
        the same by datetimes; None leaves a side open. Raises InvalidRequest, OffsetOutOfRange.
        """
        return FrameCore(
            self.cluster(), topic, partial(self.reader, topic, **settings),
            leader_only=configure(ReaderConfig, settings).replica == "leader", columns=columns,
            partitions=partitions, offsets=offsets, times=times,
        )  # fmt: skip

    def scan(
        self, topic: str, partition: int, start: int, end: int, *, scan_id: str = "", replicas: Tiers | None = None,
        wait_ms: float = WAIT_MS, topic_id: bytes = b"", leader_last: bool = False, **settings: Unpack[ReaderOptions],
    ) -> ScanCore:  # fmt: skip
        """A scan of the offsets from `start` up to, and not including, `end` of one partition, as record batches.

        These offsets have to be committed already. The first use asks the brokers. Use it in `async with`.

        `replicas`: tiers of broker ids, such as ((2, 3), (1,)). The scan asks the second tier when no broker of the
        first one serves it. None follows the setting `replica`. With `leader_last` the leader of that moment comes
        after all of them. A replica that is behind gets `wait_ms` milliseconds. `scan_id`: brokers count under it what
        they serve, see admin.describe_scan. `topic_id`: the id of the topic that was planned; another topic that has
        its name by now is refused with UnknownTopic. Settings: see ReaderConfig; fetch_bytes_max is 8 MiB if not given.
        Raises InvalidRequest, InvalidName (scan_id).
        """
        wanted = read_range(
            topic=topic, partition=partition, start=start, end=end, scan_id=scan_id, replicas=replicas,
            wait_ms=wait_ms, topic_id=topic_id, leader_last=leader_last,
        )  # fmt: skip
        config = configure(ReaderConfig, {"fetch_bytes_max": FETCH_BYTES_MAX, **settings})
        scan = ScanCore(self.cluster(), wanted, config, self._connection.call_soon)
        return self._opened.keep(scan)

    def consumer(
        self, topics: str | Sequence[str], *, group: str | None = None, instance_id: str | None = None,
        start: Place = "earliest", on_assigned: Callback | None = None, on_revoked: Callback | None = None,
        on_lost: Callback | None = None, **settings: Unpack[ConsumerOptions],
    ) -> ConsumerCore:  # fmt: skip
        """A consumer of topics, as a member of `group`: its partitions are those that the group gives it.

        `topics`: names, and patterns such as "orders-*". The group is made if there is none, and begins at `start`.
        Without a group the consumer reads all partitions, saves nothing, and follows added ones. With an `instance_id`
        the partitions wait for this member's return. `on_assigned`, `on_revoked` and `on_lost` get lists of partitions,
        on the client's loop: they must not block. Settings: see ConsumerConfig (processing="at_most_once" among them).
        Use it in `async with`.
        """
        consumer = ConsumerCore(
            self.cluster(), configure(ConsumerConfig, settings), self._connection.call_soon, topics, group=group,
            instance_id=instance_id, start=start, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost,
        )  # fmt: skip
        return self._opened.keep(consumer)

    def worker(
        self, topic: str, *, group: str, start: Place = "earliest",
        group_settings: Mapping[str, object] | None = None, on_lost: OnLost | None = None,
        **settings: Unpack[WorkerOptions],
    ) -> WorkerCore:  # fmt: skip
        """A worker of the queue group `group`: each record is leased to one worker. Use it in `async with`.

        The group is made if there is none, at `start`, with `group_settings` such as {"lease_ms": 60000}.
        `on_lost(job, error)` is told of jobs that another worker may have. Settings: see WorkerConfig.
        """
        worker = WorkerCore(
            self.cluster(), configure(WorkerConfig, settings), self._connection.call_soon, topic, group=group,
            start=start, group_settings=group_settings, on_lost=on_lost,
        )  # fmt: skip
        return self._opened.keep(worker)

    def queue(
        self, topic: str, partition: int = 0, channel: str = "default", *, consumer: str | None = None,
        start: Place = "earliest", **settings: Unpack[QueueOptions],
    ) -> QueueCore:  # fmt: skip
        """A partition as a queue, read through `channel`: push to it, and poll it or iterate over it.

        The first use asks the brokers. `start`: where the channel begins if it does not exist yet. `consumer`: the name
        under which lists of channels show this queue; client_id if not given. Settings: see QueueConfig. Use it in
        `async with`.
        """
        queue = QueueCore(
            self.cluster(), configure(QueueConfig, settings), self._connection.call_soon, self.shared_producer,
            topic=topic, partition=partition, channel=channel, consumer=consumer, start=start,
        )  # fmt: skip
        return self._opened.keep(queue)

    def subscribe(
        self, topics: str | Sequence[str], *, group: str, kind: Kind | None = None, concurrency: int = 1,
        on_error: OnError = "retry", start: Place = "earliest", instance_id: str | None = None,
        group_settings: Mapping[str, object] | None = None, **settings: Unpack[HandlerOptions],
    ) -> Callable[[Handler], Handler]:  # fmt: skip
        """Subscribe the decorated function: `run` and `serve` call it for each record of the group `group`.

            @mq.subscribe("orders", group="billing")
            def bill(message): ...

            @mq.subscribe("emails", group="mailer", kind="queue", concurrency=16)
            async def send(job): ...

        kind: "stream" divides partitions: a record that fails is tried again while its partition waits. "queue" leases
        records one by one: a record that fails comes again later, and the others go on. Without `kind` the handler
        takes the group as it is, and makes a stream group if there is none: name the kind if the handler needs one.
        concurrency: how many records are handled at a time; in a stream group, each of another partition. on_error,
        when the handler raises: "retry" by the group's rules, "skip", or "stop" `run`; `Retry` and `Reject` decide by
        themselves.
        group_settings: of a queue group that the handler makes. `start`, `instance_id` and other settings: see
        `consumer`, and WorkerConfig of a queue group (prefetch_records is twice the concurrency). See docs/groups.md.

        An `async` handler runs on the client's loop and must not block; others run in threads. When it returns, its
        record is committed or acknowledged. Does not connect. Raises InvalidRequest, InvalidName, InvalidConfig.
        """
        return self._serving.subscriptions.subscribe(
            topics, group=group, concurrency=concurrency, on_error=on_error, start=start, instance_id=instance_id,
            settings=settings, kind=kind, group_settings=group_settings,
        )  # fmt: skip

    async def serve(self, *, stop_timeout: float = STOP_TIMEOUT_S, signals: bool = True) -> None:
        """Call the subscribed handlers until `stop`, Ctrl-C or SIGTERM. Then finish what is started, and return.

        Handlers that have begun get `stop_timeout` seconds, or until a second signal. Records that were not handled are
        delivered again. `signals`: react to signals; only in the main thread. Raises the error that ended a
        subscription.
        """
        await self.serve_with(self._serving, stop_timeout=stop_timeout, signals=signals)

    async def serve_with(self, serving: Handlers, *, stop_timeout: float, signals: bool) -> None:
        """Serve the subscriptions of the synchronous client, or our own."""
        cluster = self.cluster()
        self._opened.keep(serving)
        with stopping_signals(lambda again: serving.stop(now=again)) if signals else contextlib.nullcontext():
            await serving.serve(cluster, stop_timeout, self._connection.call_soon)

    def run(self, *, stop_timeout: float = STOP_TIMEOUT_S) -> None:
        """As `serve`, with `stop_timeout`, on a loop of its own, and close the client. For a program without a loop."""

        async def served() -> None:
            async with self:
                await self.serve(stop_timeout=stop_timeout)

        asyncio.run(served())

    def stop(self, *, now: bool = False) -> None:
        """Finish what is started, release the rest, and end `run` or `serve`. `now`: do not wait for the handlers.

        Callable from any thread, and from handlers.
        """
        self._serving.stop(now=now)

    def health(self) -> Health:
        """Whether the handlers are live: False if `run` or `serve` is not running, if the client's loop is blocked, or
        if a handler has lost its group for more than 30 s. True without handlers: it says nothing about brokers.

        Never blocks. Callable from any thread, for example by a probe.
        """
        return self._serving.health()

    async def close(self) -> None:
        """Close producers (flushing them), queues, readers and connections. A second call does nothing. Open queues
        commit the messages that are done with, and not those that they handed out last: the application may not have
        handled them. Raises NotDelivered.
        """
        self._connection.check_loop()
        self._connection.closed = True
        first = await self._opened.close()
        await self._connection.close()
        if first is not None:
            raise first

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except TinymqError as undelivered:
            if error is None:
                raise
            error.add_note(f"and {undelivered}")

    def shared_producer(self, *, nested: bool = False) -> ProducerCore:
        """The producer behind `send`, without delay. `nested`: another one, for a send inside a send of this thread."""
        shared = self._shared_producers.get(nested)
        if shared is None:
            timeout_ms = self.config.request_timeout_ms
            shared = self.producer(linger_ms=0, delivery_timeout_ms=timeout_ms, block_ms_max=timeout_ms)
            self._shared_producers[nested] = shared
        return shared

    def producers(self) -> list[ProducerCore]:
        """Return the producers that have not ended, those of queues included."""
        return self._opened.producers()

    def cluster(self) -> Cluster:
        """The client's view of the cluster, made by the first use on a loop. Raises Closed, WrongEventLoop."""
        return self._connection.cluster()

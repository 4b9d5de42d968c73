"""Client: the synchronous facade. The same names as AsyncClient; every method is thin.

The work is done by an AsyncClient on a background thread (tinymq/client/facade/loop_thread.py). What is not merely
passed on: `Client.send` and `Producer.send` (tinymq/client/facade/producer.py), which stay in the calling thread
while they can, and a reader's messages, which cross threads a batch at a time.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Self, Unpack

import pyarrow as pa

from tinymq.base.errors import Closed, TinymqError
from tinymq.base.types import RecordMetadata
from tinymq.client.common.argument_checks import check_count, check_wait
from tinymq.client.common.config import (
    ClientConfig,
    ProducerConfig,
    QueueConfig,
    ReaderConfig,
    configure,
    parse_servers,
)
from tinymq.client.common.options import ClientOptions, ProducerOptions, QueueOptions, ReaderOptions
from tinymq.client.common.start_positions import Place, Places
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.consume.reader import AsyncReader
from tinymq.client.consume.records import Message
from tinymq.client.consume.scan import WAIT_MS, Tiers
from tinymq.client.facade.async_client import AsyncClient
from tinymq.client.facade.loop_thread import LoopThread
from tinymq.client.facade.producer import Producer
from tinymq.client.facade.queue import Queue
from tinymq.client.facade.scan import Scan
from tinymq.client.facade.sync_admin import Admin
from tinymq.client.produce.blocking_sender import BlockingSender


class Client:
    """A connection to a tinymq cluster.

        with Client("localhost:7070") as mq:
            mq.send("orders", b"...")

    `servers`: "host:port,host:port" or a list; any one of them finds the others. Settings: see ClientConfig.
    Connects when first used. A process may fork before that, not after: in the child of one that has used a client
    every call raises Closed. Safe to share between threads. Raises InvalidConfig.
    """

    def __init__(self, servers: str | Sequence[str], **settings: Unpack[ClientOptions]) -> None:
        self.servers = parse_servers(servers)
        self.config = configure(ClientConfig, settings)
        self._settings = settings
        self._engine: LoopThread | None = None
        self._direct: BlockingSender | None = None
        self._starting = threading.Lock()
        self._closed = False
        _CLIENTS.add(self)

    @property
    def admin(self) -> Admin:
        """Topics and the state of the cluster."""
        return Admin(self.engine())

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """As AsyncClient.send: one record, on a majority of disks when this returns."""
        engine = self.engine()
        engine.check_thread()
        if self._direct is None:
            self._direct = engine.do(lambda: engine.client.sending().direct())
        apart = self._direct.nested
        delivery = None if apart else self._direct.send(topic, value, key, headers, timestamp, partition)
        if delivery is None:
            sending = engine.do(lambda: engine.client.sending(apart=apart))
            work = sending.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)
            delivery = engine.run(work)
        return delivery.result()

    def producer(self, **settings: Unpack[ProducerOptions]) -> Producer:
        """A producer of its own buffer and settings (see ProducerConfig). Use it in `with`, which flushes."""
        configure(ProducerConfig, settings)
        engine = self.engine()
        return Producer(engine, engine.do(lambda: engine.client.producer(**settings)))

    def reader(
        self,
        topic: str,
        partitions: Sequence[int] | None = None,
        start: Places = "earliest",
        end: Places | None = None,
        **settings: Unpack[ReaderOptions],
    ) -> Reader:
        """As AsyncClient.reader: iterate over it, `poll` it, or take it as a table."""
        configure(ReaderConfig, settings)
        engine = self.engine()
        return Reader(engine, engine.do(lambda: engine.client.reader(topic, partitions, start, end, **settings)))

    def scan(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        scan_id: str = "",
        replicas: Tiers | None = None,
        wait_ms: float = WAIT_MS,
        topic_id: bytes = b"",
        leader_last: bool = False,
        **settings: Unpack[ReaderOptions],
    ) -> Scan:
        """As AsyncClient.scan: a range of a partition as record batches, from replicas of choice. Use it in `with`."""
        configure(ReaderConfig, settings)
        engine = self.engine()
        make = partial(engine.client.scan, topic, partition, start, end, scan_id=scan_id, replicas=replicas)
        make = partial(make, wait_ms=wait_ms, topic_id=topic_id, leader_last=leader_last)
        return Scan(engine, engine.do(lambda: make(**settings)))

    def queue(
        self,
        topic: str,
        partition: int = 0,
        channel: str = "default",
        *,
        consumer: str | None = None,
        start: Place = "earliest",
        **settings: Unpack[QueueOptions],
    ) -> Queue:
        """As AsyncClient.queue: a partition to poll, through a channel, and to push to. Use it in `with`."""
        configure(QueueConfig, settings)
        engine = self.engine()
        make = engine.client.queue
        return Queue(
            engine, engine.do(lambda: make(topic, partition, channel, consumer=consumer, start=start, **settings))
        )

    def close(self) -> None:
        """As AsyncClient.close. Raises NotDelivered. Closing twice is nothing."""
        with self._starting:
            self._closed = True
            engine, self._engine = self._engine, None
        if engine is not None and engine.alive:
            engine.stop()

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

    def engine(self) -> LoopThread:
        """This process's loop thread, started if need be."""
        engine = self._engine
        if engine is not None:
            return engine
        with self._starting:
            if self._closed:
                raise Closed("the client is closed")
            if self._engine is None:
                self._engine = LoopThread(lambda: AsyncClient(self.servers, **self._settings))
            return self._engine

    def _forked(self) -> None:
        self._engine = None
        self._direct = None
        self._starting = threading.Lock()


_CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()


class Reader:
    """Reads a topic. Made by Client.reader(). For one thread at a time."""

    def __init__(self, engine: LoopThread, core: AsyncReader) -> None:
        self._engine = engine
        self._core = core
        self._intake = core.intake

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """As AsyncReader: the next message; ends at `end`."""
        message = self._intake.next_message()
        while message is None:
            if not self._engine.run(self._core.arrival(None)):
                raise StopIteration
            message = self._intake.next_message()
        return message

    def poll(self, timeout: float | None = None, max_records: int = 500) -> list[Message]:
        """As AsyncReader.poll: [] when nothing came within `timeout` seconds."""
        check_wait(timeout)
        check_count("max_records", max_records, 1)
        found = self._intake.next_messages(max_records)
        return found or self._engine.run(self._core.poll(timeout, max_records))

    def to_arrow(self, limit: int | None = None) -> pa.Table:
        """As AsyncReader.to_arrow: up to the end seen at opening, as one table."""
        return self._engine.run(self._core.to_arrow(limit))

    def position(self) -> dict[int, int]:
        """The offset that comes next, for every partition that is read; empty before the first use."""
        return self._core.position()

    @property
    def skipped(self) -> int:
        """As AsyncReader.skipped."""
        return self._core.skipped

    @property
    def at_end(self) -> bool:
        """As AsyncReader.at_end."""
        return self._core.at_end

    def open(self) -> None:
        """As AsyncReader.open: find where to start, now rather than at the first use."""
        self._engine.run(self._core.open())

    def close(self) -> None:
        """Stop reading. Closing twice is nothing."""
        if self._engine.alive and not self._core.closed:
            self._engine.run(self._core.close())

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _after_fork() -> None:
    for client in list(_CLIENTS):
        client._forked()


os.register_at_fork(after_in_child=_after_fork)

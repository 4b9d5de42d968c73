"""Client: the client for programs with threads. It has the same names as AsyncClient.

An AsyncClient on a background thread does the work (tinymq/client/facade/loop_thread.py). Methods that only pass a call
on to it are generated. The methods written here, and in the files beside this one, stay in the calling thread while
they can.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from tinymq.base.errors import Closed, TinymqError
from tinymq.base.types import RecordMetadata
from tinymq.client.common.config import ClientConfig, configure, parse_servers
from tinymq.client.common.options import ClientOptions
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.facade.async_client import AsyncClient
from tinymq.client.facade.generated.client import ClientCalls
from tinymq.client.facade.loop_thread import LoopThread
from tinymq.client.produce.blocking_sender import BlockingSender


class Client(ClientCalls):
    """A connection to a tinymq cluster.

        with Client("localhost:7070") as mq:
            mq.send("orders", b"...")

    `servers`: "host:port,host:port" or a list; any one of them finds the others. Without it, the
    environment variable TINYMQ_SERVERS names them. Settings: see ClientConfig.
    Connects when first used. A process may fork before that, not after: in the child of a process that has used a
    client every call raises Closed. Safe to share between threads. Raises InvalidConfig.
    """

    def __init__(self, servers: str | Sequence[str] | None = None, **settings: Unpack[ClientOptions]) -> None:
        self.servers = parse_servers(servers)
        self.config = configure(ClientConfig, settings)
        self._make = partial(AsyncClient, self.servers, **settings)
        self._loop_thread = self._new_loop_thread()
        self._direct: BlockingSender | None = None
        self._closed = False
        _CLIENTS.add(self)

    def __repr__(self) -> str:
        return f"<Client of {','.join(self.servers)}{' (closed)' if self._closed else ''}>"

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
        """Write one record and wait until a majority has it on disk. Sends at the same time share batches.

        A record that is sent again is never written twice. Raises UnknownTopic, InvalidRequest, BatchTooLarge; at the
        deadline (request_timeout_ms) QuotaExceeded or DeadlineExceeded if nothing was written, or OutcomeUnknown.
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
        delivery = None if nested else self._direct.send(topic, value, key, headers, timestamp, partition)
        if delivery is None:
            producer = loop_thread.do(lambda: self._async.shared_producer(nested=nested))
            work = producer.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)
            delivery = loop_thread.run(work)
        return delivery.result()

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

    @property
    def loop_thread(self) -> LoopThread:
        """The thread that runs this client's loop, for work of other packages of tinymq on that loop."""
        return self._loop_thread

    def _new_loop_thread(self) -> LoopThread:
        interval_ms = self.config.switch_interval_ms
        return LoopThread(self._make, switch_interval_s=None if interval_ms is None else interval_ms / 1000)

    def _forked(self) -> None:
        """In the child of a fork: begin with a thread of our own, unless the client was closed before."""
        self._direct = None
        if not self._closed:
            self._loop_thread = self._new_loop_thread()


_CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_CLIENTS):
        client._forked()


os.register_at_fork(after_in_child=_after_fork)

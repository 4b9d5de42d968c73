"""Producer: the synchronous facade of tinymq/client/produce/producer.py. `send` stays in the calling thread until a
batch is full; everything else is passed on to the client's loop.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, Self

import pyarrow as pa

from tinymq.base.errors import Closed, NotDelivered
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.facade.loop_thread import LoopThread, forked
from tinymq.client.produce import exit
from tinymq.client.produce.delivery import BatchDelivery, Delivery
from tinymq.client.produce.producer import LEAVING_IN_ERROR_S, AsyncProducer


class Producer:
    """Sends records in batches, from any thread. Made by Client.producer(). Close it, or use it in `with`.

    A producer that is not closed is flushed and closed when the program ends, or when nothing refers to it any more.
    Records that cannot be delivered then are only counted (tinymq/client/produce/exit.py).
    """

    def __init__(self, engine: LoopThread, core: AsyncProducer) -> None:
        self._engine = engine
        self._core = core
        self._append: Callable[..., Delivery | None] = core.append
        weakref.finalize(self, exit.close_unused, core).atexit = False
        _PRODUCERS.add(self)

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """As AsyncProducer.send. Returns at once, or blocks for room up to block_ms_max, then raises BufferFull."""
        delivery = self._append(topic, value, key, headers, timestamp, partition)
        if delivery is None:
            work = self._core.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)
            delivery = self._engine.run(work)
        return delivery

    def send_batch(self, topic: str, data: pa.Table | pa.RecordBatch, *, partition: int | None = None) -> BatchDelivery:
        """As AsyncProducer.send_batch: a whole table or record batch."""
        return self._engine.run(self._core.send_batch(topic, data, partition=partition))

    def flush(self, timeout: float | None = None) -> None:
        """As AsyncProducer.flush. Raises NotDelivered, TimeoutError."""
        self._engine.run(self._core.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        """As AsyncProducer.close. Raises NotDelivered. A second call does nothing."""
        if not self._core.closed:
            self._engine.run(self._core.close(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(LEAVING_IN_ERROR_S)
        except (NotDelivered, Closed) as undelivered:
            error.add_note(f"and {undelivered}")

    def _forked(self) -> None:
        self._append = _dead


_PRODUCERS: weakref.WeakSet[Producer] = weakref.WeakSet()


def _dead(*_: object) -> NoReturn:
    raise forked()


def _after_fork() -> None:
    for producer in list(_PRODUCERS):
        producer._forked()


os.register_at_fork(after_in_child=_after_fork)

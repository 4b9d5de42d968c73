"""Deliver lone records of the synchronous client in the thread that sends them, over a connection of their own.

This saves waking the loop for the record, and waking the thread for the answer (docs/adr/0028).

A record is *lone* when its producer has nothing else in flight. Its thread owns the partition's send queue until the
record is acknowledged (see QueueOwner in tinymq/client/produce/send_queue.py). If anything else happens, the loop
continues with the batch under the same sequence number, so that only tinymq/client/produce/sender.py knows about
retries, leaders and unknown outcomes.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from google.protobuf.message import DecodeError

from tinymq.base.errors import Closed, OutcomeUnknown, TinymqError
from tinymq.client.cluster.background_tasks import BackgroundTasks
from tinymq.client.cluster.broker_health import SLOW
from tinymq.client.cluster.cluster import WATCH_S, Cluster
from tinymq.client.common.config import COMPRESSION, ProducerConfig
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.net.broker_streams import patience_s
from tinymq.client.net.connections import suspicious_s
from tinymq.client.net.wire import view_of
from tinymq.client.produce.batcher import Batcher
from tinymq.client.produce.delivery import Delivery
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.send_queue import QueueOwner, SendQueue
from tinymq.client.produce.sender import ACKS, Sender, partition_of
from tinymq.net.frame_socket import FrameSocket
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

LONE_SENDS_MIN = 3  # lone records to a broker before a connection is opened: a single send is not worth one
MOVED_S = 0.1  # how long a former leader may still answer: if it refuses, the outcome is known
REOPEN_S = 1.0  # between a lost connection and the next attempt to connect
NO_PORT_S = 30.0  # the same if the broker has no stream port that can be reached
TIMEOUT_S_MIN = 0.001
LONE_RECORDS = True  # False: the loop sends every record; only benchmarks/lone_records.py sets it


class Route(NamedTuple):
    """The leader that a record goes to, and the connection."""

    queue: SendQueue
    leader: int
    leader_epoch: int
    address: str
    stream: FrameSocket


class BlockingSender:
    """The connections over which threads deliver lone records of one producer, at most one to each broker."""

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        batcher: Batcher,
        sender: Sender,
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """`soon` makes a call on the loop, from any thread."""
        self._cluster = cluster
        self._now = cluster.clock.monotonic
        self._codec = COMPRESSION[config.compression]
        self._acks = ACKS[config.acks]
        self._batcher = batcher
        self._sender = sender
        self._soon = soon
        # By address. Only the one thread that owns a queue reads and writes them, except where the loop adds or removes
        # a connection.
        self._streams: dict[str, FrameSocket] = {}
        self._open_after_s: dict[str, float] = {}  # no attempt to connect before this time
        self._lone_sends: dict[str, int] = {}  # before there was a connection
        self._silent_until_s: dict[str, float] = {}  # a throttling broker has announced when it answers again
        self._under_way: Route | None = None  # of the record that waits for its answer
        self._inside: set[int] = set()  # threads that are in `send`
        self._leaving: FrameSocket | None = None  # the connection that its broker will end
        self._moved = False  # the loop broke off the attempt under way, because another broker leads
        self._request_ids = itertools.count(1)
        self._background = BackgroundTasks()
        self._closed = False
        cluster.changed[self._look] = None

    # ---- in the thread that sends ------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersLike | None,
        timestamp: Timestamp | None,
        partition: int | None,
    ) -> Delivery | None:
        """Append one record, as Batcher.append. A lone record has ended, or belongs to the loop, when this returns."""
        me = threading.get_ident()
        try:
            self._inside.add(me)
            self._recover()  # an earlier send of this thread may have been interrupted twice
            delivery = self._batcher.append(topic, value, key, headers, timestamp, partition, alone=LONE_RECORDS)
            batch = self._batcher.owners.claimed()
            if batch is not None:
                self._deliver(batch)
        except BaseException:
            self._recover()
            self._soon(self._sender.pump)  # the interrupt may have struck just before the loop was woken
            raise
        finally:
            self._inside.discard(me)
        return delivery

    @property
    def nested(self) -> bool:
        """Is the calling thread in `send` already? Then the caller is a signal handler that has interrupted `send`. If
        it queued a record behind the interrupted one and waited for it, it would wait for ever."""
        return threading.get_ident() in self._inside

    def _deliver(self, batch: ProducerBatch) -> None:
        batch.encode(self._codec)
        queue, route = batch.queue, self._route(batch.queue)
        if route is None or queue.take(self._now()) is None:
            self._leave(batch)
            return
        self._under_way, self._moved = route, False
        try:
            outcome = self._exchange(route, batch)
        except BaseException as error:
            self._drop(route)
            if not isinstance(error, TinymqError):
                raise
            if self._moved:
                self._pass_on(batch, OutcomeUnknown("the leader changed"))
            else:
                self._pass_on(batch, OutcomeUnknown(f"{route.address}: {error.message}"), route.address)
            return
        finally:
            self._under_way = None
        if outcome.HasField("error"):
            self._pass_on(batch, outcome)
            return
        queue.acknowledged(batch)
        batch.succeed(outcome.base_offset, outcome.append_time_us, outcome.duplicate)
        self._batcher.give_back(batch)
        if self._leaving is route.stream:
            self._leaving = None
            self._drop(route)

    def _recover(self) -> None:
        """Give up what the calling thread owned when it was interrupted.

        A batch that may have been sent goes to the loop. A batch that was not sent, or was just acknowledged, ends.
        """
        batch = self._batcher.owners.claimed()
        if batch is None:
            return
        if batch.sent and batch in batch.queue.in_flight:
            self._pass_on(batch, OutcomeUnknown("interrupted while it was sent"))
            return
        batch.queue.forget(batch)
        if not batch.done:
            batch.fail(OutcomeUnknown("interrupted"))
        self._batcher.give_back(batch)

    def _route(self, queue: SendQueue) -> Route | None:
        """Return the connection to the leader; None if there is none now, or if the broker has failed lately."""
        partition = partition_of(self._cluster, queue)
        address = self._cluster.view.address(partition.leader) if partition is not None and partition.leader else None
        now_s = self._now()
        if (
            partition is None
            or address is None
            or not self._sender.producer_id
            or self._cluster.health.retry_s(address, now_s)
        ):
            return None
        stream = self._streams.get(address)
        if stream is None:
            sends = self._lone_sends[address] = self._lone_sends.get(address, 0) + 1
            if sends >= LONE_SENDS_MIN and now_s >= self._open_after_s.get(address, 0.0):
                self._open_after_s[address] = now_s + NO_PORT_S
                self._soon(partial(self._background.run, address, partial(self._open, address)))
            return None
        route = Route(queue, partition.leader, partition.leader_epoch, address, stream)
        if not stream.quiet:
            self._drop(route)
            return None
        return route

    def _exchange(self, route: Route, batch: ProducerBatch) -> pb.ProduceResult:
        """Send the batch and wait for its answer. Raises an error after which the connection cannot be used."""
        address, stream = route.address, route.stream
        batch.request_id = next(self._request_ids)
        packed, _ = batch.pack(self._sender.producer_id, self._acks)
        attempt_s, started_s = self._cluster.attempt_s, batch.attempt_s
        quota_s = max(0.0, self._silent_until_s.get(address, 0.0) - started_s)
        until_s = min(batch.deadline_s, started_s + quota_s + attempt_s)
        suspicious = quota_s + suspicious_s(attempt_s)
        try:
            stream.send(packed.fields, (packed.head, view_of(packed.message)), max(TIMEOUT_S_MIN, until_s - started_s))
            receive = partial(
                _received, stream, self._now, started_s + suspicious, until_s, partial(self._silent, address, started_s)
            )
            reply = _parsed(receive())
            if reply.ending:  # the broker will end the connection; the answer follows
                self._leaving = stream
                reply = _parsed(receive())
        except TimeoutError:
            raise OutcomeUnknown(f"silent for {self._now() - started_s:.1f} s") from None
        if len(reply.results) != 1 or reply.results[0].request_id != batch.request_id:
            raise OutcomeUnknown("an answer to something else")
        self._took(address, reply.results[0].throttled_ms, self._now() - started_s)
        return reply.results[0]

    def _silent(self, address: str, started_s: float) -> None:
        self._soon(partial(self._suspect, address, self._now() - started_s))

    def _took(self, address: str, throttled_ms: int, latency_s: float) -> None:
        if throttled_ms:
            self._silent_until_s[address] = self._now() + patience_s(throttled_ms)
        if latency_s >= min(SLOW[-1][0], suspicious_s(self._cluster.attempt_s)):
            self._soon(partial(self._cluster.answered, address, latency_s))

    def _leave(self, batch: ProducerBatch) -> None:
        """Give the queue and its unsent batch to the loop."""

        def tell() -> bool:
            if not self._sender.closed:
                self._batcher.hand_over(batch.queue)
            return not self._sender.closed

        if not self._batcher.owners.pass_on(batch.queue, QueueOwner.NOBODY, tell):
            batch.fail(Closed("the client was closed meanwhile: it was not written"))

    def _pass_on(self, batch: ProducerBatch, outcome: pb.ProduceResult | TinymqError, broken: str = "") -> None:
        """Give the queue and its sent batch to the loop, with the outcome. `broken` is the address of the connection if
        that was lost."""

        def adopt() -> None:
            if broken and isinstance(outcome, TinymqError):
                self._cluster.broke(broken, outcome)
            self._sender.adopt(batch, outcome)

        def tell() -> bool:
            if not self._sender.closed:
                self._soon(adopt)
            return not self._sender.closed

        if not self._batcher.owners.pass_on(batch.queue, QueueOwner.LOOP, tell):
            batch.fail(OutcomeUnknown("the client was closed meanwhile: it may have been written"))

    def _drop(self, route: Route) -> None:
        if self._streams.get(route.address) is route.stream:
            del self._streams[route.address]
        self._open_after_s[route.address] = self._now() + REOPEN_S
        route.stream.close()

    # ---- on the loop -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections. A thread that waits for an answer gets an error."""
        self._closed = True
        self._cluster.changed.pop(self._look, None)
        self._background.close()
        for stream in list(self._streams.values()):
            self._end(stream)

    def _look(self) -> None:
        """React to a changed view: wait for a former leader's answer for MOVED_S only, and leave removed brokers."""
        route = self._under_way
        if route is not None:
            partition = partition_of(self._cluster, route.queue)
            if (
                partition is not None
                and partition.leader
                and (partition.leader, partition.leader_epoch) != (route.leader, route.leader_epoch)
            ):
                self._cluster.forgive(partition.leader)
                self._cluster.clock.call_later(MOVED_S, partial(self._give_up, route))
        known = {broker.address for broker in self._cluster.view.brokers.values()}
        for address, stream in list(self._streams.items()):
            if address not in known:
                self._streams.pop(address, None)
                self._end(stream)

    def _give_up(self, route: Route) -> None:
        """Abort the attempt that is still waiting for a former leader, so that the loop sends it to the new leader."""
        if self._under_way is route:
            self._moved = True
            route.stream.shut()

    def _end(self, stream: FrameSocket) -> None:
        route = self._under_way
        if route is not None and stream is route.stream:
            stream.shut()  # the thread that waits closes it
        else:
            stream.close()  # a thread that is about to use it sees that it is closed

    def _suspect(self, address: str, silent_s: float) -> None:
        self._cluster.health.suspect(address, silent_s, self._now())
        self._look()  # the view may have changed just before the record was sent
        self._cluster.refresh_soon()

    async def _open(self, address: str) -> None:
        stream, again_s = None, REOPEN_S
        try:
            stream = await self._cluster.connections.link(address).open_blocking(self._cluster.attempt_s)
            again_s = NO_PORT_S
        except TinymqError as error:
            LOG.debug("%s: no connection for lone records: %s", address, error)
        finally:
            if stream is None:
                self._open_after_s[address] = self._now() + again_s
            elif self._closed:
                stream.close()
            else:
                self._streams[address] = stream


def _parsed(head: bytes) -> pb.ProduceReply:
    try:
        return pb.ProduceReply.FromString(head)
    except DecodeError as error:
        raise OutcomeUnknown(f"not a reply: {error}") from None


def _received(
    stream: FrameSocket, now: Callable[[], float], look_s: float, until_s: float, silent: Callable[[], None]
) -> bytes:
    """Wait for the head of the answer until `until_s`. `silent` is called at `look_s`, and every WATCH_S from then on.

    Raises TimeoutError, and the errors of FrameSocket.receive.
    """
    while True:
        try:
            return stream.receive(max(TIMEOUT_S_MIN, min(look_s, until_s) - now()))[0]
        except TimeoutError:
            if now() >= until_s:
                raise
            silent()
            look_s = now() + WATCH_S

"""Lone records of the synchronous client, delivered by the thread that sends them, over a connection of its own: the
loop need not be woken for it, nor wake the thread (docs/adr/0028).

Alone is a record while nothing else of its producer is on its way. Its thread owns the partition's lane until it is
acknowledged (see Owner in tinymq/client/lane.py). Whatever else happens, the loop goes on with the batch, under the
number that it has: one place knows of retries, leaders and unknown outcomes, tinymq/client/sender.py.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from google.protobuf.message import DecodeError

from tinymq.client.batcher import Batcher
from tinymq.client.cluster import Cluster
from tinymq.client.config import COMPRESSION, ProducerConfig
from tinymq.client.connections import suspicious_s
from tinymq.client.delivery import Delivery, Pending
from tinymq.client.errands import Errands
from tinymq.client.health import SLOW
from tinymq.client.lane import Lane
from tinymq.client.pipes import patience_s
from tinymq.client.sender import ACKS, Sender, pack, partition_of
from tinymq.client.values import HeadersLike, Timestamp
from tinymq.client.wire import view_of
from tinymq.errors import Closed, OutcomeUnknown, TinymqError
from tinymq.frame_socket import FrameSocket
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

LONE_SENDS_MIN = 3  # to a broker, before it is connected to: who sends once needs no connection for that
REOPEN_S = 1.0  # after a connection was lost
NO_PORT_S = 30.0  # after there was none to be had


class Way(NamedTuple):
    """Where a record goes, and by which connection."""

    lane: Lane
    leader: int
    leader_epoch: int
    address: str
    stream: FrameSocket


class Direct:
    """The connections that threads deliver over, at most one to a broker."""

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
        # By address. What a thread has taken out is in use; single operations of a dict are atomic.
        self._idle: dict[str, FrameSocket] = {}
        self._open_after_s: dict[str, float] = {}  # infinite while there is one, or one is being opened
        self._lone_sends: dict[str, int] = {}
        self._silent_until_s: dict[str, float] = {}  # as a broker has said, of a quota
        self._under_way: Way | None = None
        self._moved = False  # what is under way was broken off, since another one leads
        self._request_ids = itertools.count(1)
        self._errands = Errands()
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
        """Take one record, as Batcher.append does. If it is alone, this returns once it has ended, or is the loop's."""
        try:
            delivery = self._batcher.append(topic, value, key, headers, timestamp, partition, alone=True)
            batch = self._batcher.owners.claimed()
            if batch is not None:
                self._deliver(batch)
        except BaseException:
            self._recover()
            raise
        return delivery

    def _deliver(self, batch: Pending) -> None:
        batch.encode(self._codec)
        lane, way = batch.lane, self._way(batch.lane)
        if way is None or lane.take(self._now()) is None:
            if way is not None:
                self._keep(way.address, way.stream)
            self._batcher.give_back(batch, ended=False)
            return
        self._under_way, self._moved = way, False
        try:
            outcome = self._exchange(way, batch)
        except BaseException as error:
            self._drop(way.address, way.stream)
            if not isinstance(error, TinymqError):
                raise
            if self._moved:
                self._pass_on(batch, OutcomeUnknown("the leader changed"))
            else:
                self._pass_on(batch, OutcomeUnknown(f"{way.address}: {error.message}"), way.address)
            return
        finally:
            self._under_way = None
        self._keep(way.address, way.stream)
        if outcome.HasField("error"):
            self._pass_on(batch, outcome)
            return
        lane.acknowledged(batch)
        batch.succeed(outcome.base_offset, outcome.append_time_us, outcome.duplicate)
        self._batcher.give_back(batch, ended=True)

    def _recover(self) -> None:
        """This thread was interrupted: what it has claimed is the loop's if it may have been sent, and else ends."""
        batch = self._batcher.owners.claimed()
        if batch is None:
            return
        if batch in batch.lane.flight:
            self._pass_on(batch, OutcomeUnknown("interrupted while it was sent"))
            return
        if batch in batch.lane.sealed:
            batch.lane.sealed.remove(batch)
        self._batcher.give_back(batch, ended=True)
        if not batch.done:
            batch.fail(Closed("interrupted before it was sent"))

    def _way(self, lane: Lane) -> Way | None:
        """A connection to the leader, for this thread. None: there is none now, or the broker is to be left alone."""
        at = partition_of(self._cluster, lane)
        address = self._cluster.view.address(at.leader) if at is not None and at.leader else None
        now_s = self._now()
        if (
            at is None
            or address is None
            or not self._sender.producer_id
            or self._cluster.health.cost(address, now_s)[0]
        ):
            return None
        stream = self._idle.pop(address, None)
        if stream is None:
            sends = self._lone_sends[address] = self._lone_sends.get(address, 0) + 1
            if sends >= LONE_SENDS_MIN and now_s >= self._open_after_s.get(address, 0.0):
                self._open_after_s[address] = math.inf
                self._soon(partial(self._errands.run, address, partial(self._open, address)))
            return None
        if not stream.quiet:
            self._drop(address, stream)
            return None
        return Way(lane, at.leader, at.leader_epoch, address, stream)

    def _exchange(self, way: Way, batch: Pending) -> pb.ProduceResult:
        """Send and wait for the answer. Raises what stood against that: the connection is of no more use."""
        address, stream = way.address, way.stream
        batch.request_id = next(self._request_ids)
        packed, _ = pack(batch.lane, batch, self._sender.producer_id, self._acks)
        attempt_s = self._cluster.attempt_s
        started_s = batch.attempt_s
        silence_s = attempt_s + max(0.0, self._silent_until_s.get(address, 0.0) - started_s)
        left_s = max(0.001, min(silence_s, batch.deadline_s - started_s))
        first_s = min(left_s, silence_s - attempt_s + suspicious_s(attempt_s))
        try:
            stream.send(packed.fields, (packed.head, view_of(packed.message)), left_s)
            try:
                head, _ = stream.receive(first_s)
            except TimeoutError:
                self._soon(partial(self._suspect, address, first_s))
                head, _ = stream.receive(max(0.001, left_s - first_s))
        except TimeoutError:
            raise OutcomeUnknown(f"silent for {self._now() - started_s:.1f} s") from None
        try:
            reply = pb.ProduceReply.FromString(head)
        except DecodeError as error:
            raise OutcomeUnknown(f"not a reply: {error}") from None
        if len(reply.results) != 1 or reply.results[0].request_id != batch.request_id:
            raise OutcomeUnknown("an answer to something else")
        self._took(address, reply.results[0].throttled_ms, self._now() - started_s)
        return reply.results[0]

    def _took(self, address: str, throttled_ms: int, latency_s: float) -> None:
        if throttled_ms:
            self._silent_until_s[address] = self._now() + patience_s(throttled_ms)
        if latency_s >= SLOW[-1][0]:
            self._soon(partial(self._cluster.answered, address, latency_s))

    def _pass_on(self, batch: Pending, outcome: pb.ProduceResult | TinymqError, broken: str = "") -> None:
        """Leave a batch that was sent to the loop. `broken`: the address whose connection was lost with it."""

        def adopted() -> None:
            if broken and isinstance(outcome, TinymqError):
                self._cluster.broke(broken, outcome)
            self._sender.adopt(batch, outcome)

        def adopt() -> bool:
            if not self._sender.closed:
                self._soon(adopted)
            return not self._sender.closed

        if not self._batcher.owners.pass_on(batch, adopt):
            batch.fail(OutcomeUnknown("the client was closed meanwhile: it may have been written"))

    def _keep(self, address: str, stream: FrameSocket) -> None:
        self._idle[address] = stream
        if self._closed and self._idle.pop(address, None) is not None:
            stream.close()

    def _drop(self, address: str, stream: FrameSocket) -> None:
        stream.close()
        self._open_after_s[address] = self._now() + REOPEN_S

    # ---- on the loop -------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more; threads that wait for an answer hear of it."""
        self._closed = True
        self._cluster.changed.pop(self._look, None)
        self._errands.close()
        if self._under_way is not None:
            self._under_way.stream.shut()
        while self._idle:
            self._idle.popitem()[1].close()

    def _look(self) -> None:
        """The view has changed: answers of a former leader are not waited for, as the sender does not."""
        way = self._under_way
        if way is not None:
            at = partition_of(self._cluster, way.lane)
            if at is not None and at.leader and (at.leader, at.leader_epoch) != (way.leader, way.leader_epoch):
                self._cluster.forgive(at.leader)
                self._moved = True
                way.stream.shut()
        known = {broker.address for broker in self._cluster.view.brokers.values()}
        for address in [a for a in self._idle if a not in known]:
            stream_there = self._idle.pop(address, None)
            if stream_there is not None:
                self._drop(address, stream_there)

    def _suspect(self, address: str, silent_s: float) -> None:
        self._cluster.health.suspect(address, silent_s, self._now())
        self._look()  # the view may have changed just before the record was under way
        self._cluster.refresh_soon()

    async def _open(self, address: str) -> None:
        stream, again_s = None, REOPEN_S
        try:
            stream = await self._cluster.connections.link(address).open_blocking(self._cluster.attempt_s)
            again_s = NO_PORT_S
        except TinymqError as error:
            LOG.debug("%s: no connection for lone records: %s", address, error)
        finally:
            if stream is not None:
                self._keep(address, stream)
            else:
                self._open_after_s[address] = self._now() + again_s

"""Send a producer's sealed batches to the leaders of their partitions, and act on the answers. Runs on the loop.

The send queue (tinymq/client/produce/send_queue.py) decides what an answer means. This module acts on it: it chooses
the broker and the time of the next attempt, and ends the deliveries. Nothing here runs per record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from tinymq.base.clock import Timer
from tinymq.base.errors import (
    BatchTooLarge,
    BrokerUnreachable,
    Closed,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    TinymqError,
    UnknownPartition,
    UnknownProducer,
    UnknownTopic,
)
from tinymq.base.quantity import quantity
from tinymq.client.cluster.background_tasks import BackgroundTasks, Retries
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.lookups import deletion_of
from tinymq.client.cluster.routing import Partition
from tinymq.client.common.config import ProducerConfig, is_numbered
from tinymq.client.net.broker_streams import StreamState
from tinymq.client.net.wire import read_error
from tinymq.client.produce.batcher import Batcher
from tinymq.client.produce.placement import Placement
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.send_queue import Ended, QueueOwner, SenderTransaction, SendQueue
from tinymq.client.produce.undelivered import Undelivered
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

TICK_S = 0.1  # the longest time between two looks at the deadlines
TICK_S_MIN = 0.005  # and the shortest
CLOSE_HINT = "check the addresses, and that the brokers run; then send the records again"
# In the place of a leader and its epoch: the leader was not looked up yet; the partition has no leader.
NOT_LOOKED, NOBODY = (0, 0), (0, -1)
ACKS = {"quorum": pb.ACKS_QUORUM, "leader": pb.ACKS_LEADER, "none": pb.ACKS_NONE}


class Sender:
    """The sender of one producer. All calls are made on the loop."""

    def __init__(
        self, cluster: Cluster, config: ProducerConfig, batcher: Batcher, staging: SenderTransaction | None = None
    ) -> None:
        """`staging`: the transaction to which all batches belong, or None."""
        self._cluster = cluster
        self._clock = cluster.clock
        self._config = config
        self._batcher = batcher
        self._staging = staging
        self._acks = ACKS[config.acks]
        self._active: dict[SendQueue, tuple[int, int]] = {}  # queues with batches; (leader, epoch) last seen by each
        self._retries = Retries(cluster.clock, self._drive)
        self._linger: Timer | None = None  # seals the open batch that is due next
        self._tick: Timer | None = None  # looks at the deadlines; set while a queue is active
        self._placement = Placement(cluster, batcher, self.look)
        self.producer_id = 0  # 0: not assigned yet, or batches have no numbers
        self._background = BackgroundTasks()
        self._undelivered = Undelivered(config.buffer_bytes_max)
        self.closed = False  # set under the batcher's lock
        cluster.changed[self.look] = None

    def pump(self) -> None:
        """Send what a thread has appended: batches were encoded, or one was opened. `Batcher.wake` calls this."""
        for queue in self._batcher.woken():
            self._drive(queue)
        self._seal_due()

    def _seal_due(self, *, all_open: bool = False) -> None:
        now_s = self._clock.monotonic()
        queues, next_s = self._batcher.seal_due(now_s, all_open=all_open)
        for queue in queues:
            self._drive(queue)
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if next_s is not None:
            self._linger = self._clock.call_later(max(0.0, next_s - now_s), self._seal_due)

    def look(self) -> None:
        """Continue with every queue, because the view or a connection has changed."""
        self._placement.renew()
        for queue, seen in list(self._active.items()):
            partition = partition_of(self._cluster, queue)
            if partition is not None and partition.leader and (partition.leader, partition.leader_epoch) != seen:
                self._active[queue] = (partition.leader, partition.leader_epoch)
                if seen != NOT_LOOKED:
                    self._leader_moved(queue, partition.leader)
            self._drive(queue)

    def _leader_moved(self, queue: SendQueue, leader: int) -> None:
        """Send to the new leader before the former one has answered, which may never happen. A resend is safe."""
        self._cluster.forgive(leader)  # it was elected, so it is alive, whatever it did before
        if is_numbered(self._config):
            for batch in queue.in_flight:
                if batch.sent:
                    queue.given_up(batch, self._clock.monotonic())
        queue.end_pause()

    def _drive(self, queue: SendQueue) -> None:
        """Send the batches of a queue, as far as possible now.

        Does nothing while a thread owns the queue: the thread wakes the loop when it gives the queue back.
        """
        idle = queue.idle
        if not self._batcher.owners.take(queue, QueueOwner.NOBODY if idle else QueueOwner.LOOP):
            return
        if idle:
            self._active.pop(queue, None)
            return
        if queue not in self._active:
            self._active[queue] = NOT_LOOKED
            if self._tick is None:
                self._tick = self._clock.call_later(TICK_S, self._look_at_deadlines)
        if is_numbered(self._config) and self._staging is None and not self.producer_id:
            self._background.run("producer id", self._open_producer)
            return
        self._move(queue)
        if queue.idle:
            self._drive(queue)  # which leaves the queue without an owner
            return
        if self._staging is not None and not self._staging.admits(queue, self.look):
            return
        partition = partition_of(self._cluster, queue)
        if partition is None:
            self._check(queue)
            return
        # `look` compares the leader with the last one seen. A queue that never saw a leader has nothing to resend.
        if not partition.leader and self._active[queue] == NOT_LOOKED:
            self._active[queue] = NOBODY
        stream = self._cluster.produce_stream(partition.leader) if partition.leader else None
        if stream is None:
            self._cluster.refresh_soon()
            return
        self._active[queue] = (partition.leader, partition.leader_epoch)
        if stream.state is not StreamState.OPEN:
            if stream.state is StreamState.IDLE:
                # The broker may be dead and another one lead. No other broker can take the batches, so this one is
                # tried again soon, too.
                self._cluster.refresh_soon()
                retry_s = self._cluster.retry_s(partition.leader)
                if retry_s:
                    self._retries.set(queue, retry_s)
                else:
                    stream.open()
            return
        now_s = self._clock.monotonic()
        while not stream.full:
            batch = queue.take(now_s)
            if batch is None:
                break
            self._send(queue, batch, stream.submit)
        if queue.resume_s > now_s:
            self._retries.set(queue, queue.resume_s - now_s)

    def _move(self, queue: SendQueue) -> None:
        """Move batches that are not bound to their partition to queues with a reachable leader."""
        for other in self._placement.move(queue):
            self._drive(other)

    def _send(self, queue: SendQueue, batch: ProducerBatch, submit: Callable[..., None]) -> None:
        request_id = batch.request_id = self._cluster.next_request()
        transaction = b"" if self._staging is None else self._staging.place_of(batch)
        packed, size = batch.pack(self.producer_id, self._acks, transaction)
        if self._acks == pb.ACKS_NONE:
            submit(request_id, packed, size, None)
            queue.acknowledged(batch)
            self._batcher.pool.release(batch.bytes)
            batch.succeed(-1, 0, False)
        else:
            submit(request_id, packed, size, partial(self._answered, batch, request_id))

    def adopt(self, batch: ProducerBatch, outcome: pb.ProduceResult | TinymqError) -> None:
        """Continue with a batch that a thread has sent and that did not succeed. The loop owns the queue already."""
        self._answered(batch, batch.request_id, outcome)
        if self.closed:
            self._end_all(batch.queue.abandon(Closed("the producer was closed meanwhile")))

    def _look_at_deadlines(self) -> None:
        self._tick = None
        now_s = self._clock.monotonic()
        for queue in list(self._active):
            ended = queue.expire(now_s, partial(_trouble, self._cluster, queue))
            self._end_all(ended)
            self._drive(queue)
            if ended and queue.open is not None:  # the open batch waited behind the ended ones, and may be due
                self._seal_due()
        if self._active and self._tick is None:
            wait_s = min(TICK_S, max(TICK_S_MIN, min(queue.deadline_s for queue in self._active) - now_s))
            self._tick = self._clock.call_later(wait_s, self._look_at_deadlines)

    # ---- answers -------------------------------------------------------------------------------------

    def _answered(self, batch: ProducerBatch, request_id: int, result: pb.ProduceResult | TinymqError) -> None:
        # Late: the attempt was given up when another leader was known, and the batch may have been sent again since.
        # A late acknowledgement still ends the batch, and a late refusal says that this attempt was not written.
        late = batch.request_id != request_id or not batch.sent
        if late and (batch.done or request_id not in batch.unanswered):
            return  # no attempt waits for this answer
        queue = batch.queue
        if isinstance(result, TinymqError) or result.HasField("error"):
            error = result if isinstance(result, TinymqError) else read_error(result.error)
            if late:
                queue.answered_late(batch, request_id, unknown=isinstance(error, OutcomeUnknown))
            else:
                self._failed_attempt(queue, batch, error)
        else:
            queue.acknowledged(batch)
            self._batcher.pool.release(batch.bytes)
            # The batch may be a duplicate, by its message id, of a delayed record where this one is not delayed, or the
            # reverse. A record that was not delayed has no schedule id, and was delivered when it was appended. The
            # offset of one that was delayed is unknown.
            if batch.due is not None:
                batch.scheduled = (result.schedule_id, result.deliver_at_us or result.append_time_us)
            has_offset = self._staging is None and not result.schedule_id
            base_offset = result.base_offset if has_offset else -1
            batch.succeed(base_offset, result.append_time_us, result.duplicate)
        if queue.open is not None:
            self._seal_due()
        self._drive(queue)

    def _failed_attempt(self, queue: SendQueue, batch: ProducerBatch, error: TinymqError) -> None:
        now_s = self._clock.monotonic()
        if not isinstance(error, OutOfOrderSequence | UnknownProducer):  # these only tell that an earlier batch failed
            queue.refusal = error
        if isinstance(error, NotLeader):
            # Note the refusal first: learning the new leader calls `look`, which would give this attempt up.
            queue.refused(batch, now_s, 0.0)
            if not self._cluster.learn(queue.topic, queue.partition, error):
                queue.back_off(now_s)
                self._cluster.refresh_soon()
        elif isinstance(error, UnknownTopic | UnknownPartition):
            queue.refused(batch, now_s)  # the partition may be too new for this broker
            self._check(queue)
        elif isinstance(error, OutOfOrderSequence | UnknownProducer):
            self._end_all(queue.out_of_sequence(batch, now_s, error))
        elif isinstance(error, OutcomeUnknown):
            self._end_all(queue.lost(batch, now_s, error))
        elif error.retriable:
            wish_ms = error.detail.get("retry_after_ms", "")
            queue.refused(batch, now_s, int(wish_ms) / 1000 if wish_ms.isdigit() else None)
        else:
            self._end_all([queue.rejected(batch, error)])
        if isinstance(error, OutcomeUnknown | BrokerUnreachable | BatchTooLarge):
            self._cluster.refresh_soon()  # another broker may lead, or the topic's bounds may have changed

    def _end_all(self, ended: list[Ended]) -> None:
        for batch, error in ended:
            self._batcher.pool.release(batch.bytes)
            self._undelivered.add(batch)
            batch.fail(error)
        if ended and self._staging is not None:
            self._staging.failed(ended[0][1])

    async def _open_producer(self) -> None:
        try:
            request, timeout_s = pb.OpenProducerRequest(), self._config.delivery_timeout_ms / 1000
            reply = await self._cluster.ask(request, timeout_s=timeout_s)
        except TinymqError as error:
            LOG.debug("no producer id yet: %s", error)
            if not error.retriable and not isinstance(error, OutcomeUnknown):
                for queue in list(self._active):
                    self._end_all(queue.abandon(error))
                self._seal_due()
            return
        self.producer_id = reply.producer_id
        asyncio.get_running_loop().call_soon(self.look)

    def _check(self, queue: SendQueue) -> None:
        """Look up in the background whether the queue's partition exists. If not, all its batches end."""
        self._background.run(f"check {queue.topic}/{queue.partition}", partial(self._look_for, queue))

    async def _look_for(self, queue: SendQueue) -> None:
        gone = await deletion_of(self._cluster, queue.topic, queue.topic_id, queue.partition)
        if gone is None:
            return
        lost = [queue]
        if isinstance(gone, UnknownTopic):
            self._batcher.buffers.forget(queue.topic, queue.topic_id)
            lost = [x for x in self._active if x.topic_id == queue.topic_id]
        elif self._batcher.owners.take(queue):
            for other in self._placement.move(queue, gone=True):
                self._drive(other)
        for ended in lost:
            if self._batcher.owners.take(ended):
                self._end_all(ended.abandon(gone))
            self._drive(ended)
        self._seal_due()

    # ---- the end -------------------------------------------------------------------------------------

    @property
    def undelivered(self) -> int:
        """The number of records that failed since the last report, and whose Delivery nobody asked."""
        return self._undelivered.count

    async def flush(self, timeout_s: float | None) -> None:
        """Send everything that was appended until now, and wait until it has ended.

        Raises TimeoutError, and NotDelivered with the records that failed since the last report.
        """
        self.pump()
        self._seal_due(all_open=True)
        pending = [b for queue in self._batcher.buffers.queues.values() for b in (*queue.sealed, *queue.in_flight)]
        try:
            async with asyncio.timeout(timeout_s):
                for batch in pending:
                    await batch.wait_async()
                if self._acks == pb.ACKS_NONE:
                    await self._cluster.connections.written()
        except TimeoutError:
            left = sum(batch.count for batch in pending if not batch.done)
            raise TimeoutError(f"{quantity(left, 'record')} still unacknowledged after {timeout_s} s") from None
        self._undelivered.report()

    async def close(self, timeout_s: float) -> None:
        """Flush within `timeout_s`, then end the batches that are left. Raises NotDelivered."""
        if self.closed:
            return
        self._batcher.close()
        late = False
        try:
            await self.flush(timeout_s)
        except TimeoutError:
            late = True
        finally:
            self._stop()
        if late:
            for queue in self._batcher.buffers.queues.values():
                if self._batcher.owners.take(queue):
                    self._end_all(queue.abandon(_left_behind(self._cluster, queue, timeout_s)))
            self._undelivered.report()

    def abandon(self, error: TinymqError) -> None:
        """Close at once, and end all batches with `error`. Only while no thread sends by itself."""
        self._batcher.close()
        self._seal_due(all_open=True)
        self._stop()
        for queue in self._batcher.buffers.queues.values():
            if self._batcher.owners.take(queue):
                self._end_all(queue.abandon(error))

    def _stop(self) -> None:
        """Send nothing more, and react to nothing."""
        with self._batcher.lock:
            self.closed = True  # a thread that still owns a queue sees this and ends its batch by itself
        self._cluster.changed.pop(self.look, None)
        for timer in (self._linger, self._tick):
            if timer is not None:
                timer.cancel()
        self._retries.close()
        self._placement.close()
        self._background.close()


def partition_of(cluster: Cluster, queue: SendQueue) -> Partition | None:
    """Return the partition of a queue as the view has it; None if the view lacks it, or has another topic id."""
    topic = cluster.view.topics.get(queue.topic)
    return topic.partition(queue.partition) if topic is not None and topic.topic_id == queue.topic_id else None


def _trouble(cluster: Cluster, queue: SendQueue) -> str:
    """Return why the batches of a queue are not acknowledged: all failing addresses, else the leader's last error."""
    topic = cluster.view.topics.get(queue.topic)
    partition = topic.partition(queue.partition) if topic is not None else None
    led = partition is not None and partition.leader
    refusal = queue.refusal.message if queue.refusal is not None else ""
    return cluster.trouble() or refusal or ("" if led else "no leader is known")


def _left_behind(cluster: Cluster, queue: SendQueue, timeout_s: float) -> TinymqError:
    trouble = _trouble(cluster, queue)
    because = f": {trouble}" if trouble else ""
    return queue.unwritten(f"the producer was closed, and not delivered within {timeout_s:.3g} s{because}", CLOSE_HINT)

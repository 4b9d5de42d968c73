"""Producers that speak the protocol themselves, and test a partition's producer state harder than tinymq's client does.

Each has up to WINDOW batches in flight. A batch without an early answer is sent again under its number, over either of
two connections, while earlier copies may still arrive. Now and then a batch is held back, as if the network had lost
it, and later ones arrive first. The protocol allows all of it: a partition has to refuse a batch that is too early,
answer a duplicate when the first copy is committed, and append once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tinymq.base.errors import NotLeader, OutcomeUnknown, TinymqError
from tinymq.client import AsyncClient
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.net.broker_streams import StreamState
from tinymq.client.net.wire import batch_head, produce_batch, read_error
from tinymq.format.batch import encode
from tinymq.proto import tinymq_pb2 as pb
from tinymq_chaos.records import columns
from tinymq_chaos.workloads.clients.threaded_client import cluster_of
from tinymq_chaos.workloads.context import CALL_S, Context, pause, recorded
from tinymq_chaos.workloads.producers import LIFE_S, NumberedProducer

WINDOW = 4  # fewer than a partition remembers (tinymq/broker/state/producers.py): it recognises every copy
HELD_BACK = 0.1  # of all batches
HOLD_S_MAX = 0.05
PATIENCE_S = (0.01, 0.04, 0.2)  # without an answer, before the first copy; twice as long before each further one
AGAIN_S = 0.02  # after a refusal


@dataclass(slots=True)
class Sequence:
    """The sequence numbers of a producer in one partition."""

    producer_id: int
    name: str  # of the producer, in the history
    epoch: int = 0
    sequence: int = 0

    def renumber(self) -> None:
        """Start a new epoch: what is unknown in the old one stays so, and never comes after a record of the new one."""
        self.epoch += 1
        self.sequence = 0


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """A batch with its sequence number, the same for every copy."""

    head: bytes
    message: Any  # Arrow's buffer


class PipeliningProducer:
    """One producer, one partition, two connections."""

    def __init__(self, context: Context, sender: NumberedProducer, clients: list[AsyncClient], partition: int) -> None:
        self._context = context
        self._sender = sender
        self._clusters: list[Cluster] = [cluster_of(client) for client in clients]
        self._partition = partition
        self._lives = 0

    async def run(self) -> None:
        """Run until the workload stops. An unknown outcome ends a row; a new epoch or another producer follows."""
        context, numbers = self._context, None
        for cluster in self._clusters:
            await self._know_topic(cluster)
        while not context.stop.is_set():
            if numbers is None or context.rng.random() < 0.5:
                numbers = await self._open()
            else:
                numbers.renumber()
            if numbers is not None:
                await self._row(numbers)
            await pause(context, 0.0, 0.2)

    async def _know_topic(self, cluster: Cluster) -> None:
        while True:
            try:
                await cluster.topic(self._sender.topic, CALL_S)
                return
            except TinymqError:
                await self._context.clock.sleep(0.1)

    async def _open(self) -> Sequence | None:
        self._lives += 1
        try:
            reply = await self._clusters[0].ask(pb.OpenProducerRequest(), timeout_s=CALL_S)
        except TinymqError:
            return None
        return Sequence(reply.producer_id, f"{self._sender.process}.{self._partition}/{self._lives}")

    async def _row(self, numbers: Sequence) -> None:
        """Send one batch after another until one has an unknown outcome, or for about LIFE_S. All have ended on
        return."""
        context, over = self._context, asyncio.Event()
        until_s = context.clock.monotonic() + context.rng.uniform(0.2, 1) * LIFE_S
        sending: set[asyncio.Task[None]] = set()
        while context.clock.monotonic() < until_s and not (context.stop.is_set() or over.is_set()):
            for _ in range(context.rng.randint(1, WINDOW)):
                while len(sending) >= WINDOW:
                    _, sending = await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
                if not over.is_set():
                    sending.add(self._send(numbers, over))
            await pause(context, 0.0, 0.3)
        if sending:
            await asyncio.wait(sending)

    def _send(self, numbers: Sequence, over: asyncio.Event) -> asyncio.Task[None]:
        sender = self._sender
        names = sender.records(self._context.rng.randint(1, 3))
        head = batch_head(
            codec=0, record_count=len(names), producer_id=numbers.producer_id, producer_epoch=numbers.epoch,
            first_sequence=numbers.sequence,
        )  # fmt: skip
        numbers.sequence += len(names)
        contents = [sender.content(name) for name in names]
        message = encode(*columns(contents, self._context.clock.wall_us()))
        row = f"{numbers.name}/{numbers.epoch}"
        call = sender.begin(names, self._partition, numbers.name, idempotent=True, row=row)
        deadline_s = self._context.clock.monotonic() + CALL_S

        async def send() -> None:
            with recorded(call):
                try:
                    answer = await self._deliver(NumberedBatch(head, message), deadline_s, over)
                    call.ok([self._partition, int(answer.base_offset), int(answer.append_time_us)])
                finally:
                    if call.result is None:
                        over.set()
            sender.ended(call)

        return asyncio.create_task(send())

    async def _deliver(self, batch: NumberedBatch, deadline_s: float, over: asyncio.Event) -> Any:
        """Return the ProduceResult that some attempt is answered with.

        Raises OutcomeUnknown if an earlier batch has an unknown outcome, which may block this one, or at the deadline.
        """
        context = self._context
        if context.rng.random() < HELD_BACK:
            await context.clock.sleep(context.rng.uniform(0.0, HOLD_S_MAX))
        answers: asyncio.Queue[tuple[Cluster, Any]] = asyncio.Queue()
        for patience_s in self._patience(deadline_s):
            if over.is_set():
                break
            cluster = context.rng.choice(self._clusters)
            if not self._submit(cluster, batch, deadline_s, answers):
                await context.clock.sleep(min(AGAIN_S, patience_s))
                continue
            try:
                async with asyncio.timeout(patience_s):
                    asked, answer = await answers.get()
            except TimeoutError:
                cluster.refresh_soon()
                continue
            if not isinstance(answer, TinymqError) and not answer.HasField("error"):
                return answer
            self._learn(asked, answer if isinstance(answer, TinymqError) else read_error(answer.error))
            await context.clock.sleep(min(AGAIN_S, patience_s))
        raise OutcomeUnknown("sent, and not answered")

    def _patience(self, deadline_s: float) -> Iterator[float]:
        """Yield how long to wait for each attempt's answer, until the deadline."""
        patience_s = self._context.rng.choice(PATIENCE_S)
        while (left_s := deadline_s - self._context.clock.monotonic()) > 0:
            yield min(left_s, patience_s)
            patience_s = min(1.0, patience_s * 2)

    def _submit(
        self, cluster: Cluster, batch: NumberedBatch, deadline_s: float, answers: asyncio.Queue[tuple[Cluster, Any]]
    ) -> bool:
        """Send it, and return True, if there is a connection to the leader."""
        topic = cluster.view.topics[self._sender.topic]
        at = topic.partition(self._partition)
        stream = cluster.produce_stream(at.leader) if at is not None and at.leader else None
        if stream is None or stream.state is not StreamState.OPEN:
            if stream is not None:
                stream.open()
            cluster.refresh_soon()
            return False
        left_s = deadline_s - self._context.clock.monotonic()
        number = cluster.next_request()
        packed, size = produce_batch(
            request_id=number, topic_id=topic.topic_id, partition=self._partition, head=batch.head,
            message=batch.message, acks=pb.ACKS_QUORUM, timeout_ms=max(1, int(left_s * 1000)),
        )  # fmt: skip
        stream.submit(number, packed, size, lambda answer: answers.put_nowait((cluster, answer)))
        return True

    def _learn(self, cluster: Cluster, error: TinymqError) -> None:
        if not isinstance(error, NotLeader) or not cluster.learn(self._sender.topic, self._partition, error):
            cluster.refresh_soon()


async def push(context: Context, sender: NumberedProducer, client: AsyncClient) -> None:
    """Run a producer for each partition."""
    clients = [client, context.client(request_timeout_ms=CALL_S * 1000)]
    await asyncio.gather(*(PipeliningProducer(context, sender, clients, n).run() for n in range(sender.partitions)))

"""From any broker to the leader of a partition: this broker, or one hop away over tinymq's own client.

The client finds the leader, waits for it and asks again until the deadline, as in every program. A forwarded call is
answered by the broker that it reaches, or not at all: two brokers that take each other for the leader must not send a
call to and fro.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from google.protobuf.message import Message

from tinymq.base.config import format_address
from tinymq.base.errors import Closed, NotLeader, NotReady, OutcomeUnknown, TinymqError, Unavailable
from tinymq.base.types import PeerAddress
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.broker import Broker
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leader_calls import at_leader, topic_with
from tinymq.client.common.config import ClientConfig
from tinymq.client.net.ports import Link
from tinymq.gateway.call import NOTHING_DONE, RECEIVES, Call
from tinymq.gateway.links import CallerLink, LinkPool, OwnLink, PeerConnector
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.methods import method_named
from tinymq.registry.state.values import QueueRecord
from tinymq.rpc.common.broker_state import BrokerState, Serving
from tinymq.rpc.common.call_context import CLIENT_ID
from tinymq.rpc.common.caller import PRINCIPAL, for_the_broker
from tinymq.rpc.common.forward_mark import FORWARDED, ForwardMarks
from tinymq.rpc.common.lookup import find_queue, find_topic

T = TypeVar("T")

SILENT_S = 3.0  # a repeatable call without an answer this long after its wait goes to the leader of that moment
TIMEOUT_S_MIN = 0.001


class LeaderCalls:
    """The calls of one gateway to leaders, until `close`."""

    def __init__(
        self,
        serving: Serving,
        connector: PeerConnector,
        marks: ForwardMarks,
        *,
        metadata: Callable[[pb.MetadataRequest], Awaitable[pb.MetadataReply]],
        rng: random.Random,
        elsewhere: Iterable[PeerAddress] = (),
    ) -> None:
        """`metadata` answers as this broker's own Metadata RPC. `elsewhere` overrides addresses of other brokers."""
        self._serving = serving
        self._connector = connector
        self._marks = marks
        self._metadata = metadata
        self._rng = rng
        self._elsewhere = {peer.broker_id: format_address(peer.host, peer.port) for peer in elsewhere}
        self._pool: LinkPool | None = None  # these two from the first call that is forwarded
        self._cluster: Cluster | None = None

    @property
    def stays(self) -> bool:
        """Will this broker be there for another attempt?"""
        return self._serving.state is BrokerState.RUNNING

    async def close(self) -> None:
        """End the calls that wait for other brokers: they may have been done."""
        if self._cluster is not None and self._pool is not None:
            await self._pool.close()
            await self._cluster.close()

    async def at_leader(
        self,
        call: Call,
        method: str,
        request: Any,
        here: Callable[[Partition], Awaitable[T]],
        *,
        repeatable: bool,
        waits_s: float = 0.0,
        patient: bool = True,
    ) -> T:
        """Return `here(partition)` if this broker leads `request.queue` of `request.topic`, else its leader's answer.

        `repeatable`: asking twice does no harm, so that an unknown outcome is settled by asking again. `waits_s`: so
        long may the leader itself wait. `patient`: wait for a leader if there is none. Raises the leader's error,
        DeadlineExceeded when nothing was done in time, OutcomeUnknown.
        """
        try:
            return await self._here(call, request, here)
        except NOTHING_DONE as error:
            last: TinymqError = error
        except OutcomeUnknown as error:
            if not repeatable:
                raise
            last = error
        # A NotLeader names the leader, so one more attempt is made even for a caller without patience.
        hopeless = not patient and not isinstance(last, NotLeader | OutcomeUnknown)
        if call.forwarded or not self.stays or hopeless:
            raise last
        attempt_s = SILENT_S + waits_s if repeatable else math.inf
        try:
            answer: T = await self._over_client(call, method, request, here, last, attempt_s=attempt_s, patient=patient)
            return answer
        except (Unavailable, Closed) as error:  # a refusal, unless an earlier attempt may have been done
            if error.detail.pop("unclear", "") or isinstance(last, OutcomeUnknown):
                raise OutcomeUnknown(f"an attempt may have been done; after it: {error.message}") from None
            raise

    async def _over_client(
        self,
        call: Call,
        method: str,
        request: Any,
        here: Callable[[Partition], Awaitable[T]],
        last: TinymqError,
        *,
        attempt_s: float,
        patient: bool,
    ) -> Any:
        """Let the client find the leader and ask it, after this broker's own attempt failed with `last`.

        `attempt_s` bounds each attempt of a repeatable call; it is infinite if an unknown outcome ends the call.
        """
        cluster, own = self._core(call.broker)
        left_s = max(TIMEOUT_S_MIN, call.left_s())
        topic = await topic_with(cluster, request.topic, request.queue, left_s)
        if isinstance(last, NotLeader):  # this broker often knows a new leader before the client does
            cluster.learn(topic.name, request.queue, last)

        async def ask(address: str, left_s: float) -> Any:
            if address == own:
                return await self._here(call, request, here)
            return await self._forward(call, address, method, request, min(left_s, attempt_s))

        def goes_on(unclear: bool) -> bool:
            return self.stays and (patient or unclear or isinstance(last, OutcomeUnknown))

        return await at_leader(
            cluster, topic, request.queue, ask,
            what=method, timeout_s=left_s, repeatable=attempt_s < math.inf, goes_on=goes_on,
        )  # fmt: skip

    async def _here(self, call: Call, request: Any, here: Callable[[Partition], Awaitable[T]]) -> T:
        """Serve the call by this broker's own replica. Raises NotLeader with the leader that this broker knows."""
        broker = call.broker
        queue = await find_queue(broker, await find_topic(broker, request.topic), request.queue)
        partition = broker.replica_host.get(queue.topic_id, queue.partition)
        if partition is None:
            raise _no_replica(queue, broker)
        if not partition.leading:
            raise partition.not_leader()
        return await here(partition)

    async def _forward(self, call: Call, address: str, method: str, request: Any, timeout_s: float) -> Any:
        assert self._pool is not None, "made with the client"
        broker = call.broker
        receiver = next((b.broker_id for b in broker.registry.get_all_brokers() if b.address == address), 0)
        if not receiver:
            raise NotReady(f"no broker is registered at {address}")
        metadata = (
            (FORWARDED, self._marks.sign(broker, receiver, method, call.client, request, principal=call.principal)),
            (CLIENT_ID, call.client),
            (RECEIVES, str(call.receives_bytes)),
            *(((PRINCIPAL, call.principal),) if call.principal else ()),
        )
        where = self._elsewhere.get(receiver, address)
        return await self._pool.call(where, method_named("QueueService", method), request, timeout_s, metadata)

    async def _own_metadata(self, request: pb.MetadataRequest) -> pb.MetadataReply:
        with for_the_broker():  # the view is one for all callers, and the gate has admitted this one
            return await self._metadata(request)

    def _core(self, broker: Broker) -> tuple[Cluster, str]:
        """The client in this broker, and this broker's own address. Raises NotReady."""
        own = broker.address_of(broker.env.broker_id)
        if own is None:
            raise NotReady("this broker is not registered")
        if self._cluster is None:
            self._pool = LinkPool(self._connector, broker.limits.connection_streams_max // 2)
            others = _Connector(self._connector, own, self._own_metadata, self._serving)
            self._cluster = Cluster([own], ClientConfig(), others, broker.env.clock, self._rng)
        return self._cluster, own


class _Connector:
    """Makes the links on which the client asks for metadata: its own broker is asked without a connection."""

    def __init__(
        self,
        connector: PeerConnector,
        own: str,
        metadata: Callable[[pb.MetadataRequest], Awaitable[pb.MetadataReply]],
        serving: Serving,
    ) -> None:
        self._connector = connector
        self._own = own
        self._metadata = metadata
        self._serving = serving

    def link(self, address: str) -> Link:
        if address == self._own:
            return OwnLink(address, self._metadata)
        link = self._connector.link(address)
        return _OtherLink(link, self._metadata, self._serving)


class _OtherLink(OwnLink):
    """A link to another broker, for metadata. While callers are checked, this broker has no token to ask others with,
    and asks itself."""

    def __init__(
        self,
        link: CallerLink,
        metadata: Callable[[pb.MetadataRequest], Awaitable[pb.MetadataReply]],
        serving: Serving,
    ) -> None:
        super().__init__(link.address, metadata)
        self._link = link
        self._serving = serving

    async def call(self, request: Message, timeout_s: float) -> pb.MetadataReply:
        if self._serving.gate.on:
            return await super().call(request, timeout_s)
        reply: pb.MetadataReply = await self._link.call(request, timeout_s)
        return reply

    async def close(self) -> None:
        await self._link.close()


def _no_replica(queue: QueueRecord, broker: Broker) -> NotLeader:
    leader, term = broker.leader_of(queue.group)
    return NotLeader(
        f"{queue.topic}/{queue.partition}: broker {broker.env.broker_id} holds no replica",
        leader=leader or None,
        leader_address=broker.address_of(leader),
        leader_epoch=term,
    )

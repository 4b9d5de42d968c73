"""Registrations and their nodes: a broker's node exists while the session lives that registered the broker."""

from __future__ import annotations

from tinymq.proto import registry_pb2 as pb
from tinymq.registry.leases import Leases
from tinymq.registry.state.state import RegistryState
from tinymq.registry.state.values import BrokerRecord
from tinymq.registry.state.wire import broker_from_wire
from tinymq.registry.zookeeper import tree
from tinymq.registry.zookeeper.session import ZookeeperSession
from tinymq.registry.zookeeper.tree import CreateNode, Op, PutNode, RemoveNode


class BrokerNodes:
    """The brokers that this process has registered, through the present session or an earlier one."""

    def __init__(self, session: ZookeeperSession, state: RegistryState, lease_s: float) -> None:
        self.left: list[BrokerRecord] = []  # expired, and not unregistered yet
        self._session = session
        self._state = state
        self._leases = Leases(lease_s)
        self._held: dict[int, BrokerRecord] = {}  # registrations that this process keeps up, by broker
        self._sessions: dict[int, int] = {}  # the ZooKeeper session that owns a broker's node, by broker

    def renew(self, broker: BrokerRecord, now_s: float) -> None:
        self._leases.renew(broker, now_s)
        self._held[broker.broker_id] = broker

    def release(self, broker_id: int, session: int) -> None:
        """Stop keeping up a registration: its node is not created again."""
        held = self._held.get(broker_id)
        if held is not None and session in (0, held.session):
            del self._held[broker_id]

    def let_expire(self, now_s: float) -> None:
        """End the leases of brokers that stopped renewing, although the session lives on.

        Without a connection no lease can be renewed, so none ends.
        """
        if not self._session.connected:
            self._leases.reset()
            return
        for broker in self._leases.expired(self._held, now_s):
            del self._held[broker.broker_id]
            self.left.append(broker)

    def holds(self, broker: BrokerRecord) -> bool:
        return self._held.get(broker.broker_id) == broker

    def stands(self, broker: BrokerRecord) -> bool:
        """Whether the broker is registered, by a node of the present session."""
        registered = self._state.brokers.get(broker.broker_id) == broker
        ours = self._sessions.get(broker.broker_id) == self._session.session_id
        return registered and ours and self._session.connected

    def stood(self, broker: BrokerRecord, session_id: int) -> None:
        """Note that the broker's node exists, and belongs to the session `session_id`."""
        self._sessions[broker.broker_id] = session_id

    def seen(self, names: set[str]) -> tuple[list[BrokerRecord], list[BrokerRecord]]:
        """Compare the present nodes with the registrations. Returns (own brokers that lack a registration or a node,
        other processes' registered brokers without a node).

        An own broker that another process has registered again waits for its next renewal: otherwise the two processes
        would take the registration from each other forever.
        """
        for broker_id in [each for each in self._sessions if str(each) not in names]:
            del self._sessions[broker_id]
        brokers = self._state.brokers
        missing = [b for b in self._held.values() if brokers.get(b.broker_id, b) == b and not self.stands(b)]
        registered = [self._state.brokers[broker_id] for broker_id in sorted(self._state.brokers)]
        expired = [b for b in registered if str(b.broker_id) not in names and b.broker_id not in self._held]
        return missing, expired

    # The methods below raise Disconnected, Denied.

    async def is_there(self, broker_id: int) -> bool:
        return await self._session.get(tree.broker_path(broker_id)) is not None

    async def ops_of(self, command: pb.Command, *, expired: bool) -> list[Op]:
        """The operations on the broker's node for a command that registers or unregisters it.

        `expired`: the operations conflict if the node exists.
        """
        if command.HasField("register_broker"):
            return await self.own_ops(broker_from_wire(command.register_broker))
        path = tree.broker_path(command.unregister_broker.broker_id)
        if expired:
            return [CreateNode(path), RemoveNode(path)]  # conflicts if it exists; ZooKeeper has no such check
        node = await self._session.get(path)
        return [RemoveNode(path, node.version)] if node is not None else []

    async def own_ops(self, broker: BrokerRecord) -> list[Op]:
        """The operations that make the broker's node one of the present session. A node of an earlier session would go
        when that session ends."""
        path, data = tree.broker_path(broker.broker_id), tree.pack_broker(broker)
        node = await self._session.get(path)
        if node is None:
            return [CreateNode(path, data, ephemeral=True)]
        if node.owner != self._session.session_id:
            return [RemoveNode(path, node.version), CreateNode(path, data, ephemeral=True)]
        return [PutNode(path, data, node.version)] if node.data != data else []

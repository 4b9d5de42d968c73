"""The registry in ZooKeeper: each change is a transaction on the tree (tree.py), decided by `RegistryState`.

A broker decides a change on a fork of its local state, and writes it if /version shows that no other change came in
between. Otherwise it applies the other changes and decides again. Every broker applies the same commands in the same
order, so the same version is the same state everywhere. If the answer to a change is lost, the broker looks for the
command's id among the changes before it writes the change again.

A registration is a record in the state, and a node that ZooKeeper removes with the broker's session. A broker that sees
another broker's record without a node unregisters it by a command. A broker whose own node is missing makes it again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from functools import partial

import structlog

from tinymq.base.clock import Clock, Timer
from tinymq.base.config import Timing
from tinymq.base.errors import InvalidConfig, InvalidRequest, TinymqError, WrongCluster
from tinymq.base.quantity import quantity
from tinymq.base.types import GroupId
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.base_registry import BaseRegistry
from tinymq.registry.state.effects import BrokersChanged
from tinymq.registry.state.state import RegistryState, reply_error
from tinymq.registry.state.values import BrokerRecord
from tinymq.registry.zookeeper import tree
from tinymq.registry.zookeeper.broker_nodes import BrokerNodes
from tinymq.registry.zookeeper.retry import RETRY_S, Tries, Trying
from tinymq.registry.zookeeper.session import Disconnected, StaleTree, ZookeeperSession
from tinymq.registry.zookeeper.stored_state import StoredState
from tinymq.registry.zookeeper.tree import CheckNode, StoredChange

REQUEST_BYTES_MAX = 1_000_000  # ZooKeeper accepts 1,048,575 in one request by default
TROUBLE_S = 1.0  # before a tree that cannot be read is read again

logger = structlog.get_logger("tinymq.registry")


class ZookeeperRegistry(BaseRegistry):
    """RegistryService on ZooKeeper.

    While ZooKeeper cannot be reached, reads return the last known state, and changes wait until their deadline.
    """

    def __init__(
        self, session: ZookeeperSession, cluster_id: bytes, clock: Clock, rng: random.Random, timing: Timing
    ) -> None:
        """`session` is not started yet, and no other object uses it."""
        super().__init__(RegistryState(), clock, rng, timing)
        self._where = session.where
        self._cluster_id = cluster_id
        self._session = session
        self._session.on_state = self._on_state
        self._session.on_watch = self._wake_up
        self._stored = StoredState(self._session, self._state, self._advanced)
        self._trying = Trying(self._session, self._stored, clock)
        self._nodes = BrokerNodes(self._session, self._state, timing.registration_lease_s)
        self._connected = False
        self._wake = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._stopped = False

    # ---- start and stop -------------------------------------------------------------------------------------------

    async def start(self, on_disk: Collection[GroupId]) -> None:
        """Raises NotReady (no server, with a reason for each), WrongCluster, InvalidConfig (an empty registry for a
        broker that has data), Denied, CorruptData."""
        await self._session.start(self._timing.command_timeout_s)
        await self._trying.settled(lambda tries: self._open(on_disk), self._timing.command_timeout_s)
        self._following = asyncio.get_running_loop().create_task(self._follow())
        self._check_leases()
        self._wake_up()

    def close(self) -> None:
        self._stopped = True
        for each in (self._timer, self._following):
            if each is not None:
                each.cancel()

    async def stop(self) -> None:
        again = self._stopped
        self.close()
        if self._following is not None:
            await asyncio.gather(self._following, return_exceptions=True)
        if not again:
            await self._session.stop()

    async def _open(self, on_disk: Collection[GroupId]) -> None:
        await self._session.make_root()
        await self._session.sync()
        cluster = await self._session.get(tree.CLUSTER)
        if cluster is None:
            if on_disk:
                held = quantity(len(on_disk), "partition")
                raise InvalidConfig(
                    f"this broker has data of {held}, and the registry {self._where} is empty",
                    hint="check the registry's URL: the registry that knows of them is another",
                )
            await self._session.commit(tree.first_ops(self._cluster_id))  # StaleTree: another broker has
            logger.info("registry_created", registry=self._where)
        elif tree.cluster_of(cluster.data) != self._cluster_id.hex():
            raise WrongCluster(
                f"the registry {self._where} is of cluster {tree.cluster_of(cluster.data)[:32]}",
                hint="give each cluster a path of its own in the registry's URL",
            )
        await self._stored.load()

    @property
    def reason(self) -> str:
        if self._connected:
            return ""
        return f"no connection to ZooKeeper ({self._where}): metadata is shown as of version {self.version}"

    # ---- changes ------------------------------------------------------------------------------------------

    async def register_broker(self, broker: BrokerRecord) -> float:
        self._nodes.renew(broker, self._clock.monotonic())
        if not self._nodes.stands(broker):
            await self._trying.settled(partial(self._hold, broker), self._timing.command_timeout_s)
        return self._timing.registration_lease_s

    async def unregister_broker(self, broker_id: int, session: int = 0) -> None:
        self._nodes.release(broker_id, session)
        await super().unregister_broker(broker_id, session)

    async def refresh(self, timeout_s: float) -> int:
        await self._trying.settled(lambda tries: self._stored.refresh(), timeout_s)
        return self.version

    async def _submit(self, command: pb.Command, timeout_s: float) -> pb.Reply:
        return await self._trying.settled(partial(self._attempt, command), timeout_s)

    async def _attempt(self, command: pb.Command, tries: Tries, *, expired: bool = False) -> pb.Reply:
        """Decide `command` on a fork of the local state, and write the changes.

        `expired`: the command unregisters a broker whose node is gone, and must do nothing if the node is back.
        """
        fork = self._state.fork()
        reply, effects = fork.apply(command)
        if fork.version == self.version:
            return reply  # the command was carried out before
        change = StoredChange(command, reply)
        ops = tree.change_ops(self._state, fork, self._stored.node_version, change, effects, self._stored.deleted)
        if BrokersChanged() in effects:
            ops += await self._nodes.ops_of(command, expired=expired)
        if tree.size_of(ops) > REQUEST_BYTES_MAX:
            hint = f"ZooKeeper takes {REQUEST_BYTES_MAX} bytes at once: use fewer partitions or consumers"
            raise InvalidRequest(f"the change takes {tree.size_of(ops)} bytes", hint=hint)
        await self._trying.commit(ops, tries)
        self._stored.apply(change)  # does nothing if the change has come back from ZooKeeper already
        return reply

    async def _hold(self, broker: BrokerRecord, tries: Tries) -> None:
        """Register `broker`, or create its node again."""
        session_id, node_version = self._session.session_id, self._stored.node_version
        if not self._nodes.holds(broker):
            return  # it has unregistered meanwhile
        if self._state.brokers.get(broker.broker_id) != broker:
            error = reply_error(await self._attempt(self._registration(broker), tries))
            if error is not None:
                raise error
        elif ops := await self._nodes.own_ops(broker):
            await self._trying.commit([CheckNode(tree.VERSION, node_version), *ops], tries)
        self._nodes.stood(broker, session_id)

    async def _expire(self, broker: BrokerRecord, tries: Tries) -> None:
        """Unregister a broker whose node is gone."""
        if self._state.brokers.get(broker.broker_id) != broker or await self._nodes.is_there(broker.broker_id):
            return
        expiry = pb.UnregisterBroker(broker_id=broker.broker_id, session=broker.session)
        await self._attempt(self._stamp(pb.Command(unregister_broker=expiry)), tries, expired=True)
        logger.info("registration_expired", broker=broker.broker_id)

    # ---- following ------------------------------------------------------------------------------------------

    def _on_state(self) -> None:
        was, self._connected = self._connected, self._session.connected
        if self._connected and not was:
            logger.info("registry_connected", registry=self._where, version=self.version)
        elif was and not self._connected and not self._stopped:
            logger.warning("registry_unreachable", registry=self._where, shown_as_of=self.version)
        self._wake_up()

    def _wake_up(self) -> None:
        self._wake.set()

    def _check_leases(self) -> None:
        self._nodes.let_expire(self._clock.monotonic())
        if self._nodes.left:
            self._wake_up()
        self._timer = self._clock.call_later(self._timing.registration_renew_s / 2, self._check_leases)

    async def _follow(self) -> None:
        """Apply the changes of other brokers, and keep registrations and nodes in step. Ends with `close`."""
        trouble = ""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._session.connected:
                continue
            try:
                await self._stored.refresh()
                await self._check_registrations()
                trouble = ""
                continue
            except (StaleTree, Disconnected):
                await self._clock.sleep(RETRY_S)
            except TinymqError as error:
                if trouble != error.message:
                    logger.error("registry_trouble", error=error.code, reason=str(error), shown_as_of=self.version)
                trouble = error.message
                await self._clock.sleep(TROUBLE_S)
            self._wake_up()

    async def _check_registrations(self) -> None:
        timeout_s = self._timing.command_timeout_s
        names = set(await self._session.children(tree.BROKERS, watch=True))
        missing, expired = self._nodes.seen(names)
        for broker in missing:
            await self._trying.settled(partial(self._hold, broker), timeout_s)
        for broker in expired:
            await self._trying.settled(partial(self._expire, broker), timeout_s)
        while self._nodes.left:
            left = self._nodes.left[-1]
            await super().unregister_broker(left.broker_id, left.session)
            self._nodes.left.pop()

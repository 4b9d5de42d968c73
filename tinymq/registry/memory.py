"""A registry in the memory of one process: for tests, and for a single broker without a cluster."""

from __future__ import annotations

import random
from collections.abc import Collection

from tinymq.base.clock import Clock, Timer
from tinymq.base.config import Timing
from tinymq.base.errors import InvalidConfig
from tinymq.base.quantity import quantity
from tinymq.base.types import GroupId
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.base_registry import BaseRegistry
from tinymq.registry.leases import Leases
from tinymq.registry.state.state import RegistryState
from tinymq.registry.state.values import BrokerRecord


class MemoryRegistry(BaseRegistry):
    """RegistryService without a network or a disk. `close` ends its one timer."""

    def __init__(self, clock: Clock, rng: random.Random, timing: Timing) -> None:
        super().__init__(RegistryState(), clock, rng, timing)
        self._leases = Leases(timing.registration_lease_s)
        self._timer: Timer | None = None

    async def start(self, on_disk: Collection[GroupId]) -> None:
        """Raises InvalidConfig if there is data: this registry could never tell its topics, or delete it."""
        if on_disk:
            partitions = quantity(len(on_disk), "partition")
            raise InvalidConfig(
                f"the data directory holds {partitions} that a registry in memory knows nothing of",
                hint="start it on an empty data directory, or with the registry that made them",
            )

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def register_broker(self, broker: BrokerRecord) -> float:
        self._leases.renew(broker, self._clock.monotonic())
        if self._state.brokers.get(broker.broker_id) != broker:
            self._apply(self._registration(broker))
        if self._timer is None:
            self._check_leases()
        return self._timing.registration_lease_s

    async def refresh(self, timeout_s: float) -> int:
        return self.version

    async def _submit(self, command: pb.Command, timeout_s: float) -> pb.Reply:
        return self._apply(command)

    def _apply(self, command: pb.Command) -> pb.Reply:
        reply, effects = self._state.apply(command)
        self._advanced(effects)
        return reply

    def _check_leases(self) -> None:
        for broker in self._leases.expired(self._state.brokers, self._clock.monotonic()):
            expired = pb.UnregisterBroker(broker_id=broker.broker_id, session=broker.session)
            self._apply(self._stamp(pb.Command(unregister_broker=expired)))
        self._timer = self._clock.call_later(self._timing.registration_renew_s / 2, self._check_leases)

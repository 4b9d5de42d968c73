"""LazyCluster: an AsyncClient's view of the cluster, made when it is first used, on the loop that uses it."""

from __future__ import annotations

import random
from collections.abc import Callable

from tinymq.base.clock import Clock, SystemClock
from tinymq.base.errors import Closed
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.config import ClientConfig
from tinymq.client.facade.core.opened import broker_connector, call_soon
from tinymq.client.net.ports import Connector


class LazyCluster:
    """The configuration of an AsyncClient before its first use, and the Cluster that it has from then on."""

    def __init__(
        self,
        servers: tuple[str, ...],
        config: ClientConfig,
        connector: Connector | None,
        clock: Clock | None,
        rng: random.Random | None,
    ) -> None:
        """Without a connector, that of real brokers."""
        self.closed = False
        self._servers = servers
        self._config = config
        self._connector = connector
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._cluster: Cluster | None = None

    def cluster(self) -> Cluster:
        """Return the client's view of the cluster, made by the first call. Raises Closed, WrongEventLoop."""
        if self.closed:
            raise Closed("the client is closed")
        if self._cluster is None:
            connector = self._connector or broker_connector(self._config, self._clock)
            self._cluster = Cluster(self._servers, self._config, connector, self._clock, self._rng)
        self._cluster.check_loop()
        return self._cluster

    def call_soon(self, call: Callable[[], None]) -> None:
        """Make `call` on the client's loop, soon, from any thread. Only after the first `cluster`."""
        assert self._cluster is not None, "used"
        call_soon(self._cluster.loop, call)

    def check_loop(self) -> None:
        """Raise WrongEventLoop on another loop than the client's, if it has one yet; Closed in a forked child."""
        if self._cluster is not None:
            self._cluster.check_loop()

    async def close(self) -> None:
        """End the connections. A second call does nothing."""
        if self._cluster is not None:
            await self._cluster.close()

"""This broker's registration: renewed while the broker runs, so that it expires when the broker is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from tinymq.base.clock import Clock
from tinymq.base.config import Timing
from tinymq.base.errors import TinymqError
from tinymq.registry.service import RegistryService
from tinymq.registry.state.values import BrokerRecord

RETRY_S = 0.2

logger = structlog.get_logger("tinymq.broker")


class Registration:
    """Renews the registration until `stop`. Once the registry has it, sets `registered` and calls `on_registered`."""

    def __init__(
        self, registry: RegistryService, broker: BrokerRecord, clock: Clock, timing: Timing,
        on_registered: Callable[[], None] = lambda: None, reachable: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """`reachable` returns whether the registry can be written now, as far as this broker knows. `peers_changed`
        tells this object that the answer may have changed."""
        self.registered = asyncio.Event()
        self._reachable = reachable
        self._leaving: asyncio.Task[None] | None = None  # the task that ends the registration
        self._on_registered = on_registered
        self._registry = registry
        self._broker = broker
        self._clock = clock
        self._timing = timing
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def announce(self, feature_level: int) -> None:
        """Register again at once, and from now on announce this level."""
        if feature_level != self._broker.feature_level:
            self._broker = replace(self._broker, feature_level=feature_level)
            self._wake.set()

    def start(self) -> asyncio.Task[None]:
        """The task ends with `stop`, or by a broken invariant."""
        self._task = asyncio.get_running_loop().create_task(self._renew())
        return self._task

    async def stop(self, *, leave: bool) -> None:
        """Stop renewing. With `leave`, also end the registration now, which takes at most `drain_s`. If the registry
        cannot be written, return at once instead: when a whole cluster stops, its last brokers have no majority
        left."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if leave and self.registered.is_set():
            await self._leave()

    async def _leave(self) -> None:
        unregister = self._registry.unregister_broker(self._broker.broker_id, self._broker.session)
        self._leaving = asyncio.get_running_loop().create_task(unregister)
        self.peers_changed()
        try:
            await asyncio.wait([self._leaving], timeout=self._timing.drain_s)
        finally:
            self._leaving.cancel()
        (error,) = await asyncio.gather(self._leaving, return_exceptions=True)
        if isinstance(error, (asyncio.CancelledError, TinymqError)):
            logger.info("registration_left_to_expire", reason=str(error))
        elif error is not None:
            raise error

    def peers_changed(self) -> None:
        """Note that a broker came or went. If the registry cannot be written any more, `stop` does not wait to end the
        registration, which then expires by itself."""
        if self._leaving is not None and not self._reachable():
            self._leaving.cancel()

    async def _renew(self) -> None:
        failing = False
        while True:
            try:
                await self._registry.register_broker(self._broker)
            except TinymqError as error:
                # Log it once, and retry sooner than the next renewal, because the lease is running out.
                if not failing:
                    logger.warning("registration_failing", error=error.code, reason=str(error))
                failing = True
                await self._pause(RETRY_S)
                continue
            if failing or not self.registered.is_set():
                logger.info("broker_registered", broker=self._broker.broker_id, address=self._broker.address)
            failing = False
            if not self.registered.is_set():
                self.registered.set()
                self._on_registered()
            await self._pause(self._timing.registration_renew_s)

    async def _pause(self, pause_s: float) -> None:
        """Sleep for `pause_s`, or until there is another level to announce."""
        timer = self._clock.call_later(pause_s, self._wake.set)
        await self._wake.wait()
        self._wake.clear()
        timer.cancel()

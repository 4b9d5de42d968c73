"""The handlers of one client: its subscriptions, and their present run."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from tinymq.base.errors import InvalidRequest
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.argument_checks import check_wait
from tinymq.client.serve.group_source import GroupSource
from tinymq.client.serve.health import NOT_SERVING, NOTHING_SUBSCRIBED, Health
from tinymq.client.serve.serving_run import LEAVING_S, ServingRun
from tinymq.client.serve.source import Source
from tinymq.client.serve.subscription import Subscription, Subscriptions
from tinymq.client.work.worker import Wake

STOP_TIMEOUT_S = 30.0  # how long `run` and `serve` wait for the handlers that have begun
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Handlers:
    """Subscriptions, which are served by one call at a time. `stop` and `health` are callable from any thread."""

    def __init__(self) -> None:
        self.subscriptions = Subscriptions()
        self._run: ServingRun | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether nothing is served."""
        return self._run is None

    async def serve(self, cluster: Cluster, stop_timeout_s: float, wake: Wake) -> None:
        """Handle records until `stop`, and then finish what is started. Raises the error that ended a subscription.

        `wake` runs a callback on the client's loop, from any thread.
        """
        check_wait(stop_timeout_s, name="stop_timeout")
        if not self.closed:
            raise InvalidRequest("the handlers are served already", hint="call run() or serve() once at a time")
        if not len(self.subscriptions):
            raise InvalidRequest("there is no handler", hint="decorate a function with @mq.subscribe(topic, group=...)")

        def source_of(subscription: Subscription) -> Source:
            return GroupSource(cluster, subscription, wake)

        self._loop = asyncio.get_running_loop()
        self._ended.clear()
        self._run = ServingRun(self.subscriptions, source_of, cluster.clock)
        try:
            await self._run.run(stop_timeout_s)
        finally:
            self._run = None
            self._ended.set()

    def stop(self, *, now: bool = False) -> None:
        """Finish what is started, release the rest, and end `serve`. `now`: do not wait for the handlers."""
        server, loop = self._run, self._loop
        if server is not None and loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                # Also on the loop's own thread: a signal's function runs there while the loop sleeps, and must wake it.
                loop.call_soon_threadsafe(server.give_up if now else server.stop)

    def health(self) -> Health:
        """The handlers' state now."""
        server = self._run
        if server is not None:
            return server.health()
        return NOT_SERVING if len(self.subscriptions) else NOTHING_SUBSCRIBED

    async def close(self) -> None:
        """End `serve` without waiting for the handlers. Returns when the groups are left."""
        if self._run is not None:
            self._run.give_up()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVING_S):
                    await self._ended.wait()


@contextlib.contextmanager
def stopping_signals(stop: Callable[[bool], None]) -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM call `stop` in the main thread: with False, and from the second signal on with True.

    In another thread than the main one, signals are left as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def signalled(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        stop(asked)
        asked = True

    before = {each: signal.signal(each, signalled) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)

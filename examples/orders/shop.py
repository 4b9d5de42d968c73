"""The shop: it writes an order to the topic, and knows nothing of the groups that read it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from tinymq import Client

TOPIC = "orders"


class Order(NamedTuple):
    """One order."""

    number: int
    customer: str
    address: str


def place(mq: Client, orders: Iterable[Order]) -> None:
    """Write orders. When this returns, they are on a majority of disks.

    The key keeps the orders of a customer in one partition, and so in order.
    """
    with mq.producer() as producer:
        for order in orders:
            producer.send(TOPIC, json.dumps(order._asdict()).encode(), key=order.customer.encode())


def read(value: bytes | None) -> Order:
    """The order in a record."""
    return Order(**json.loads(value or b"{}"))

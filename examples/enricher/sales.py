"""The records of the example: sales, and the invoices that are made of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tinymq import Client

SALES = "sales"
INVOICES = "invoices"
PRICES = {"pear": 40, "plum": 15, "apple": 35, "melon": 250}  # in cents


class Sale(NamedTuple):
    """What a till sends."""

    number: int
    item: str
    pieces: int


class Invoice(NamedTuple):
    """A sale with its price."""

    number: int
    cents: int


def draw(rng: random.Random, numbers: Iterable[int]) -> Iterator[Sale]:
    """Sales at random."""
    for number in numbers:
        yield Sale(number, rng.choice(sorted(PRICES)), rng.randint(1, 9))


def invoice_of(sale: Sale) -> Invoice:
    return Invoice(sale.number, sale.pieces * PRICES[sale.item])


def write(mq: Client, sales: Iterable[Sale]) -> None:
    """Write sales. When this returns, they are on a majority of disks."""
    with mq.producer() as producer:
        for sale in sales:
            producer.send(SALES, packed(sale), key=b"%d" % sale.number)


def invoices(mq: Client) -> list[Invoice]:
    """All invoices that are there now."""
    with mq.reader(INVOICES, start="earliest", end="latest") as reader:
        return [Invoice(**json.loads(message.value or b"{}")) for message in reader]


def packed(record: Sale | Invoice) -> bytes:
    return json.dumps(record._asdict()).encode()


def sale_in(value: bytes | None) -> Sale:
    return Sale(**json.loads(value or b"{}"))

"""Workers of the queue group `mailer`: each order's mail is sent by one of them."""

from __future__ import annotations

from collections.abc import Callable

from examples.orders.shop import TOPIC, Order, read
from tinymq import Client, Job, Reject, Retry

GROUP = "mailer"
SETTINGS = {"retry_ms": "100,200,400"}  # three more deliveries; a real mailer would wait for minutes


class ServerRests(Exception):
    """The mail server takes no mail at the moment."""


def subscribe(mq: Client, deliver: Callable[[Order], None]) -> None:
    """Have a client handle orders in `run`: up to four at a time, in threads.

    `deliver` sends one mail, and raises ServerRests if it has to be tried again.
    """

    @mq.subscribe(TOPIC, group=GROUP, kind="queue", concurrency=4, group_settings=SETTINGS)
    def send(job: Job) -> None:
        order = read(job.value)
        if "@" not in order.address:
            raise Reject(f"{order.address!r} is no address")  # no delivery can succeed: a dead letter
        try:
            deliver(order)
        except ServerRests as error:
            raise Retry(reason=str(error)) from error  # after the group's next pause

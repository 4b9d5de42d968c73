"""Reminders of unpaid orders: sent with each order, delivered a day later, and canceled when the money comes.

A reminder is a delayed record. It waits on the brokers' disks, so no process has to be up in the meantime.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

from examples.orders.shop import Order, read
from tinymq import Client, Job, Scheduled

TOPIC = "reminders"
GROUP = "reminder-mails"
AFTER = timedelta(days=1)


def remind_later(mq: Client, order: Order, after: timedelta = AFTER) -> Scheduled:
    """Schedule the reminder of an order. Keep what is returned beside the order: it is needed to cancel."""
    return mq.send(TOPIC, json.dumps(order._asdict()).encode(), key=order.customer.encode(), delay=after)


def paid(mq: Client, reminder: Scheduled) -> bool:
    """Cancel the reminder of an order that was paid. False: the customer was reminded before."""
    return mq.cancel(reminder.topic, reminder.partition, reminder.schedule_id)


def subscribe(mq: Client, remind: Callable[[Order], None]) -> None:
    """Have a client send reminders in `run`, as for any record: it need not know that this one was delayed."""

    @mq.subscribe(TOPIC, group=GROUP, kind="queue")
    def send(job: Job) -> None:
        remind(read(job.value))

"""Reminders of orders: a day later, once, and not for those that were paid."""

from __future__ import annotations

import threading

from examples.orders import reminders
from examples.orders.shop import Order
from tinymq.testing import Cluster

ORDERS = [Order(n, f"customer {n % 3}", f"{n}@example.org") for n in range(9)]
WAIT_S = 30.0


def test_who_has_not_paid_after_a_day_is_reminded_once() -> None:
    with Cluster(nodes=1) as cluster, cluster.client() as mq:
        mq.admin.create_topic(reminders.TOPIC, partitions=3)
        scheduled = {order.number: reminders.remind_later(mq, order) for order in ORDERS}
        cluster.clock.advance(hours=23)
        assert all(reminders.paid(mq, scheduled[number]) for number in (2, 5))
        assert len(list(mq.admin.scheduled(reminders.TOPIC))) == len(ORDERS) - 2

        reminded, all_of_them = list[int](), threading.Event()

        def remind(order: Order) -> None:
            reminded.append(order.number)
            if len(reminded) >= len(ORDERS) - 2:
                all_of_them.set()

        reminders.subscribe(mq, remind)
        worker = threading.Thread(target=lambda: mq.serve(signals=False))
        worker.start()
        cluster.clock.advance(hours=1)
        assert all_of_them.wait(WAIT_S)
        mq.stop()
        worker.join()
        assert sorted(reminded) == [0, 1, 3, 4, 6, 7, 8]
        assert not reminders.paid(mq, scheduled[0]), "too late"

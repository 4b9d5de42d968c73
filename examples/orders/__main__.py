"""An order service in one process: three brokers, a shop, two workers, and two screens that show every order.

python -m examples.orders
"""

from __future__ import annotations

import sys
import threading
from collections import Counter

from examples.orders import mail, shop
from examples.orders.shop import Order
from tinymq import Client, Message
from tinymq.testing import Cluster

ORDERS = [Order(n, f"customer {n % 7}", f"{n}@example.org") for n in range(40)]
BROKEN = Order(40, "customer 5", "no address")
LETTERS = f"{shop.TOPIC}.dlq"
WAIT_S = 60.0


class Mails:
    """A mail server that rests once for every fifth order."""

    def __init__(self) -> None:
        self.sent: Counter[int] = Counter()
        self.by: Counter[str] = Counter()
        self.rested: set[int] = set()
        self.all_sent = threading.Event()
        self._lock = threading.Lock()

    def deliver(self, order: Order, worker: str) -> None:
        with self._lock:
            if order.number % 5 == 0 and order.number not in self.rested:
                self.rested.add(order.number)
                raise mail.ServerRests("come back later")
            self.sent[order.number] += 1
            self.by[worker] += 1
            if len(self.sent) == len(ORDERS):
                self.all_sent.set()


def work(servers: str, worker: str, mails: Mails, stopping: list[Client]) -> None:
    """One worker, as a process of its own would be: a client, a handler, and `run`."""
    with Client(servers, client_id=worker) as mq:
        mail.subscribe(mq, lambda order: mails.deliver(order, worker))
        stopping.append(mq)
        mq.serve(signals=False)  # `mq.run()` in a program of its own, which Ctrl-C ends


def watch(servers: str, screen: str, count: int, shown: dict[str, list[int]]) -> None:
    """Show every order on a screen. Each screen has a group of its own, so each of them gets all orders."""
    with Client(servers) as mq, mq.consumer(shop.TOPIC, group=f"screen-{screen}") as orders:
        numbers = shown[screen] = []
        while len(numbers) < count:
            numbers += [shop.read(message.value).number for message in orders.poll(WAIT_S)]


def dead_letter(mq: Client) -> Message:
    """Wait for the first dead letter. Its topic is made when it is needed: a pattern also finds a later topic."""
    with mq.consumer(f"{LETTERS}*", group="clerks") as letters:
        (letter,) = letters.poll(WAIT_S, 1)
    return letter


def main(servers: str) -> str:
    """Run the service on a cluster, and return what happened."""
    mails, stopping, shown = Mails(), list[Client](), dict[str, list[int]]()
    with Client(servers) as mq:
        mq.admin.create_topic(shop.TOPIC, partitions=4)
        workers = [
            threading.Thread(target=work, args=(servers, name, mails, stopping)) for name in ("worker-1", "worker-2")
        ]
        every = [*ORDERS, BROKEN]
        screens = [threading.Thread(target=watch, args=(servers, name, len(every), shown)) for name in "ab"]
        for thread in (*workers, *screens):
            thread.start()
        shop.place(mq, every)
        for screen in screens:
            screen.join()
        letter = dead_letter(mq)
        assert mails.all_sent.wait(WAIT_S)
        for client in stopping:
            client.stop()
        for worker in workers:
            worker.join()
        assert sum(cursor.lag for cursor in mq.admin.group_lag(mail.GROUP)) == 0, "every order is settled"
    assert sorted(mails.sent) == [order.number for order in ORDERS], "every order has its mail"
    assert all(sorted(numbers) == [order.number for order in every] for numbers in shown.values()), shown
    reason = (letter.header("tinymq-reason") or b"").decode()
    return (
        f"ok: {len(mails.sent)} mails by {len(mails.by)} workers, {len(mails.rested)} of them at a second delivery; "
        f"order {shop.read(letter.value).number} is a dead letter ({reason}); {len(shown)} screens showed every order"
    )


if __name__ == "__main__":
    with Cluster(nodes=3) as cluster:
        print(main(cluster.servers))
    sys.exit()

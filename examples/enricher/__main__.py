"""Sales become invoices exactly once, while the programs that do it are killed at random.

python -m examples.enricher

Three brokers run in this process, and three enrichers in processes of their own. A supervisor kills one of these after
another with SIGKILL, wherever it is, and starts it again. In the end each sale has one invoice.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from examples.enricher import sales
from examples.enricher.program import GROUP
from examples.enricher.sales import INVOICES, SALES
from tinymq import Client
from tinymq.testing import Cluster

ROOT = Path(__file__).parents[2]
NAMES = ("enricher-1", "enricher-2", "enricher-3")
CHUNK = 150  # sales between two kills
WAIT_S = 120.0


class Supervisor:
    """Keeps the enrichers running."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._running = {name: self._start(name) for name in NAMES}

    def kill(self, name: str) -> None:
        """Kill an enricher without a warning, and start it again."""
        self._end(self._running[name])
        self._running[name] = self._start(name)

    def close(self) -> None:
        for program in self._running.values():
            self._end(program)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "examples.enricher.program", self._servers, name]
        return subprocess.Popen(command, cwd=ROOT)

    def _end(self, program: subprocess.Popen[bytes]) -> None:
        program.kill()
        program.wait()


def main(servers: str, kills: int, seed: int) -> str:
    """Run the example on a cluster, and return what happened."""
    rng = random.Random(seed)
    sold = list(sales.draw(rng, range(CHUNK * (kills + 1))))
    with Client(servers) as mq:
        for topic in (SALES, INVOICES):
            mq.admin.create_topic(topic, partitions=6)
        mq.admin.create_group(GROUP, SALES, kind="stream")
        supervisor = Supervisor(servers)
        try:
            for kill in range(kills + 1):
                sales.write(mq, sold[kill * CHUNK : (kill + 1) * CHUNK])
                wait_for_invoices(mq, kill * CHUNK)  # all have begun: the kill meets them at work
                if kill < kills:
                    time.sleep(rng.uniform(0.0, 0.2))  # any moment of a transaction
                    name = rng.choice(NAMES)
                    supervisor.kill(name)
                    print(f"killed {name}, and started it again")
            wait_for_invoices(mq, len(sold))
        finally:
            supervisor.close()
        made = sales.invoices(mq)
    wanted = [sales.invoice_of(sale) for sale in sold]
    twice = [number for number, count in Counter(invoice.number for invoice in made).items() if count > 1]
    assert sorted(made) == wanted, f"{len(wanted)} sales, {len(made)} invoices; twice: {twice[:10]}"
    total = sum(invoice.cents for invoice in made)
    told = f"ok: {len(sold)} sales became {len(made)} invoices over {total / 100:,.2f}"
    return f"{told}, after {kills} kills (seed {seed})"


def wait_for_invoices(mq: Client, count: int) -> None:
    """Wait until so many sales are handled, and their invoices are there to be read."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        handled = sum(cursor.position for cursor in mq.admin.group_lag(GROUP))
        made = sum(places.high_watermark for places in mq.admin.offsets(INVOICES).values())
        if min(handled, made) >= count:
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{handled} sales are handled and {made} invoices made, of {count}")
        time.sleep(0.02)


if __name__ == "__main__":
    with Cluster(nodes=3) as cluster:
        print(main(cluster.servers, kills=20, seed=random.randrange(1_000_000)))
    sys.exit()

"""Sales become invoices exactly once in Spark, while Spark and brokers are killed at random.

    PYTHONPATH=spark:. python -m pipelines.supervisor --kills 20

Three brokers run as processes, and invoices.py under spark-submit. A supervisor kills one thing after another with
SIGKILL, wherever it is, and starts it again: all processes of Spark; its driver and Java, whose workers go on until
they notice; one of its workers, which Spark itself replaces; or a broker. In the end each sale has one invoice.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from examples.enricher import sales
from examples.enricher.sales import INVOICES, SALES, Invoice, Sale
from pipelines.arguments import positive
from pipelines.processes import processes
from pipelines.submitting import Submitted
from tinymq import Client
from tinymq.dev import dev_cluster

PARTITIONS = 6
CHUNK = 150  # sales between two kills
BATCH_RECORDS = 40  # of a micro-batch: several for each chunk
KINDS = ("all of Spark", "the driver", "a worker of Spark", "a broker")
MOMENT_S_MAX = 1.0  # after a chunk has begun: any moment of a micro-batch, or between two
WAIT_S = 600.0  # for the invoices of a chunk, after a start of Spark, on a busy machine
LOOK_S = 0.2


class SupervisedSpark:
    """invoices.py under spark-submit. It is started again from its checkpoint whenever it has ended."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._log = folder / "spark.log"
        self._arguments = ["--servers", servers, "--checkpoint", str(folder / "checkpoint")]
        self._arguments += ["--batch-records", str(BATCH_RECORDS)]
        self._run = self._start()

    def keep_running(self) -> None:
        """Start it again if it has ended."""
        if not self._run.running:
            self._run.stop()  # what is left of it
            self._run = self._start()

    def kill(self) -> None:
        """Kill Java, the driver, and all workers."""
        left = processes(self._run.session)
        self._run.kill()
        for process in left:
            _kill(process.pid)

    def kill_driver(self) -> None:
        """Kill Java and the driver. Workers have process groups of their own, and go on until they notice."""
        self._run.kill()

    def kill_worker(self, rng: random.Random) -> bool:
        """Kill one process of Python's workers. False: none ran at this moment."""
        session = self._run.session
        workers = sorted(each.pid for each in processes(session) if each.group != session and each.state != "Z")
        if workers:
            _kill(rng.choice(workers))
        return bool(workers)

    def finish(self) -> None:
        """Stop it, and let another run handle what is left. Raises SubmitFailed, subprocess.TimeoutExpired."""
        self._run.stop()
        with self._start("--until-end") as run:
            run.wait(WAIT_S)
            run.check()

    def close(self) -> None:
        self._run.stop()

    def _start(self, *more: str) -> Submitted:
        return Submitted("invoices.py", [*self._arguments, *more], self._log)


def main(folder: Path, kills: int, seed: int) -> str:
    """Run everything, with all its data in `folder`, and return what happened."""
    rng = random.Random(seed)
    print(f"seed {seed}", flush=True)
    sold = list(sales.draw(rng, range(CHUNK * (kills + 1))))
    with _brokers(folder / "cluster") as servers, Client(servers) as mq:
        for topic in (SALES, INVOICES):
            mq.admin.create_topic(topic, partitions=PARTITIONS)
        spark = SupervisedSpark(servers, folder)
        try:
            for number, kind in enumerate(kinds(rng, kills)):
                sales.write(mq, sold[number * CHUNK : (number + 1) * CHUNK])
                _wait_for_invoices(mq, number * CHUNK + 1, spark)  # it has begun with these
                time.sleep(rng.uniform(0.0, MOMENT_S_MAX))
                print(f"killed {_kill_one(rng, kind, spark, folder / 'cluster')}", flush=True)
            sales.write(mq, sold[kills * CHUNK :])
            _wait_for_invoices(mq, len(sold), spark)
            spark.finish()
        finally:
            spark.close()
        made = sales.invoices(mq)
    return f"{compared(sold, made)}, after {kills} kills (seed {seed})"


def kinds(rng: random.Random, kills: int) -> list[str]:
    """What to kill: each kind equally often, in a random order."""
    rounds = [rng.sample(KINDS, len(KINDS)) for _ in range(-(-kills // len(KINDS)))]
    return [kind for each in rounds for kind in each][:kills]


def compared(sold: list[Sale], made: list[Invoice]) -> str:
    """Compare the invoices with the sales. Raises AssertionError unless each sale has one invoice, the right one."""
    wanted = [sales.invoice_of(sale) for sale in sold]
    twice = [number for number, count in Counter(invoice.number for invoice in made).items() if count > 1]
    assert sorted(made) == wanted, f"{len(wanted)} sales, {len(made)} invoices; twice: {twice[:10]}"
    total = sum(invoice.cents for invoice in made)
    return f"ok: {len(sold)} sales became {len(made)} invoices over {total / 100:,.2f}"


@contextlib.contextmanager
def _brokers(path: Path) -> Iterator[str]:
    """Three brokers, each a process. Yields their addresses."""
    try:
        yield dev_cluster.up(path, 3, print).servers
    finally:
        dev_cluster.down(path, purge=True)


def _kill_one(rng: random.Random, kind: str, spark: SupervisedSpark, cluster: Path) -> str:
    """Kill something of this kind, and start it again. Returns what it was."""
    match kind:
        case "all of Spark":
            spark.kill()
        case "the driver":
            spark.kill_driver()
        case "a worker of Spark":
            if not spark.kill_worker(rng):
                return "nothing: no worker of Spark ran"
        case _:
            broker = rng.choice([each.id for each in dev_cluster.status(cluster) if each.pid is not None])
            dev_cluster.kill(cluster, broker)
            dev_cluster.start(cluster, broker)
            return f"broker {broker}"
    spark.keep_running()
    return kind


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
        os.kill(pid, signal.SIGKILL)


def _wait_for_invoices(mq: Client, count: int, spark: SupervisedSpark) -> None:
    """Wait until there are so many invoices."""
    deadline = time.monotonic() + WAIT_S
    while (made := sum(each.high_watermark for each in mq.admin.offsets(INVOICES).values())) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{made} of {count} invoices are made")
        spark.keep_running()
        time.sleep(LOOK_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m pipelines.supervisor", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=positive, default=20, help="how often something is killed (default: 20)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of what is killed, and when")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tinymq-supervisor-") as folder_name:
        print(main(Path(folder_name), asked.kills, asked.seed))
    sys.exit()

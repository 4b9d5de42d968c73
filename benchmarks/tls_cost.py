"""`python -m benchmarks.tls_cost`: what TLS costs, beside the same without it, in one run.

Two clusters of three brokers are up at the same time, one with TLS and one without, and take turns: batches of 1 MiB,
records one at a time, and reading. Below that, two ends of one connection alone. Each row has medians, and the median
of the ratios of rounds that belong together.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tinymq import Client
from tinymq.dev.certificates import Authority, write_issued
from tinymq.net.frame_stream import FrameStream
from tinymq.net.tls_files import Paths, TlsFiles
from tinymq.testing import Cluster

MIB = 1 << 20
BATCHES, LONE, FRAMES, TURNS = 32, 150, 128, 400
VALUE = bytes(range(256)) * 4096


@dataclass(slots=True)
class Row:
    """The rounds of one workload: seconds, without and with TLS."""

    name: str
    unit: str
    of: Callable[[float], float]  # from the seconds of a round to the unit
    plain: list[float] = field(default_factory=list)
    tls: list[float] = field(default_factory=list)


class Pair:
    """A topic of each cluster, and its client."""

    def __init__(self, cluster: Cluster) -> None:
        self.mq: Client = cluster.client()
        self.mq.admin.create_topic("large", 3, replication_factor=3)
        self.mq.admin.create_topic("lone", 1, replication_factor=3)

    def batches(self) -> float:
        began = time.perf_counter()
        with self.mq.producer(compression="none") as producer:
            for _ in range(BATCHES):
                producer.send("large", VALUE)
        return time.perf_counter() - began

    def lone(self) -> float:
        began = time.perf_counter()
        for _ in range(LONE):
            self.mq.send("lone", b"x" * 100)
        return time.perf_counter() - began

    def read(self) -> float:
        began = time.perf_counter()
        with self.mq.reader("large") as reader:
            for _ in range(BATCHES):
                next(reader)
        return time.perf_counter() - began


async def frames(files: TlsFiles | None) -> tuple[float, float, float]:
    """One connection: the wall and processor seconds of FRAMES × 1 MiB, and the seconds of TURNS round trips."""
    loop = asyncio.get_running_loop()
    here, there = _tcp_pair()
    streams = [FrameStream(4 * MIB, MIB) for _ in range(2)]
    serves = files.current().serves if files is not None else None
    dials = files.current().dials if files is not None else None
    name = "localhost" if files is not None else None
    await asyncio.gather(
        loop.connect_accepted_socket(lambda: streams[0], there, ssl=serves),
        loop.create_connection(lambda: streams[1], sock=here, ssl=dials, server_hostname=name),
    )
    one, other = streams

    async def takes(count: int) -> None:
        for _ in range(count):
            await other.receive()

    async def answers(count: int) -> None:
        for _ in range(count):
            head, _ = await other.receive()
            await other.send(head)

    began, busy = time.perf_counter(), time.process_time()
    taking = asyncio.ensure_future(takes(FRAMES))
    for _ in range(FRAMES):
        await one.send(b"head", (VALUE,))
    await taking
    wall, used = time.perf_counter() - began, time.process_time() - busy
    answering = asyncio.ensure_future(answers(TURNS))
    began = time.perf_counter()
    for _ in range(TURNS):
        await one.send(b"x" * 100)
        await one.receive()
    turns = time.perf_counter() - began
    await answering
    for stream in streams:
        stream.abort()
    return wall, used, turns


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = socket.create_connection(listening.getsockname())
        there, _ = listening.accept()
    for sock in (here, there):
        sock.setblocking(False)
    return here, there


def measure(rounds: int) -> Sequence[Row]:
    """Let both take turns."""
    rows = [
        Row("1 MiB batches, three brokers", "MB/s", lambda s: BATCHES * MIB / s / 1e6),
        Row("records one at a time", "ms each", lambda s: s / LONE * 1e3),
        Row("reading 1 MiB records", "MB/s", lambda s: BATCHES * MIB / s / 1e6),
        Row("1 MiB frames, one connection", "MB/s", lambda s: FRAMES * MIB / s / 1e6),
        Row("the same: processor time, both ends", "s/GB", lambda s: s / (FRAMES * MIB) * 1e9),
        Row("100 B there and back", "µs", lambda s: s / TURNS * 1e6),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(nodes=3) as plain,
        Cluster(nodes=3, security="required") as tls,
    ):
        authority = Authority.make()
        write_issued(Path(folder) / "broker", authority.pem, authority.broker(1))
        files = TlsFiles(Paths.of(Path(folder) / "broker"))
        pairs = Pair(plain), Pair(tls)
        for number in range(rounds + 1):
            order = [(0, pairs[0]), (1, pairs[1])]
            for which, pair in order if number % 2 else reversed(order):
                took = [pair.batches(), pair.lone(), pair.read(), *asyncio.run(frames(files if which else None))]
                if number:  # the first round warms up
                    for row, seconds in zip(rows, took, strict=True):
                        (row.tls if which else row.plain).append(row.of(seconds))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tls_cost", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9, help="that count (default: %(default)s)")
    table = Table("workload", "without TLS", "with TLS", "ratio", title="medians (and the quartiles of the ratio)")
    for row in measure(parser.parse_args().rounds):
        ratios = sorted(with_tls / without for with_tls, without in zip(row.tls, row.plain, strict=True))
        low, middle, high = statistics.quantiles(ratios, n=4)
        without, with_tls = statistics.median(row.plain), statistics.median(row.tls)
        ratio = f"{middle:.2f} ({low:.2f}-{high:.2f})"
        table.add_row(f"{row.name}, {row.unit}", f"{without:.4g}", f"{with_tls:.4g}", ratio)
    Console().print(table)


if __name__ == "__main__":
    main()

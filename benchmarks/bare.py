"""The bare limit: the throughput of three processes that move and sync bytes without any logic on this machine.

`make bench` runs it between tinymq's rounds; alone it prints JSON:

    python -m benchmarks.bare --rounds 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from benchmarks.bare_roles import COUNT, FETCH_BYTES, GRPC_OPTIONS
from benchmarks.driver import serve
from benchmarks.measure import (
    AGED_SHARE,
    BATCH_BYTES,
    BULK_BATCHES,
    LONE_WRITES,
    RECORD_BYTES,
    Latency,
    Round,
    Summary,
    aged_memory,
)

INFLIGHT_MAX = 8  # unanswered messages in flight, like the batches of tinymq's producer


class BareProcesses:
    """The three processes, each with a file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def start(self) -> int:
        """Returns the leader's port. Raises RuntimeError."""
        followers = [self._start(f"follower-{i}") for i in (1, 2)]
        return self._start("leader", "--followers", *map(str, followers))

    def stop(self) -> None:
        """A process ends when its standard input does."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait(10)
        self._processes.clear()

    def _start(self, name: str, *arguments: str) -> int:
        command = [sys.executable, "-m", "benchmarks.bare_roles", "--file", str(self._folder / name), *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the bare limit's {name} did not start")
        return int(json.loads(line)["port"])


class BareClient:
    """The client of the three processes. Each method is one round."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._port}", options=GRPC_OPTIONS)
        await self._channel.channel_ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def write_bulk(self, messages: int) -> Round:
        """Send many messages of a batch's size on one stream. Measures MB/s, and the time from each write to its
        answer.
        """
        message = os.urandom(BATCH_BYTES)
        call = self._call("Produce")
        sent: deque[float] = deque()
        took: list[float] = []
        room = asyncio.Semaphore(INFLIGHT_MAX)

        async def answers() -> None:
            while len(took) < messages:
                counted = COUNT.unpack(await call.read())[0]
                now = time.perf_counter()
                while len(took) < counted:
                    took.append(now - sent.popleft())
                    room.release()

        started = time.perf_counter()
        reading = asyncio.create_task(answers())
        for _ in range(messages):
            await room.acquire()
            sent.append(time.perf_counter())
            await call.write(message)
        await reading
        elapsed = time.perf_counter() - started
        await call.done_writing()
        return Round(messages * len(message) / elapsed / 1e6, Latency.of(took))

    async def write_alone(self, messages: int) -> Round:
        """Send one record at a time, each after the previous answer. Measures records per second."""
        message = os.urandom(RECORD_BYTES)
        call = self._call("Produce")
        took = []
        for _ in range(messages):
            started = time.perf_counter()
            await call.write(message)
            await call.read()
            took.append(time.perf_counter() - started)
        await call.done_writing()
        return Round(messages / sum(took), Latency.of(took), tuple(round(s * 1000, 4) for s in took))

    async def read(self, messages: int) -> Round:
        """Receive messages of 1 MiB from a stream. Measures MB/s."""
        call = self._call("Fetch")
        started = time.perf_counter()
        await call.write(COUNT.pack(messages))
        for _ in range(messages):
            message = await call.read()
            assert len(message) == FETCH_BYTES
        elapsed = time.perf_counter() - started
        await call.done_writing()
        return Round(messages * FETCH_BYTES / elapsed / 1e6)

    def _call(self, method: str) -> Any:
        assert self._channel is not None
        return self._channel.stream_stream(f"/bare.Limit/{method}")()


class BareLimit(BareClient):
    """Three processes on loopback, and their client."""

    def __init__(self, folder: Path) -> None:
        self._processes = BareProcesses(folder)
        super().__init__(self._processes.start())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        self._processes.stop()


async def measure(bare: BareLimit, rounds: int) -> dict[str, object]:
    """All workloads in turn, after one round of each that does not count."""
    results: dict[str, list[Round]] = {"write_bulk": [], "write_alone": [], "read": []}
    for _ in range(rounds + 1):
        results["write_bulk"].append(await bare.write_bulk(BULK_BATCHES))
        results["write_alone"].append(await bare.write_alone(LONE_WRITES))
        results["read"].append(await bare.read(BULK_BATCHES))
    return {name: Summary.of(some[1:]).as_dict() for name, some in results.items()}


async def run(args: argparse.Namespace, folder: Path) -> None:
    async with BareLimit(folder) as bare:
        if args.serve:
            await serve({"write_bulk": bare.write_bulk, "write_alone": bare.write_alone, "read": bare.read})
            return
        with aged_memory(folder, 0.0 if args.no_age else AGED_SHARE) as aged_s:
            results = await measure(bare, args.rounds)
        print(json.dumps({"aged_s": round(aged_s, 1), **results}, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description="The bare limit of this machine, as JSON.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=None, help="where the files go; a temporary folder by default")
    parser.add_argument("--no-age", action="store_true", help="do not touch the memory first: on a warm machine")
    parser.add_argument("--serve", action="store_true", help="run what standard input names, round by round")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tinymq-bare-", dir=args.dir) as name:
        asyncio.run(run(args, Path(name)))


if __name__ == "__main__":
    main()

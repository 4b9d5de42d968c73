"""A real broker that runs out of file descriptors serves its open connections, and accepts others later."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.metrics.pages import get
from tinymq import Client
from tinymq.base.errors import TinymqError
from tinymq.net.loopback_ports import free_ports
from tinymq.rpc.operator_calls.cluster_formation import form_cluster
from tinymq.testing.cluster import SECRET

DEADLINE_S = 40.0
HOST = "127.0.0.1"
PARTITIONS = 12


@dataclass
class Process:
    """A cluster of one broker."""

    pid: int
    ports: tuple[int, int, int, int]  # clients, streams, peers, metrics
    log: Path

    def limit(self, descriptors: int) -> None:
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (descriptors, hard))

    def metrics(self) -> str:
        return get(f"{HOST}:{self.ports[3]}", "/metrics")[2]


def form(address: str) -> object:
    return asyncio.run(form_cluster([address], SECRET, time.time_ns() // 1000, timeout_s=1.0))


def until(holds: Callable[[], bool]) -> None:
    async def look() -> None:
        while not await asyncio.to_thread(_holds, holds):
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(look(), DEADLINE_S))


def _holds(holds: Callable[[], bool]) -> bool:
    try:
        return holds()
    except (OSError, TinymqError):
        return False


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    secret, log = tmp_path / "secret", tmp_path / "log"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    clients, streams, peers, metrics = free_ports(4)
    command = [
        sys.executable, "-m", "tinymq.cli.main", "broker", "--broker-id", "1", "--data-dir", str(tmp_path / "data"),
        "--voter", f"1@{HOST}:{peers}", "--secret-file", str(secret), "--listen", f"{HOST}:{clients}",
        "--stream-listen", f"{HOST}:{streams}", "--peer-listen", f"{HOST}:{peers}",
        "--metrics-listen", f"{HOST}:{metrics}",
    ]  # fmt: skip
    with log.open("w") as err, subprocess.Popen(command, stderr=err) as broker:
        try:
            until(lambda: bool(form(f"{HOST}:{clients}")))
            yield Process(broker.pid, (clients, streams, peers, metrics), log)
        finally:
            broker.kill()


def test_clients_metrics_and_replicas_work_again_afterwards(process: Process) -> None:
    servers = f"{HOST}:{process.ports[0]}"
    with Client(servers, request_timeout_ms=4000) as client:
        client.admin.create_topic("before", 1)
        client.send("before", b"one")
        process.limit(3)  # every free descriptor number is above the limit
        assert client.send("before", b"two").offset == 1, "open connections still work"
        with contextlib.suppress(TinymqError):  # the topic is created but gets no leader in time
            client.admin.create_topic("during", PARTITIONS, timeout=0.5)
        with contextlib.ExitStack() as callers:
            for port in process.ports * 10:
                callers.enter_context(contextlib.closing(socket.create_connection((HOST, port))))
            until(lambda: "OutOfDescriptors" in process.log.read_text())
            until(lambda: process.log.read_text().count("connections_refused") >= 3)
        process.limit(4096)
        until(lambda: 'tinymq_replicas{role="failed"} 0.0' in process.metrics())
        until(lambda: bool([client.send("during", b"three", partition=n) for n in range(PARTITIONS)]))
    with Client(servers) as another:
        assert len(another.admin.describe_topic("during").partitions) == PARTITIONS
    said = process.log.read_text()
    assert "Traceback" not in said
    assert said.count("connections_refused") <= 9, "three ports, each once in ten seconds"
    assert said.count("partition_failed") == PARTITIONS, "not every attempt is logged"
    assert '"event": "open_files"' in said
    refused = re.findall(r'connections_refused_total{port="(\w+)",reason="descriptors"} ([1-9])', process.metrics())
    assert {port for port, _ in refused} == {"streams", "peers", "metrics"}, (
        "gRPC does not log the connections that it refuses"
    )

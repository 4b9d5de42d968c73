"""Kafka's Java client in a process of its own, which stays: Java gets quicker in its first rounds."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.peers import jars
from benchmarks.peers.contract import Measured
from benchmarks.peers.kafka_servers import HEAP, java

SOURCE = Path(__file__).with_name("KafkaGroups.java")


class KafkaJava:
    """Runs what KafkaGroups.java can. Started by the first run, ended by `close`."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._process: subprocess.Popen[str] | None = None

    def run(self, kind: str, topic: str, records: int, group: str) -> Measured:
        """`kind`: classic, consumer (KIP-848) or share. The records before the first poll's end do not count."""
        if self._process is None:
            command = [java(), *HEAP, "-cp", jars.broker_classpath(), str(SOURCE), self._servers]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kind} {topic} {records} {group}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Kafka's Java client ended during {kind}")
        found, elapsed_s, cpu_s = line.split()
        return Measured(int(found), float(elapsed_s), float(cpu_s))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

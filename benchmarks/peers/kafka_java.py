"""Kafka's Java client in a process of its own, which stays: Java gets quicker in its first rounds."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.peers import jars
from benchmarks.peers.contract import Measured
from benchmarks.peers.kafka_servers import HEAP, java

GROUPS = "KafkaGroups.java"
TRANSACTIONS = "KafkaTransactions.java"


class KafkaJava:
    """Runs what a program of this folder can. Started by the first run, ended by `close`."""

    def __init__(self, program: str, servers: str) -> None:
        self._program = Path(__file__).with_name(program)
        self._servers = servers
        self._process: subprocess.Popen[str] | None = None

    def run(self, *words: str | int) -> Measured:
        """Run the command of these words; the program's head lists them."""
        if self._process is None:
            command = [java(), *HEAP, "-cp", jars.broker_classpath(), str(self._program), self._servers]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return measured(self._process.stdout.readline(), f"{self._program.name} {words[0]}")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def measured(line: str, command: str) -> Measured:
    """The answer to a command: RECORDS ELAPSED_S CPU_S, and of transactions each one's milliseconds. Raises
    RuntimeError when the program has ended.
    """
    if not line:
        raise RuntimeError(f"Kafka's Java client ended during {command}")
    records, elapsed_s, cpu_s, *took_ms = line.split()
    times = [float(ms) for one in took_ms for ms in one.split(",")]
    return Measured(int(records), float(elapsed_s), float(cpu_s), times)

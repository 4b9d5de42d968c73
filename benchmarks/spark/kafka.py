"""Three Kafka brokers (KRaft, each also a controller) as plain processes on loopback."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.spark import jars
from tinymq.net.loopback_ports import free_ports

BROKERS = (1, 2, 3)
CLUSTER_ID = "tinymqBenchSparkKafkaA"  # 22 characters: a UUID as Kafka writes it
HEAP = ("-Xms1g", "-Xmx1g", "-XX:+AlwaysPreTouch")  # new memory is slow on virtual machines: touched in advance
READY_S_MAX = 180.0
LOOK_S = 0.5
TOOL_S_MAX = 60.0


class Kafka:
    """Runs while the block does; `servers` is for clients. The caller owns the folder."""

    def __init__(self, folder: Path, java: str) -> None:
        self._folder = folder / "kafka"
        self._java = java
        self._classpath = jars.broker_classpath()
        self._running: list[subprocess.Popen[bytes]] = []
        ports = free_ports(2 * len(BROKERS))
        self._clients = dict(zip(BROKERS, ports[: len(BROKERS)], strict=True))
        self._controllers = dict(zip(BROKERS, ports[len(BROKERS) :], strict=True))

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._clients.values())

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        try:
            for broker in BROKERS:
                self._start(broker)
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the brokers: their data is not needed."""
        for process in self._running:
            process.kill()
        for process in self._running:
            process.wait()
        self._running.clear()

    def create_topic(self, name: str, partitions: int) -> None:
        """With three replicas."""
        arguments = ["--create", "--topic", name, "--partitions", str(partitions), "--replication-factor", "3"]
        self._tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.servers, *arguments)

    def _start(self, broker: int) -> None:
        settings = self._folder / f"{broker}.properties"
        settings.write_text(self._properties(broker))
        self._tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings))
        with (self._folder / f"{broker}.log").open("wb") as log:
            command = [self._java, *HEAP, "-cp", self._classpath, "kafka.Kafka", str(settings)]
            self._running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self._folder))

    def _properties(self, broker: int) -> str:
        voters = ",".join(f"{b}@127.0.0.1:{port}" for b, port in self._controllers.items())
        client, controller = self._clients[broker], self._controllers[broker]
        return "\n".join(
            (
                "process.roles=broker,controller",
                f"node.id={broker}",
                f"controller.quorum.voters={voters}",
                "controller.listener.names=CONTROLLER",
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                f"listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
                f"log.dirs={self._folder / str(broker)}",
                "min.insync.replicas=2",
                "default.replication.factor=3",
                "offsets.topic.replication.factor=3",
            )
        )

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S_MAX
        while True:
            try:
                self._tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.servers, "--list")
            except RuntimeError as error:
                dead = [p.returncode for p in self._running if p.poll() is not None]
                if dead or time.monotonic() > deadline:
                    raise RuntimeError(f"Kafka did not come up, see {self._folder}/*.log: {error}") from None
                time.sleep(LOOK_S)
            else:
                return

    def _tool(self, name: str, *arguments: str) -> None:
        """Raises a RuntimeError with the end of its log."""
        command = [self._java, "-XX:TieredStopAtLevel=1", "-cp", self._classpath, name, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S_MAX, check=False)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(str(error)) from None
        if done.returncode:
            raise RuntimeError(f"{name}: {(done.stdout + done.stderr)[-500:]}")

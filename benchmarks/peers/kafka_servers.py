"""Three Kafka brokers (KRaft, each also a controller) as plain processes on loopback, from Maven's jars."""

from __future__ import annotations

import subprocess
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers import jars
from benchmarks.peers.contract import BROKERS, MissingPiece
from benchmarks.peers.processes import Processes
from tests.spark import java_setup
from tinymq.net.loopback_ports import free_ports

CLUSTER_ID = "tinymqBenchSparkKafkaA"  # 22 characters: a UUID as Kafka writes it
HEAP = ("-Xms1g", "-Xmx1g", "-XX:+AlwaysPreTouch")  # new memory is slow on virtual machines: touched in advance
READY_S_MAX = 180.0
LOOK_S = 0.5
TOOL_S_MAX = 60.0


def java() -> str:
    """The program. Raises MissingPiece."""
    try:
        return str(java_setup.home() / "bin" / "java")
    except RuntimeError:
        raise MissingPiece("Java: .venv/bin/python -m tests.spark.java_setup") from None


class KafkaServers:
    """A cluster. `synced`: with flush.messages=1, which Kafka's makers advise against."""

    def __init__(self, *, synced: bool = False) -> None:
        self.synced = synced
        self.name = "Kafka 4.1.0" + (", flush.messages=1" if synced else "")
        self.settings = {
            "brokers": f"KRaft, broker and controller each; {' '.join(HEAP)}; min.insync.replicas=2, 3 replicas",
            "share groups": "a preview in 4.1, switched on when the disks are formatted: "
            "`format --feature share.version=1`; group.share.partition.max.record.locks=10000",
            "Python client": f"confluent-kafka {version('confluent-kafka')}: acks=all, batch.size 1 MiB, linger.ms 5, "
            "queued.min.messages 1000000, fetch.queue.backoff.ms 10",
            "Java client": "kafka-clients 4.1.0: `group_read` with group.protocol classic or consumer (KIP-848), "
            "`work` by KafkaShareConsumer, explicit acks, commitAsync per poll; three rounds before the "
            "first that counts",
            "transactions": "kafka-clients 4.1.0: acks=all, batch.size 1 MiB, linger.ms 5 (0 in `transactions`), "
            "max.request.size 8 MiB, buffer.memory 64 MiB; isolation.level=read_committed, max.poll.records 1000, "
            "max.partition.fetch.bytes 8 MiB, a classic group",
        }
        self.addresses = ""
        self._processes: Processes | None = None

    def start(self, folder: Path) -> None:
        self._java, self._classpath = java(), jars.broker_classpath()
        self._processes = Processes(folder / ("kafka-synced" if self.synced else "kafka"))
        ports = free_ports(2 * len(BROKERS))
        clients = dict(zip(BROKERS, ports[: len(BROKERS)], strict=True))
        controllers = dict(zip(BROKERS, ports[len(BROKERS) :], strict=True))
        voters = ",".join(f"{b}@127.0.0.1:{port}" for b, port in controllers.items())
        command = [self._java, *HEAP, "-cp", self._classpath]
        for broker in BROKERS:
            file = self._processes.folder / f"{broker}.properties"
            file.write_text(self._properties(broker, clients[broker], controllers[broker], voters))
            self._tool(
                "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file), "--feature", "share.version=1"
            )
            self._processes.start(f"kafka-{broker}", [*command, "kafka.Kafka", str(file)])
        self.addresses = ",".join(f"127.0.0.1:{port}" for port in clients.values())
        self._processes.wait_for_ports([*clients.values()])
        self._wait_ready()

    def pids(self) -> list[int]:
        return self._processes.pids if self._processes else []

    def stop(self) -> None:
        """Kill the brokers: their data is not needed."""
        if self._processes is not None:
            self._processes.stop()

    def create_topic(self, name: str, partitions: int) -> None:
        """With three replicas."""
        arguments = ["--create", "--topic", name, "--partitions", str(partitions), "--replication-factor", "3"]
        self._tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.addresses, *arguments)

    def _properties(self, broker: int, client: int, controller: int, voters: str) -> str:
        assert self._processes is not None
        return "\n".join(
            (
                "process.roles=broker,controller",
                f"node.id={broker}",
                f"controller.quorum.voters={voters}",
                "controller.listener.names=CONTROLLER",
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                f"listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
                f"log.dirs={self._processes.folder / str(broker)}",
                "min.insync.replicas=2",
                "default.replication.factor=3",
                "offsets.topic.replication.factor=3",
                "share.coordinator.state.topic.replication.factor=3",
                "group.share.partition.max.record.locks=10000",
                "group.initial.rebalance.delay.ms=0",
                *(("log.flush.interval.messages=1",) if self.synced else ()),
            )
        )

    def _wait_ready(self) -> None:
        assert self._processes is not None
        deadline = time.monotonic() + READY_S_MAX
        while True:
            try:
                self._tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.addresses, "--list")
            except RuntimeError as error:
                self._processes.check()
                if time.monotonic() > deadline:
                    raise RuntimeError(f"Kafka did not come up, see {self._processes.folder}: {error}") from None
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

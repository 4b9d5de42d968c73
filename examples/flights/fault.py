"""The fault: the broker that leads the first partition is killed, and later started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tinymq import Client
from tinymq.dev import dev_cluster

PARTITION = 0


@dataclass(slots=True)
class Fault:
    """The fault in the cluster of `folder`, and the times of its steps."""

    folder: Path
    client: Client
    topic: str
    say: Callable[[str], None]
    broker: int = 0  # the killed broker; 0: none yet
    killed_ns: int = 0

    def kill(self) -> None:
        """kill -9 the broker that leads the partition."""
        partitions = self.client.admin.describe_topic(self.topic).partitions
        self.broker = next(partition.leader for partition in partitions if partition.partition == PARTITION)
        self.killed_ns = time.perf_counter_ns()
        dev_cluster.kill(self.folder, self.broker)
        self.say(f"half way: kill -9 of broker {self.broker}, which leads {self.topic}/{PARTITION}")

    def restart(self) -> None:
        """Start it again without waiting: it has to catch up under load."""
        dev_cluster.start(self.folder, self.broker)
        self.say(f"broker {self.broker} starts again while the producer continues")

"""A cluster of broker processes, each of the base build or the present one, and a load that is checked."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.upgrade.base_build import ROOT, site
from tinymq import Client
from tinymq.base.errors import TinymqError
from tinymq.dev import ask
from tinymq.net.loopback_ports import free_ports
from tinymq_chaos.real.processes.children import Child, end, spawn

UP_S = 60.0  # on a busy machine
POLL_S = 0.05
TOPIC = "t"


class Build(Enum):
    """Which code a broker runs."""

    BASE = "base"
    PRESENT = "present"


class Cluster:
    """Three voters, and brokers that join. For use from one thread."""

    def __init__(self, folder: Path, registry: str = "replicated") -> None:
        self.folder = folder
        self.registry = registry
        self._secret = folder / "secret"
        self._secret.write_bytes(secrets.token_hex(16).encode())
        self._secret.chmod(0o600)
        self._addresses: dict[int, tuple[str, str]] = {}  # for clients, and for brokers
        self._children: dict[int, Child] = {}
        self._voters = [self._place(broker) for broker in (1, 2, 3)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(*self._children.values())

    @property
    def servers(self) -> str:
        return ",".join(clients for clients, _ in self._addresses.values())

    @property
    def peer_address(self) -> str:
        """The address at which a broker listens for joining brokers."""
        return self._addresses[1][1]

    @property
    def secret(self) -> bytes:
        return self._secret.read_bytes()

    def said(self, broker: int) -> str:
        """The log output of a broker."""
        return (self.folder / f"{broker}.log").read_text()

    def form(self, build: Build) -> None:
        for broker in (1, 2, 3):
            self._start(broker, build)
        for broker in (1, 2, 3):
            self._wait(broker, ("unformed", "running"))
        ask.form([self._addresses[broker][0] for broker in (1, 2, 3)], self.secret, UP_S)
        for broker in (1, 2, 3):
            self._wait(broker, ("running",))

    def swap(self, broker: int, build: Build) -> None:
        """Stop a broker cleanly, start it on the same data directory as another build, and wait until its replicas have
        caught up. Then the next broker may stop.
        """
        self.stop(broker)
        self.restart(broker, build)

    def stop(self, broker: int) -> None:
        child = self._children.pop(broker)
        assert child.signal(signal.SIGTERM), self.said(broker)
        if not child.wait(UP_S):
            end(child)
            raise AssertionError(f"broker {broker} did not stop")

    def start(self, broker: int, build: Build) -> Child:
        """Start a broker without waiting for it; a broker that is not a voter joins."""
        if broker not in self._addresses:
            self._place(broker)
        self._start(broker, build)
        return self._children[broker]

    def restart(self, broker: int, build: Build) -> None:
        """Start a stopped broker, and wait until its replicas have caught up."""
        self._start(broker, build)
        self._wait(broker, ("running",))
        self.until(self._whole, "every replica takes part again")

    def forget(self, broker: int) -> None:
        """Remove a stopped broker from the cluster."""
        del self._children[broker], self._addresses[broker]

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + UP_S
        while not holds():
            assert time.monotonic() < deadline, f"not within {UP_S:.0f} s: {what}"
            threading.Event().wait(POLL_S)

    # ---- inside --------------------------------------------------------------------------------------

    def _place(self, broker: int) -> str:
        clients, peers, streams = (f"127.0.0.1:{port}" for port in free_ports(3))
        self._addresses[broker] = (clients, peers)
        lines = {
            "broker_id": broker,
            "data_dir": f"{self.folder}/{broker}",
            "secret_file": str(self._secret),
            "listen": clients,
            "peer_listen": peers,
            "stream_listen": streams,
            "metrics_listen": "",
            "registry": self.registry,
        }
        text = "".join(f"{name} = {value!r}\n".replace("'", '"') for name, value in lines.items())
        (self.folder / f"{broker}.toml").write_text(text)
        return f"{broker}@{peers}"

    def _start(self, broker: int, build: Build) -> None:
        config = self.folder / f"{broker}.toml"
        command = [sys.executable, "-m", "tinymq.cli.main", "broker", "--config", str(config)]
        if broker in (1, 2, 3):
            command += [word for voter in self._voters for word in ("--voter", voter)]
        else:
            command += ["--join", self.peer_address]
        code = site() if build is Build.BASE else ROOT
        env = {**os.environ, "PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
        self._children[broker] = spawn(command, self.folder / f"{broker}.log", env)

    def _wait(self, broker: int, wanted: tuple[str, ...]) -> None:
        def there() -> bool:
            assert self._children[broker].alive, f"broker {broker} ended:\n{self.said(broker)[-3000:]}"
            return ask.state(self._addresses[broker][0], 2.0) in wanted

        self.until(there, f"broker {broker} is {' or '.join(wanted)}")

    def _whole(self) -> bool:
        replies = ask.status([clients for clients, _ in self._addresses.values()], 2.0)
        answers = [reply for reply in replies if not isinstance(reply, TinymqError)]
        running = len(self._children) == len(answers)
        return running and all(replica.role in ("leader", "follower") for r in answers for replica in r.replicas)


class Load:
    """One producer that sends numbered records one at a time until `stop`, and remembers the acknowledged ones."""

    def __init__(self, servers: str) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}  # by (partition, offset)
        self.failed = 0
        self._servers = servers
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with Client(self._servers) as mq:
            number = 0
            while not self._stopped.wait(0.002):
                value = b"%d" % number
                number += 1
                try:
                    at = mq.send(TOPIC, value)
                except TinymqError:
                    self.failed += 1
                    continue
                self.acknowledged[at.partition, at.offset] = value

    def goes_on(self, cluster: Cluster, more: int = 20) -> None:
        """Wait until `count` more records are acknowledged."""
        upto = len(self.acknowledged) + more
        cluster.until(lambda: len(self.acknowledged) >= upto, f"{more} more records are acknowledged")


def check_all_there(servers: str, load: Load) -> None:
    """Check that every acknowledged record is at its offset, and that none is stored twice."""
    acknowledged = dict(load.acknowledged)
    with Client(servers) as mq:
        stored = {(m.partition, m.offset): m.value for m in mq.reader(TOPIC, start="earliest", end="latest")}
    lost = {at: value for at, value in acknowledged.items() if stored.get(at) != value}
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged records are not there: {list(lost)[:5]}"
    twice = [value for value, times in Counter(stored.values()).items() if times > 1]
    assert not twice, f"stored twice: {twice[:5]}"
    assert acknowledged

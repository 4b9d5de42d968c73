"""A cluster of tinymq brokers as processes behind proxies: `Target`, by the public command line.

    folder/broker-N.toml  broker-N.log  broker-N/      broker N's settings, log and data
    folder/secret                                      shared by the brokers
    folder/proxies/                                    the logs of the proxies

Every broker listens on ports of its own, and only this harness connects to them directly. `advertise` and
`stream_advertise` send clients to the proxy (CLIENTS, b). With `dial`, and `forward` for calls of clients that brokers
forward, broker a reaches b through the proxy (a, b).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tinymq.base.errors import NotReady
from tinymq.base.private_files import make_private_directory, open_private
from tinymq.client import AsyncClient
from tinymq.client.facade.async_client import client_of
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.dev import cause
from tinymq.net.loopback_ports import HOST, PortReservation
from tinymq_chaos.real.disks.disk_control import DiskControl
from tinymq_chaos.real.net.network import CLIENTS, Direction
from tinymq_chaos.real.net.toxiproxy import Proxies
from tinymq_chaos.real.processes import health
from tinymq_chaos.real.processes.children import Child, end, spawn

NODES = (1, 3, 5)  # all of them voters
UP_S_MAX = 120.0  # on a busy machine
INIT_S_MAX = 30.0
POLL_S = 0.05
ON_DISKS = (
    sys.executable,
    "-m",
    "tinymq_chaos.real.cluster.broker",
)  # the entry point with faulty disks and mutants

Settings = Mapping[str, Any]  # as in a broker's TOML file; a mapping is a section


class Cluster:
    """Brokers 1..`nodes`; `up` starts them and forms the cluster. Any thread may call.

    `settings`: more settings of every broker, such as {"timing": {"heartbeat_s": 0.2}}. `commands`: the command instead
    of `tinymq broker`, by broker; `--config FILE` is added. `env`: more environment, by broker. `disks`: `disk(broker)`
    controls every broker's disk. `mutants`: mutants of every broker.
    """

    name = "tinymq"

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        *,
        settings: Settings | None = None,
        commands: Mapping[int, Sequence[str]] | None = None,
        env: Mapping[int, Mapping[str, str]] | None = None,
        disks: bool = False,
        mutants: Sequence[str] = (),
    ) -> None:
        if nodes not in NODES:
            raise ValueError(f"a cluster has 1, 3 or 5 brokers, not {nodes}")
        make_private_directory(folder)
        self.folder = folder.absolute()
        self.version = version("tinymq")
        self.brokers = tuple(range(1, nodes + 1))
        self._ports = PortReservation()
        self._own = {b: _Addresses(*(f"{HOST}:{port}" for port in self._ports.take(4))) for b in self.brokers}
        self._disks = disks
        self._mutants = tuple(mutants)
        self._commands = dict(commands or {})
        self._env = {b: dict((env or {}).get(b, {})) for b in self.brokers}
        self._settings = dict(settings or {})
        self._children: dict[int, Child] = {}
        self._seconds: dict[int, tuple[Child, _Addresses]] = {}  # second processes with the number of a broker
        self._pool = ThreadPoolExecutor(nodes, thread_name_prefix="asks")
        # the path of a socket is short, and the folder's may be long
        self._sockets = Path(tempfile.mkdtemp(prefix="tinymq-"))
        self._closed = False
        try:
            self.net = Proxies(self.folder / "proxies", self._upstreams(), self._ports)
        except BaseException:
            self._pool.shutdown()
            shutil.rmtree(self._sockets)
            self._ports.release()
            raise
        self._write()

    # ---- places --------------------------------------------------------------------------------------

    @property
    def servers(self) -> str:
        """Return the addresses for clients: all of them proxies."""
        return ",".join(self.net.address(CLIENTS, b) for b in self.brokers)

    @property
    def direct(self) -> str:
        """Return the addresses at which the brokers really listen. They send clients to the proxies again."""
        return ",".join(self._own[b].clients for b in self.brokers)

    def client(self, **settings: Any) -> AsyncClient:
        """Return a new client of the present loop. The caller closes it."""
        return client_of(ClientCore(self.servers, **settings))

    def data(self, broker: int) -> Path:
        return self.folder / f"broker-{broker}"

    def log_file(self, broker: int) -> Path:
        return self.folder / f"broker-{broker}.log"

    def config(self, broker: int) -> Path:
        return self.folder / f"broker-{broker}.toml"

    def disk(self, broker: int) -> DiskControl:
        """Return the control of a broker's disk; only with `disks`."""
        assert self._disks, "made without disks=True"
        return DiskControl(self._socket(broker))

    def _socket(self, broker: int) -> Path:
        return self._sockets / f"disk-{broker}"

    # ---- processes -----------------------------------------------------------------------------------

    def up(self, within_s: float = UP_S_MAX) -> None:
        """Start the brokers that do not run, form the cluster if it is new, and return when all is well.

        Raises NotReady.
        """
        deadline = time.monotonic() + within_s
        self.start(*(b for b in self.brokers if not self.running(b)))
        while waiting := [b for b in self.brokers if (self.status(b) or {}).get("state") not in health.ANSWERING]:
            waiting = [b for b in waiting if not self.running(b)] or waiting
            self._check(deadline, f"broker {waiting[0]} did not start: {self._cause(waiting[0])}", waiting)
        if any((self.status(b) or {}).get("state") == "unformed" for b in self.brokers):
            self._form()
        self.wait_healthy(max(deadline - time.monotonic(), 0.0))

    def wait_healthy(self, within_s: float = UP_S_MAX) -> None:
        """Return when nothing is unhealthy. Raises NotReady with what is."""
        deadline = time.monotonic() + within_s
        while missing := self.unhealthy():
            self._check(deadline, f"after {within_s:.0f} s: {missing}")

    def start(self, *brokers: int) -> None:
        for broker in brokers:
            assert not self.running(broker), f"broker {broker} runs"
            assert not self._closed
            cause.mark_start(self.log_file(broker), broker, datetime.now(UTC).isoformat())
            command = [*self._command(broker), "--config", str(self.config(broker))]
            self._children[broker] = spawn(command, self.log_file(broker), self._environment(broker))

    def running(self, broker: int) -> bool:
        child = self._children.get(broker)
        return child is not None and child.alive

    def pid(self, broker: int) -> int:
        """Return the pid of the broker's last start."""
        return self._children[broker].pid

    def kill(self, *brokers: int) -> None:
        end(*(self._children[b] for b in brokers if b in self._children))

    def stop(self, broker: int, within_s: float = 30.0) -> None:
        child = self._children[broker]
        assert child.signal(signal.SIGTERM), f"broker {broker} does not run"
        if not child.wait(within_s):
            end(child)
            raise RuntimeError(f"broker {broker} did not stop within {within_s:.0f} s, and was killed")

    def pause(self, *brokers: int) -> None:
        for broker in brokers:
            assert self._children[broker].signal(signal.SIGSTOP), f"broker {broker} does not run"

    def resume(self, *brokers: int) -> None:
        for broker in brokers:
            if broker in self._children:
                self._children[broker].signal(signal.SIGCONT)

    def wipe(self, broker: int) -> None:
        assert not self.running(broker), f"broker {broker} runs"
        shutil.rmtree(self.data(broker), ignore_errors=not self.data(broker).exists())

    def start_second(self, broker: int, *, copied: bool = False) -> None:
        """Start a second process with this number, with ports of its own and an empty data directory, or a copy of the
        broker's."""
        assert broker not in self._seconds, f"there is a second broker {broker}"
        name = f"second-{broker}-{len(list(self.folder.glob(f'second-{broker}-*.toml')))}"
        data, own = self.folder / name, _Addresses(*(f"{HOST}:{port}" for port in self._ports.take(4)))
        if copied:
            shutil.copytree(self.data(broker), data)
        config = self.folder / f"{name}.toml"
        config.write_text(as_toml({**self._places(broker, own, data), **self._settings}))
        command = [sys.executable, "-m", "tinymq.cli.main", "broker", "--config", str(config)]
        child = spawn(command, self.folder / f"{name}.log", self._environment(broker))
        self._seconds[broker] = child, own

    def second_status(self, broker: int) -> dict[str, Any] | None:
        """Return the /status page of the second process; None if there is no answer within a second."""
        return health.ask(self._seconds[broker][1].metrics)

    def end_second(self, broker: int) -> None:
        """End the second process with this number, if there is one."""
        if broker in self._seconds:
            end(self._seconds.pop(broker)[0])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            end(*self._children.values(), *(child for child, _ in self._seconds.values()))
        finally:
            self.net.close()
            self._pool.shutdown()
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._ports.release()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- health --------------------------------------------------------------------------------------

    def status(self, broker: int) -> dict[str, Any] | None:
        """Return the broker's /status page, not through a proxy; None if there is no answer within a second."""
        return health.ask(self._own[broker].metrics) if self.running(broker) else None

    def statuses(self) -> dict[int, dict[str, Any] | None]:
        """Return the pages of all brokers, asked at once."""
        return dict(zip(self.brokers, self._pool.map(self.status, self.brokers), strict=True))

    def leader(self, topic: str, partition: int) -> int | None:
        return health.leader(self.statuses(), topic, partition)

    def unhealthy(self) -> str:
        down = {b: self._cause(b) for b in self.brokers if not self.running(b)}
        # by the second look, followers have what was committed before the first
        before, after = self.statuses(), self.statuses()
        serving = [b for b in self.brokers if (after[b] or {}).get("state") == "running"]
        placed = health.placed(self._own[serving[0]].clients) if serving else None
        wrong = health.wrong(before, after, placed, down)
        return "; ".join(filter(None, (self.net.unhealthy(), *wrong)))

    # ---- inside --------------------------------------------------------------------------------------

    def _upstreams(self) -> dict[Direction, str | Sequence[str]]:
        clients = {(CLIENTS, b): (self._own[b].clients, self._own[b].streams) for b in self.brokers}
        pairs = [(a, b) for a in self.brokers for b in self.brokers if a != b]
        return {**clients, **{(a, b): (self._own[b].brokers, self._own[b].clients) for a, b in pairs}}

    def _write(self) -> None:
        secret = self.folder / "secret"
        if not secret.exists():
            with os.fdopen(open_private(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
                file.write(secrets.token_hex(32))
        for broker in self.brokers:
            values: dict[str, Any] = {
                **self._places(broker, self._own[broker], self.data(broker)),
                "advertise": self.net.address(CLIENTS, broker),
                "stream_advertise": self.net.address(CLIENTS, broker, 1),
                "dial": [f"{b}@{self.net.address(broker, b)}" for b in self.brokers if b != broker],
                "forward": [f"{b}@{self.net.address(broker, b, 1)}" for b in self.brokers if b != broker],
            }
            self.config(broker).write_text(as_toml({**values, **self._settings}))

    def _places(self, broker: int, own: _Addresses, data: Path) -> dict[str, Any]:
        """Return the settings of a process that listens at these addresses, without proxies."""
        return {
            "broker_id": broker,
            "data_dir": str(data),
            "listen": own.clients,
            "stream_listen": own.streams,
            "peer_listen": own.brokers,
            "metrics_listen": own.metrics,
            "voters": [f"{b}@{self._own[b].brokers}" for b in self.brokers],
            "secret_file": str(self.folder / "secret"),
        }

    def _command(self, broker: int) -> list[str]:
        if broker in self._commands:
            return list(self._commands[broker])
        if not (self._disks or self._mutants):
            return [sys.executable, "-m", "tinymq.cli.main", "broker"]
        command = [*ON_DISKS, *(word for mutant in self._mutants for word in ("--mutant", mutant))]
        return [*command, *(("--disk", str(self._socket(broker))) if self._disks else ()), "--"]

    def _environment(self, broker: int) -> dict[str, str]:
        """Return an environment without TINYMQ_ variables, with which modules under chaos/ are found from any
        folder."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("TINYMQ_")}
        places = [str(Path(__file__).parents[2]), *filter(None, [env.get("PYTHONPATH")])]
        return {**env, "PYTHONPATH": os.pathsep.join(places), **self._env[broker]}

    def _form(self) -> None:
        command = [sys.executable, "-m", "tinymq.cli.main", "cluster", "init", "-s", self.direct]
        done = subprocess.run(
            [*command, "--secret-file", str(self.folder / "secret"), "--timeout", str(INIT_S_MAX)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=2 * INIT_S_MAX,
        )  # fmt: skip
        if done.returncode:
            raise NotReady(f"tinymq cluster init ended with {done.returncode}: {done.stderr.strip()[-500:]}")

    def _cause(self, broker: int) -> str:
        return cause.of_log(self.log_file(broker)).message

    def _check(self, deadline: float, missing: str, needed: Sequence[int] = ()) -> None:
        ended = [b for b in needed if not self.running(b)]
        if ended or time.monotonic() >= deadline:
            raise NotReady(missing, hint=f"the logs of the brokers are in {self.folder}")
        time.sleep(POLL_S)


class _Addresses:
    """The host:port at which one broker really listens."""

    def __init__(self, clients: str, brokers: str, metrics: str, streams: str) -> None:
        self.clients = clients
        self.streams = streams
        self.brokers = brokers
        self.metrics = metrics


def as_toml(values: Settings) -> str:
    """Return settings as the text of a broker's file: plain values first, then sections."""
    # JSON's strings, numbers, booleans and lists of strings are valid TOML
    plain = [f"{key} = {json.dumps(value)}\n" for key, value in values.items() if not isinstance(value, Mapping)]
    sections = [f"[{key}]\n{as_toml(value)}" for key, value in values.items() if isinstance(value, Mapping)]
    return "".join(plain + sections)

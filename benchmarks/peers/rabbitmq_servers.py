"""Three RabbitMQ nodes on one host, from Debian's packages, with an epmd of their own."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from benchmarks.peers import rabbitmq_setup
from benchmarks.peers.contract import BROKERS
from benchmarks.peers.processes import Processes
from tinymq.net.loopback_ports import free_ports

COOKIE = "tinymqbench"


class RabbitServers:
    """A cluster, whose nodes find each other by a list in their settings."""

    synced = True

    def __init__(self) -> None:
        self.settings = {
            "queues": "x-queue-type=quorum, 3 members; server defaults, vm_memory_high_watermark 0.6",
            "clients": f"aio-pika {version('aio-pika')}; persistent messages, publisher confirms, 1,000 in flight; "
            "`work`: prefetch_count 1000, ack per message; `passage`: 8 consumers, prefetch_count 1, unanswered acks",
        }
        self.name = "RabbitMQ quorum queue"
        self.addresses = ""
        self._processes: Processes | None = None

    def start(self, folder: Path) -> None:
        scripts, erlang = rabbitmq_setup.programs()
        self.name = f"RabbitMQ {scripts.parent.name.rpartition('-')[2]} quorum queue"
        self._processes = processes = Processes(folder / "rabbitmq")
        epmd, *ports = free_ports(1 + 2 * len(BROKERS))
        cookie = processes.folder / ".erlang.cookie"
        cookie.write_text(COOKIE)
        cookie.chmod(0o400)
        (processes.folder / "plugins").write_text("[].")
        nodes = "".join(f"cluster_formation.classic_config.nodes.{n} = r{n}@localhost\n" for n in BROKERS)
        (processes.folder / "rabbit.conf").write_text(
            f"cluster_formation.peer_discovery_backend = classic_config\n{nodes}"
            "cluster_partition_handling = pause_minority\nvm_memory_high_watermark.relative = 0.6\n"
        )
        shared = {
            "PATH": f"{erlang}:{scripts}:/usr/bin:/bin",
            "HOME": str(processes.folder),
            "ERL_EPMD_PORT": str(epmd),
            "RABBITMQ_CONFIG_FILE": str(processes.folder / "rabbit.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(processes.folder / "plugins"),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RUNNING_UNDER_SYSTEMD": "1",  # the script becomes the node, instead of its parent
        }
        processes.start("epmd", [str(erlang / "epmd"), "-port", str(epmd), "-address", "127.0.0.1"])
        processes.wait_for_ports([epmd])
        for n, node, dist in zip(BROKERS, ports[0::2], ports[1::2], strict=True):
            own = processes.folder / str(n)
            env = {
                "RABBITMQ_NODENAME": f"r{n}@localhost",
                "RABBITMQ_NODE_PORT": str(node),
                "RABBITMQ_DIST_PORT": str(dist),
                "RABBITMQ_MNESIA_BASE": str(own),
                "RABBITMQ_LOG_BASE": str(own / "log"),
                "RABBITMQ_PID_FILE": str(own / "pid"),
            }
            processes.start(f"r{n}", ["/bin/sh", str(scripts / "rabbitmq-server")], {**shared, **env})
        processes.wait_for_ports(ports[0::2])
        self.addresses = ",".join(f"amqp://guest:guest@127.0.0.1:{port}/" for port in ports[0::2])

    def pids(self) -> list[int]:
        return self._processes.pids[1:] if self._processes else []  # without epmd

    def stop(self) -> None:
        if self._processes is not None:
            self._processes.stop()

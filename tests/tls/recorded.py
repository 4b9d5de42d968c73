"""`python -m tests.tls.recorded off|required`: lets a cluster work in a network namespace of its own, records every
byte of its loopback, and prints as JSON which secrets were among them.

It runs under `unshare --user --map-root-user --net`, so it needs no rights, and sees nobody else's traffic.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import secrets
import socket
import struct
import subprocess
import sys

from tinymq.rpc.operator_calls.first_administrator import make_administrator
from tinymq.testing import Cluster
from tinymq.testing.cluster import SECRET

SIOCGIFFLAGS, SIOCSIFFLAGS, UP = 0x8913, 0x8914, 1
RECORDS, REPEATS = 40, 4096


def bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        flags = struct.unpack("16sH", fcntl.ioctl(sock, SIOCGIFFLAGS, struct.pack("16sH", b"lo", 0))[:18])[1]
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH", b"lo", flags | UP))


def work(security: str) -> dict[str, str]:
    """Let a cluster do everything that moves records. Returns the secrets."""
    marks = {name: secrets.token_hex(16) for name in ("key", "value", "header", "large", "topic")}
    topic, large = marks["topic"], marks["large"].encode() * REPEATS
    with Cluster(nodes=3, security=security) as cluster:
        tls = cluster.certificates.client_tls(1) if security != "off" else None
        token = asyncio.run(make_administrator(cluster.addresses, SECRET, "root", 20.0, tls))
        with cluster.client(token=token) as mq:
            mq.admin.create_topic(topic, 1, replication_factor=3)
            headers = [("h", marks["header"].encode())]
            mq.send(topic, marks["value"].encode(), key=marks["key"].encode(), headers=headers)
            with mq.producer(compression="none") as producer:
                for _ in range(RECORDS):
                    producer.send(topic, large)
        for broker_id in (1, 2, 3):  # afterwards records are read from files, which the system sends where it may
            cluster.restart(broker_id)
        with cluster.client(token=token) as mq:
            for replica in ("leader", "follower"):
                with mq.reader(topic, replica=replica) as reader:  # type: ignore[arg-type]
                    read = [next(reader).value for _ in range(RECORDS + 1)]
                assert (read[0], read[-1]) == (marks["value"].encode(), large)
    return {**marks, "token": token, "secret": SECRET.decode()}


def main() -> None:
    bring_loopback_up()
    command = [sys.executable, "-m", "tests.tls.recorder"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as recorder:
        assert recorder.stdout is not None
        assert recorder.stdout.readline() == "ready\n"
        print(recorder.communicate(json.dumps(work(sys.argv[1])))[0].strip())


if __name__ == "__main__":
    main()

"""A running cluster moves to TLS and back, broker by broker, under load: nothing acknowledged is lost."""

from __future__ import annotations

import threading

import pytest

from tinymq.testing import Cluster


@pytest.mark.parametrize("steps", [("accept", "required")], ids="to".join)
def test_a_plain_cluster_moves_to_required_tls(steps: tuple[str, ...]) -> None:
    with Cluster(nodes=3) as cluster:
        with cluster.client() as plain:
            plain.admin.create_topic("moved", 3, replication_factor=3)
        sent: list[bytes] = []
        stop = threading.Event()
        ca = str(cluster.certificates.authority)
        servers = [",".join(cluster.addresses)]

        def work() -> None:
            """Send all the time. The program is started again when brokers are to require TLS."""
            while not stop.is_set():
                name = servers[0]
                with cluster.client(servers=name, **({"tls_ca": ca} if "tls" in name else {})) as mq:
                    while not stop.is_set() and servers[0] == name:
                        value = b"%d" % len(sent)
                        mq.send("moved", value)
                        sent.append(value)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for security in steps:
                if security == "required":
                    servers[0] = "tinymq+tls://" + ",".join(cluster.addresses)
                for broker_id in (1, 2, 3):
                    count = len(sent)
                    cluster.security_of[broker_id] = security
                    cluster.stop(broker_id)
                    cluster.start(broker_id)
                    cluster.wait_until(lambda count=count: len(sent) > count)  # type: ignore[misc]
        finally:
            stop.set()
            worker.join()
        with cluster.client(servers=servers[0], tls_ca=ca) as mq, mq.reader("moved") as reader:
            found = {next(reader).value for _ in sent}
        assert found >= set(sent)

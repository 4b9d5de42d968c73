"""The outbox by the command line: create, relay until SIGTERM, status, resolve."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from tests.metrics.pages import get, parsed, value
from tests.outbox.databases import sqlite
from tests.outbox.relaying import wait_until
from tests.outbox.rows import left, read, relay_arguments, write
from tinymq import Client
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.net.loopback_ports import free_ports
from tinymq.testing import Cluster

Capture = pytest.CaptureFixture[str]


def sent(address: str) -> float:
    """How many rows a relay has sent, as it says to Prometheus."""
    _, content_type, page = get(address, "/metrics")
    return value(parsed(page, content_type), "tinymq_outbox_sent_records_total")


def test_a_relay_sends_until_it_is_stopped(cluster: Cluster, mq: Client, tmp_path: Path, capfd: Capture) -> None:
    topic = "orders"
    mq.admin.create_topic(topic, partitions=1, replication_factor=1)
    database = sqlite(tmp_path)
    where = ["--database", database.url]
    assert run(["outbox", "status", *where]) == Exit.NOT_FOUND
    assert "tinymq outbox create" in capfd.readouterr().err
    assert run(["outbox", "create", *where]) == Exit.OK
    engine = create_engine(database.url)
    write(engine, topic, b"a", b"b", partition=0)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-m", "tinymq", *relay_arguments(database, cluster.servers)]
    command += ["-o", "json", "--metrics", address]
    relay = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: left(engine) == 0)
        wait_until(lambda: sent(address) == 2)
        relay.send_signal(signal.SIGINT)
        out, err = relay.communicate(timeout=100)
    finally:
        relay.kill()
        relay.wait()
    assert relay.returncode == Exit.OK, err
    assert "the transaction under way ends first" in err
    assert "stopped: 2 rows sent in 1 transaction" in err
    assert json.loads(out.splitlines()[-1])["state"] == "stopped"
    assert read(mq, topic) == [b"a", b"b"]

    capfd.readouterr()
    assert run(["outbox", "status", *where, "-o", "json"]) == Exit.OK
    found = json.loads(capfd.readouterr().out)
    assert (found["rows"], found["marked"], found["released"]) == (0, 0, True)
    assert found["transactional_id"].startswith("outbox-")
    assert run(["outbox", "status", *where]) == Exit.OK
    assert "stopped" in capfd.readouterr().out
    assert run(["outbox", "resolve", *where, "--sent", "--unsent", "--yes"]) == Exit.USAGE
    assert run(["outbox", "resolve", *where, "--unsent", "--yes", "-s", cluster.servers]) == Exit.OK
    assert "0 rows will be sent again" in capfd.readouterr().err
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "code", "text"),
    [
        ("nonsense", Exit.USAGE, "a URL of SQLAlchemy"),
        ("postgresql+psycopg://nobody@127.0.0.1:1/x", Exit.UNAVAILABLE, "does not answer"),
    ],
)
def test_a_database_that_cannot_be_reached_is_told_in_a_line(url: str, code: Exit, text: str, capfd: Capture) -> None:
    assert run(["outbox", "status", "--database", url]) == code
    found = capfd.readouterr().err
    assert text in found
    assert "Traceback" not in found

"""Spark Connect: a client that knows nothing of tinymq reads a topic, as a batch and as a stream."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark import standalone
from tests.spark.standalone import end, wait_until
from tinymq.net.loopback_ports import free_ports
from tinymq.testing.cluster import Cluster

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
TOPIC = "connected"
RECORDS = 1_000
CLIENT_S_MAX = 300.0  # for a JVM that shares two cores with other programs

pytestmark = pytest.mark.timeout(CLIENT_S_MAX + 200)

CLIENT = """
import json, sys
from pyspark.sql import SparkSession

url, servers, topic = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
options = {"servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
batch = spark.read.format("tinymq").options(**options).load()
read = spark.readStream.format("tinymq").options(**options).load()
query = read.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
query.awaitTermination()
with_us = sorted(name for name in sys.modules if name.split(".")[0] in ("tinymq", "pyspark_tinymq"))
counts = [batch.count(), spark.table("seen").count()]

import pyspark_tinymq

pyspark_tinymq.register(spark)
counts.append(spark.read.format("tinymq").options(**options).load().count())

from tinymq import Client

with Client(servers) as mq:
    ends = {str(number): found.high_watermark for number, found in mq.admin.offsets(topic).items()}
    pinned = spark.read.format("tinymq").options(**options, endingOffsets=json.dumps({topic: ends})).load()
    counts.append(pinned.count())
    mq.send(topic, b"one more")
for number in range(40):  # more plans than the server remembers
    other = spark.range(number)
    assert other.schema is not None and other.count() == number
counts += [pinned.count(), batch.count()]
print(json.dumps([type(spark).__module__, counts, with_us]))
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A server with two cores that uses the Python of the tests."""
    (port,) = free_ports(1)
    log = tmp_path / "server.log"
    bind = {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": standalone.HOST}
    words = [word for name, value in bind.items() for word in ("--conf", f"{name}={value}")]
    server = standalone.submit(
        "spark-internal", folder=tmp_path, python=sys.executable, master="local[2]", log=log,
        options=("--class", SERVER, *words),
    )  # fmt: skip
    try:
        wait_until(lambda: b"server started" in log.read_bytes() or server.poll() is not None, "the server is up")
        assert server.poll() is None, log.read_text()[-4_000:]
        yield f"sc://{standalone.HOST}:{port}"
    finally:
        end(server)


def test_a_client_without_the_package_reads_a_batch_and_a_stream(cluster: Cluster, url: str) -> None:
    client = cluster.client()
    client.admin.create_topic(TOPIC, partitions=2, replication_factor=3)
    with client.producer() as producer:
        for i in range(RECORDS):
            producer.send(TOPIC, b"%d" % i, key=b"%d" % i)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CLIENT, url, cluster.servers, TOPIC],
        env=standalone.environment(), capture_output=True, text=True, check=False, timeout=CLIENT_S_MAX,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4_000:]
    module, counts, imported = json.loads(done.stdout.splitlines()[-1])
    assert module == "pyspark.sql.connect.session"
    assert counts[:3] == [RECORDS, RECORDS, RECORDS], "a batch, a stream, a batch of the registered class"
    assert counts[3:5] == [RECORDS, RECORDS], "a batch with endingOffsets does not change"
    assert counts[5] == RECORDS + 1, "Connect plans again: where this fails, docs/spark-deploy.md is out of date"
    assert imported == [], "modules of the package before the import"

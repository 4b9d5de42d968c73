"""Spark in a cluster that requires TLS and checks its callers: reads, streams, writes, and what shows of the token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_tinymq.session import session
from tinymq.rpc.operator_calls.first_administrator import make_administrator
from tinymq.testing import Cluster
from tinymq.testing.cluster import SECRET

Secure = tuple[Cluster, str]


@pytest.fixture(scope="module")
def secure() -> Iterator[Secure]:
    """A cluster with a topic, and the token of a user who may read and write it."""
    with Cluster(nodes=1, security="required") as cluster:
        tls = cluster.certificates.client_tls(1)
        root = asyncio.run(make_administrator(cluster.addresses, SECRET, "root", 20.0, tls))
        with cluster.client(token=root) as mq:
            mq.access.switch(True)
            for topic in ("flights", "delays"):
                mq.admin.create_topic(topic, 2)
            mq.access.create_user("etl")
            for operation in ("read", "write", "describe"):
                mq.access.grant("etl", operation, "topic:*")
            token = mq.access.create_token("etl", label="spark")
            for number in range(10):
                mq.send("flights", b"%d" % number)
        cluster.wait_until(lambda: all(app.gate.on and not app.gate.deaf for app in cluster.brokers.values()))
        yield cluster, token
        session.close_all()


def options(cluster: Cluster, token: str, **more: str) -> dict[str, str]:
    return {"servers": cluster.servers, "tlsCa": str(cluster.certificates.authority), "token": token, **more}


def test_what_is_read_is_written_with_tls_and_a_token(spark: SparkSession, secure: Secure, tmp_path: Path) -> None:
    cluster, token = secure
    read = options(cluster, token, subscribe="flights")
    rows = spark.read.format("tinymq").options(**read).load()
    assert sorted(bytes(row.value) for row in rows.collect()) == [b"%d" % number for number in range(10)]
    rows.select("value").write.format("tinymq").options(**options(cluster, token, topic="delays")).mode("append").save()
    written = spark.readStream.format("tinymq").options(
        **options(cluster, token, subscribe="delays", startingOffsets="earliest")
    )
    query = (
        written.load().writeStream.format("memory").queryName("secured").trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path)).start()
    )  # fmt: skip
    assert query.awaitTermination(60)
    assert spark.table("secured").count() == 10


def test_no_plan_shows_the_token(spark: SparkSession, secure: Secure, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, token = secure
    rows = spark.read.format("tinymq").options(**options(cluster, token, subscribe="flights")).load()
    rows.explain(extended=True)
    plan = capsys.readouterr().out
    assert "tinymq" in plan.lower()
    assert token not in plan
    assert token not in repr(rows.schema)


def test_a_stranger_reads_nothing(spark: SparkSession, secure: Secure) -> None:
    cluster, _ = secure
    read = options(cluster, "", subscribe="flights")
    del read["token"]
    with pytest.raises(PySparkException, match="the call shows no token"):
        spark.read.format("tinymq").options(**read).load().collect()

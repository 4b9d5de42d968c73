"""One Spark session for the whole run, and one cluster per module: both take seconds to start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tinymq.session.session import close_all
from tests.fakes.patience import PATIENT
from tests.spark import java_setup
from tinymq.client import Client
from tinymq.testing.cluster import Cluster

SPARK = Path(__file__).parents[2] / "spark"
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # short runs: compiling well costs more than it gains


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, three attempts per task: plain `local[2]` never retries a task."""
    folder = tmp_path_factory.mktemp("spark")
    os.environ |= {
        "JAVA_HOME": str(java_setup.home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(SPARK), str(SPARK.parent)]),  # of Spark's Python workers
    }
    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("tinymq tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.codegen.wholeStage", "false")  # otherwise each query of a few rows is compiled first
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", JVM)
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three brokers in this process."""
    with Cluster(nodes=3, timing=PATIENT) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def mq(cluster: Cluster) -> Client:
    return cluster.client()


@pytest.fixture(scope="module", autouse=True)
def clients() -> Iterator[None]:
    """Close the clients that readers in this process opened, after each module."""
    yield
    close_all()

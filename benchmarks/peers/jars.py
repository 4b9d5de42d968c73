"""Kafka's brokers and Spark's connector to them, from Maven, into .venv/tools. Needs Maven (`mvn`). The second run only
checks that the files are there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = Path(sys.prefix) / "tools" / "kafka-4.1.0"  # of the virtual environment that runs the benchmark
BROKER = (
    "org.apache.kafka:kafka_2.13:4.1.0",
    "org.apache.kafka:kafka-tools:4.1.0",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
    "org.apache.logging.log4j:log4j-core:2.24.3",
)
# Without their own dependencies, which Spark has. Each is the newest available version.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
DOWNLOAD_S_MAX = 600.0
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def broker_classpath() -> str:
    """The class path of `kafka.Kafka`. Raises a SystemExit that names what is missing."""
    return f"{_get('broker', BROKER, alone=False)}/*"


def connector() -> str:
    """Jars for spark.jars. Raises SystemExit, as above."""
    return ",".join(map(str, sorted(_get("connector", CONNECTOR, alone=True).glob("*.jar"))))


def _get(name: str, artifacts: tuple[str, ...], *, alone: bool) -> Path:
    folder = TOOLS / name
    if folder.exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        sys.exit(
            "benchmarks: Kafka comes from Maven Central. Install Maven (Debian: apt install maven), then run again"
        )
    print(f"benchmarks: getting Kafka's {name} from Maven Central into .venv/tools", file=sys.stderr)
    TOOLS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as scratch:
        (Path(scratch) / "pom.xml").write_text(_pom(artifacts, ALONE if alone else ""))
        copy = [maven, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars"]
        done = subprocess.run(
            copy, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DOWNLOAD_S_MAX,
            check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"benchmarks: Maven has no {name}: {done.stdout[-1000:]}")
        (Path(scratch) / "jars").replace(folder)
    return folder


def _pom(artifacts: tuple[str, ...], more: str) -> str:
    dependencies = ""
    for artifact in artifacts:
        group, name, version = artifact.split(":")
        dependencies += f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        dependencies += f"<version>{version}</version>{more}</dependency>"
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>bench</groupId><artifactId>bench</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )

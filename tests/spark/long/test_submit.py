"""spark-submit to executors without tinymq: a packed environment works, a zip with native code does not."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.spark import environments
from tests.spark.standalone import Standalone, end, submit
from tinymq.testing.cluster import Cluster

PROGRAM = Path(__file__).parent / "programs" / "where_query.py"
RECORDS = 2_000
TOPIC = "submitted"
PAGE = environments.ROOT / "docs" / "spark-deploy.md"
NO_NATIVE_CODE = "cannot import name 'cygrpc' from 'grpc._cython'"
SUBMIT_S_MAX = 400.0  # for JVMs that share two cores with other programs

pytestmark = pytest.mark.timeout(SUBMIT_S_MAX + 100)


@pytest.fixture(scope="module")
def servers(cluster: Cluster) -> str:
    client = cluster.client()
    client.admin.create_topic(TOPIC, partitions=4, replication_factor=3)
    with client.producer() as producer:
        for i in range(RECORDS):
            producer.send(TOPIC, b"%d" % i, key=b"%d" % i)
    return cluster.servers


def _run(*words: str, folder: Path, python: str, master: str, options: tuple[str, ...]) -> str:
    """What it said."""
    log = folder / "submit.log"
    running = submit(PROGRAM, *words, folder=folder, python=python, master=master, log=log, options=options)
    try:
        running.wait(SUBMIT_S_MAX)
    finally:
        end(running)
    return log.read_text()


def test_a_packed_environment_travels(servers: str, standalone: Standalone, packed: Path, tmp_path: Path) -> None:
    """As docs/spark-deploy.md shows it; the data source is found without being registered."""
    result = tmp_path / "result.json"
    options = ("--archives", "environment.tar.gz#environment")
    words = (servers, TOPIC, str(result))
    said = _run(*words, folder=packed, python="./environment/bin/python", master=standalone.url, options=options)
    assert result.exists(), said[-4_000:]
    found = json.loads(result.read_text())
    assert found["records"] == RECORDS
    works = [str(folder) for folder in standalone.works]
    for place in [*found["pythons"], *found["grpc"]]:
        assert any(place.startswith(work) for work in works), "it was unpacked beside the executor, and used there"


def test_native_code_does_not_travel_in_a_zip(servers: str, tmp_path: Path) -> None:
    """The page's warning: Python finds grpc in the zip, but grpc cannot load its native library from there."""
    wheel = environments.build(tmp_path)
    python = environments.make(tmp_path / "environment", wheel)
    (packages,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    grpc = (packages / "grpc").resolve()
    (packages / "grpc").unlink()
    for name in ("tinymq", "pyspark_tinymq"):
        shutil.rmtree(packages / name)
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(tmp_path / "packages.zip", "w") as packed:
        for name in ours.namelist():
            packed.writestr(name, ours.read(name))
        for path in grpc.rglob("*"):
            packed.write(path, path.relative_to(grpc.parent))
    options = ("--py-files", "packages.zip")
    words = (servers, TOPIC, str(tmp_path / "result.json"), "register")
    said = _run(*words, folder=tmp_path, python=str(python), master="local[1]", options=options)
    assert NO_NATIVE_CODE in said
    assert NO_NATIVE_CODE in PAGE.read_text()
    assert not (tmp_path / "result.json").exists()

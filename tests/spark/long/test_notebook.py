"""The notebook under examples/spark runs as users run it, and its stored output is current."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from examples.flights.source import find_data, load
from tests.spark import java_setup
from tinymq.testing.cluster import Cluster

NOTEBOOK = Path(__file__).parents[3] / "examples" / "spark" / "delays.ipynb"
JANUARY = 27_004  # flights
BUSIEST = 19  # the hour of departure
RUN_S_MAX = 400.0  # of a JVM and a kernel that share two cores with whatever else runs


def _shown(notebook: NotebookNode) -> list[dict[str, str]]:
    """The last output of each code cell, by MIME type."""
    shown = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            data = [output.data for output in cell.outputs if output.output_type in ("display_data", "execute_result")]
            shown.append(dict(data[-1]) if data else {})
    return shown


def _delays(hour: int) -> list[float]:
    """Mean delay in minutes of the flights that left, by origin, from the file's column of hours."""
    rows = [json.loads(flight.value) for flight in load(find_data())[:JANUARY]]
    late = [(row["origin"], row["dep_delay"]) for row in rows if row["hour"] == hour and row["dep_delay"] is not None]
    return [mean(delay for at, delay in late if at == origin) for origin in ("EWR", "JFK", "LGA")]


@pytest.mark.timeout(RUN_S_MAX + 100)
def test_the_notebook_runs_and_its_stored_output_is_current(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = nbformat.read(NOTEBOOK, as_version=4)
    fresh = nbformat.read(NOTEBOOK, as_version=4)
    monkeypatch.setenv("TINYMQ_SERVERS", cluster.servers)
    monkeypatch.setenv("JAVA_HOME", str(java_setup.home()))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    for name in ("PYTHONPATH", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    NotebookClient(fresh, timeout=RUN_S_MAX, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    was, now = _shown(kept), _shown(fresh)
    assert [each.get("text/plain", "") for each in now[:-2]] == [each.get("text/plain", "") for each in was[:-2]]
    plot = [bool(each.get("image/png")) for each in now]
    assert plot == [bool(each.get("image/png")) for each in was]
    assert sum(plot) == 1
    assert now[2]["text/plain"] == str(JANUARY)
    (row,) = [line.split() for line in now[3]["text/plain"].splitlines() if line.startswith(f"{BUSIEST} ")]
    assert [float(each) for each in row[1:]] == [pytest.approx(delay, abs=0.051) for delay in _delays(BUSIEST)]

"""The files of deploy/: checked by the programs of those who made their formats, where these can be had."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "tinymq-broker.service"
EXPOSURE_MAX = 2.0
METRICS = set(re.findall(r"`((?:tinymq|process)_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
OF_THE_CLIENT = {"process_resident_memory_bytes", "process_cpu_seconds_total"}  # of every Python program


def test_the_unit_runs_a_command_that_is_there_and_gives_a_stop_its_time() -> None:
    lines = UNIT.read_text().splitlines()
    assert "ExecStart=/usr/local/lib/tinymq/bin/tinymq broker --config /etc/tinymq/broker.toml" in lines
    assert {"KillSignal=SIGTERM", "TimeoutStopSec=60", "NoNewPrivileges=yes", "ProtectSystem=strict"} <= {*lines}


@pytest.mark.long
def test_systemd_accepts_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    assert analyze is not None, "install systemd (Debian: apt install systemd)"
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/local/lib/tinymq/bin/tinymq", "/bin/true"))
    verified = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (verified.returncode, verified.stderr) == (0, "")
    rated = subprocess.run([analyze, "security", "--offline=true", str(unit)], capture_output=True, text=True)
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", rated.stdout)
    assert float(exposure) <= EXPOSURE_MAX, rated.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
def test_kubernetes_types_know_every_field(tmp_path: Path) -> None:
    go = shutil.which("go")
    assert go is not None, "install Go 1.24 or newer"
    program = tmp_path / "program"
    shutil.copytree(Path(__file__).parent / "kubernetes_types", program)
    ran = subprocess.run([go, "run", ".", str(DEPLOY / "kubernetes" / "tinymq.yaml")], cwd=program, capture_output=True,
                         text=True)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [
        "v1/Service", "policy/v1/PodDisruptionBudget", "apps/v1/StatefulSet", "batch/v1/Job",
        "networking.k8s.io/v1/NetworkPolicy",
    ]  # fmt: skip


def test_the_manifest_sets_settings_that_a_broker_has() -> None:
    from tinymq.app.settings import BrokerSettings

    names = set(re.findall(r"\bTINYMQ_([A-Z_]+)\b", (DEPLOY / "kubernetes" / "tinymq.yaml").read_text()))
    names -= {"PORT"}  # of a comment
    assert names
    assert {name.lower() for name in names} <= {*BrokerSettings.model_fields}


def expressions(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["expr"]] if "expr" in value else [])
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from expressions(each)


def test_the_dashboard_shows_metrics_that_brokers_have() -> None:
    shown = set[str]()
    for expression in expressions(json.loads((DEPLOY / "grafana" / "tinymq.json").read_text())):
        shown.update(re.findall(r"\b(?:tinymq|process)_\w+", expression))
    known = METRICS | OF_THE_CLIENT | {f"{name}_bucket" for name in METRICS}
    assert shown
    assert shown <= known

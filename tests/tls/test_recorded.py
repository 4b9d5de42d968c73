"""An outside recorder of all bytes: without TLS it finds everything, with TLS nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.spark.environments import ROOT
from tests.tls.recorded import RECORDS, REPEATS

BYTES_MIN = RECORDS * REPEATS * 32 * 5  # sent once, replicated twice, read twice


def recorded(security: str) -> dict[str, Any]:
    """Needs util-linux, and a system that lets users have namespaces, or root."""
    command = [
        *("unshare", "--user", "--map-root-user", "--net"),
        *(sys.executable, "-m", "tests.tls.recorded", security),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_recorder_finds_everything_without_tls() -> None:
    """Otherwise it would prove nothing. The cluster's secret is never sent, whatever the security."""
    seen = recorded("off")
    assert seen["found"] == ["header", "key", "large", "token", "topic", "value"]
    assert seen["bytes"] > BYTES_MIN


def test_the_recorder_finds_nothing_with_tls() -> None:
    seen = recorded("required")
    assert seen["found"] == []
    assert seen["bytes"] > BYTES_MIN
    assert seen["lost"] == 0

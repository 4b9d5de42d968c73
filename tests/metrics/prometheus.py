"""A real Prometheus, as Debian has it (tests/tools/prometheus.sh unpacks it): started on a free port,
queried, stopped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tinymq.net.loopback_ports import free_ports

TOOLS = Path(sys.prefix) / "tools" / "prometheus" / "usr" / "bin"
DEADLINE_S = 60.0
REQUEST_S = 5.0
MISSING = "there is no {} here. Run: sh tests/tools/prometheus.sh    (or, on Debian: apt-get install prometheus)"

Sample = tuple[dict[str, str], float]


def find(name: str) -> str:
    """Return the path of `prometheus` or `promtool`. Fails with the command that installs it."""
    found = shutil.which(name, path=f"{TOOLS}{os.pathsep}{os.environ.get('PATH', '')}")
    assert found is not None, MISSING.format(name)
    return found


def promtool(*arguments: str, given: str = "") -> str:
    """Return promtool's complaints; empty if there are none."""
    done = subprocess.run([find("promtool"), *arguments], input=given, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 and not done.stderr else f"exit {done.returncode}\n{done.stdout}{done.stderr}"


class Prometheus:
    """Scrapes `targets`, and evaluates the alerts of `rules`, while the block runs."""

    def __init__(
        self, folder: Path, targets: Sequence[str], interval: str = "500ms", *, rules: Path | None = None
    ) -> None:
        self._address = f"127.0.0.1:{free_ports(1)[0]}"
        self._log = folder / "prometheus.log"
        self.config = folder / "prometheus.yml"
        document = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "scrape_configs": [{"job_name": "tinymq", "static_configs": [{"targets": list(targets)}]}],
        }
        if rules is not None:
            document["rule_files"] = [str(rules)]
        self.config.write_text(json.dumps(document))  # JSON is YAML
        self._command = [
            find("prometheus"), f"--config.file={self.config}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self._address}", "--log.level=warn",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def query(self, expression: str) -> list[Sample]:
        """Return the present result of a PromQL expression. Raises AssertionError for an invalid one."""
        url = f"http://{self._address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=REQUEST_S) as reply:
                found: dict[str, Any] = json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is starting
                return []
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        return [(sample["metric"], float(sample["value"][1])) for sample in found["result"]]

    def until(self, expression: str, values: Sequence[float] | None = None) -> list[Sample]:
        """Return the result once it has these values in any order (None: once it is not empty)."""
        deadline, found = time.monotonic() + DEADLINE_S, None
        while time.monotonic() < deadline:
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text()
            try:
                found = self.query(expression)
            except (urllib.error.URLError, ConnectionError):  # it does not listen yet
                continue
            if found if values is None else sorted(value for _, value in found) == sorted(values):
                return found
        raise AssertionError(f"{expression}: {found} and not {values}\n{self._log.read_text()}")

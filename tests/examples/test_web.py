"""The web service of the examples, served by uvicorn; docs/web-services.md shows its file."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx

from tinymq.testing import Cluster

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "examples/web/service.py"
ENDS_S = 60.0  # a process that takes longer hangs
ORDER = {"customer": "anna", "address": "anna@example.org"}


def test_the_page_shows_the_service() -> None:
    _, _, code = SERVICE.read_text().split('"""', 2)
    assert f"```python\n{code.strip()}\n```" in (ROOT / "docs/web-services.md").read_text()


def test_an_order_gets_its_mail_and_a_lost_cluster_is_told() -> None:
    with Cluster(nodes=1) as cluster, socket.create_server(("127.0.0.1", 0)) as listening:
        number = listening.fileno()
        command = [sys.executable, "-m", "uvicorn", "examples.web.service:app", f"--fd={number}"]
        with subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "TINYMQ_SERVERS": cluster.servers}, pass_fds=[number],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as running:  # fmt: skip
            guard = threading.Timer(ENDS_S, running.kill)
            guard.start()
            try:
                url = f"http://127.0.0.1:{listening.getsockname()[1]}"
                with httpx.Client(base_url=url, timeout=ENDS_S) as web:
                    placed = web.post("/orders", json=ORDER)
                    assert placed.status_code == 201, placed.text
                    assert placed.json()["offset"] == 0
                    assert running.stdout is not None
                    assert "mail to anna@example.org\n" in running.stdout  # reads lines until it comes
                    assert web.get("/health").text == "ok"
                    cluster.kill(1)
                    lost = web.post("/orders", json=ORDER)
                    assert lost.status_code == 503, lost.text
                    assert lost.json()["error"] in ("DeadlineExceeded", "OutcomeUnknown", "Unavailable")
                cluster.start(1)
                running.terminate()
                _, log = running.communicate(timeout=ENDS_S)
            finally:
                guard.cancel()
                running.kill()
        assert "Application shutdown complete" in log
        assert "Traceback" not in log
        with cluster.client() as mq:
            assert sum(cursor.lag for cursor in mq.admin.group_lag("order-mailer")) == 0

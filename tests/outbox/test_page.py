"""The Python of docs/outbox.md runs, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.outbox.relaying import wait_until
from tests.outbox.rows import read
from tinymq import Client
from tinymq.testing import Cluster

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "outbox.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_blocks_of_the_page_run(
    cluster: Cluster, mq: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mq.admin.create_topic("orders", partitions=1, replication_factor=1)
    known: dict[str, Any] = {"mq": mq}
    assert len(BLOCKS) == 8
    for number, block in enumerate(BLOCKS):
        if "stop.set()" in block:
            wait_until(lambda: len(read(mq, "orders")) == 2)
        code = block.replace('"127.0.0.1:7070"', repr(cluster.servers))
        exec(compile(code, f"docs/outbox.md, block {number}", "exec"), known)
    assert read(mq, "orders") == [b"paid 17", b"new 18"]
    with known["engine"].connect() as connection:
        handled = connection.scalar(select(func.count()).where(known["orders"].c.state == "seen"))
        state = connection.scalar(select(known["orders"].c.state).where(known["orders"].c.id == 17))
    assert handled == 4, "by `once`, and by `advance`"
    assert state == "sent", "version 2 came after version 3"
    known["engine"].dispose()

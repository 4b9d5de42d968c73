"""The Python that docs/ shows for the client runs: each block of a page, on a cluster of three brokers.

README, docs/channels.md and docs/testing.md have tests of their own (tests/test_readme.py, tests/client/test_queue.py,
tests/testing/test_page.py).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tinymq import Client
from tinymq.testing import Cluster

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (
    "coming-from.md",
    "errors.md",
    "exactly-once.md",
    "frames.md",
    "groups.md",
    "half-messages.md",
    "topics.md",
    "transactions.md",
)
ADDRESS = re.compile(r'"(?:127\.0\.0\.1|localhost):7070"')
RECORDS = 3  # in each topic


class Enough(Exception):
    """Ends an example that would handle records for ever."""


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


def names(mq: Client) -> dict[str, Any]:
    """The names that the pages assume: a client, and functions of an application."""

    def handle(_: object) -> None:
        raise Enough

    async def server_is_up() -> bool:
        return True

    def deliver_by(known: dict[str, Any]) -> Callable[[object], Any]:
        async def deliver(_: object) -> None:
            known["mq"].stop()

        return deliver

    known: dict[str, Any] = {"mq": mq, "handle": handle, "send": handle, "server_is_up": server_is_up}
    known["deliver"] = deliver_by(known)
    return known


@pytest.fixture(scope="module")
def topics(cluster: Cluster) -> None:
    with cluster.client() as mq:
        for topic in ("orders", "emails"):
            mq.admin.create_topic(topic, partitions=3)
            for number in range(RECORDS):
                mq.send(topic, b"%d" % number, partition=0, headers={"to": "anna"})


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_from_top_to_bottom(cluster: Cluster, mq: Client, page: str) -> None:
    found = blocks(page)
    assert found
    for number, block in enumerate(found):
        if 'create_topic("orders"' in block:
            mq.admin.delete_topic("orders")
        code = compile(ADDRESS.sub(repr(cluster.servers), block), f"docs/{page}, block {number}", "exec")
        with contextlib.suppress(Enough):
            exec(code, names(mq))

"""The registry that docs/registry.md walks through: several brokers on one file. (The contract: tests/registry.)"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from pathlib import Path
from textwrap import dedent, indent

import pytest

from examples.registry import sqlite_registry
from examples.registry.sqlite_registry import LOOK_S, SqliteRegistry
from tests.fakes.manual_clock import ManualClock
from tests.registry.records import broker
from tinymq.base.config import Timing
from tinymq.base.errors import DeadlineExceeded

ROOT = Path(__file__).resolve().parents[2]


def make(file: Path, clock: ManualClock, seed: int) -> SqliteRegistry:
    return SqliteRegistry(file, clock, random.Random(seed), Timing())


def test_brokers_on_one_file_have_one_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_registry, "BUSY_S", 0.01)

    async def main() -> None:
        clock, file = ManualClock(), tmp_path / "registry.db"
        first, second = make(file, clock, 1), make(file, clock, 2)
        for number, registry in enumerate((first, second), 1):
            await registry.start(set())
            await registry.register_broker(broker(number))
        topic = await first.register_topic("t", 2, 2)
        assert second.get_topic("t") is None
        await second.refresh(1.0)
        assert second.get_topic("t") == topic
        await second.unregister_queue("t", 0)
        clock.advance(LOOK_S)
        assert first.get_queues_by_topic("t") == topic.queues[1:]
        taken = [await registry.take_producer_ids(2) for registry in (first, second, first)]
        assert [list(ids) for ids in taken] == [[1, 2], [3, 4], [5, 6]]
        again = await second.register_topic("u", 1, 1, command_id=b"c" * 16)
        assert await first.register_topic("u", 1, 1, command_id=b"c" * 16) == again, (
            "applied once, whichever broker sends it"
        )
        busy = sqlite3.connect(file, isolation_level=None)
        busy.execute("BEGIN IMMEDIATE")
        with pytest.raises(DeadlineExceeded):
            await first.unregister_topic("t")
        busy.rollback()
        await first.register_broker(broker(1))
        clock.advance(Timing().registration_lease_s + 1)
        assert first.get_all_brokers() == second.get_all_brokers() == []
        for registry in (first, second):
            await registry.stop()
        later = make(file, clock, 3)
        await later.start(set())
        assert later.version == first.version
        assert [t.name for t in later.get_all_topics()] == ["t", "u"], "it outlives its brokers"
        await later.stop()

    asyncio.run(main())


def test_the_page_shows_what_is_there() -> None:
    page = (ROOT / "docs" / "registry.md").read_text()
    shown = page.split("```python\n")[1].split("```")[0]
    source = Path(sqlite_registry.__file__).read_text()
    assert indent(dedent(shown), "    ") in source
    assert len(source.splitlines()) <= 130

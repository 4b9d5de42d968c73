"""Read, process and write in Spark: every sale has one invoice, though Spark and brokers are killed at random."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import supervisor
from tests.spark import java_setup

KILLS = 12  # three of each kind


@pytest.mark.timeout(3600)
def test_every_sale_has_one_invoice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_setup.home()))
    told = supervisor.main(tmp_path, KILLS, seed=26)
    count = supervisor.CHUNK * (KILLS + 1)
    assert told.startswith(f"ok: {count} sales became {count} invoices over ")
    assert told.endswith(f"after {KILLS} kills (seed 26)")

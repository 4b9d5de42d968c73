"""Metrics change no behaviour: a simulated run with them equals the run without, step by step."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from tests.metrics.pages import parsed, value
from tinymq.base.clock import Clock
from tinymq.metrics.endpoint import Endpoint
from tinymq.metrics.measures import Measures
from tinymq.metrics.watched import Application
from tinymq_chaos.sim.campaign.run import Plan, run

# With this seed the answer to a fetch waits for a disk: virtual time passes.
PLAN = Plan(1, seconds=9.0, workloads=("idempotent", "lone"), faults=())


def test_a_run_that_is_measured_is_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    without = run(PLAN)
    made: list[Endpoint] = []
    make = Endpoint.__init__

    def metered(self: Endpoint, app: Application, clock: Clock) -> None:
        make(self, app, clock)
        self._measures = Measures(self._registry, clock)
        made.append(self)

    monkeypatch.setattr(Endpoint, "__init__", metered)
    measured = run(PLAN)
    assert measured.transcript == without.transcript
    pages = [parsed(generate_latest(endpoint._registry).decode()) for endpoint in made]
    assert len(pages) >= 3
    for name in ("produce", "commit", "fetch", "sync"):
        seconds = [value(page, f"tinymq_{name}_seconds_sum") for page in pages]
        assert 0 < sum(seconds) < 60 * len(pages), name  # of virtual time
    assert sum(value(page, "tinymq_elections_won_total") for page in pages) > 0

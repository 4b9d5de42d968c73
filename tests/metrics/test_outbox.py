"""The metrics of a relay: their page, their port, and docs/outbox.md, which names exactly them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.metrics.pages import OPENMETRICS, Families, get, parsed, value, values
from tinymq.base.errors import InvalidConfig, PortInUse
from tinymq.metrics.outbox import STATES, RelayCollector, RelayFigures, RelayPort

PAGE = Path(__file__).resolve().parents[2] / "docs" / "outbox.md"
ROW = re.compile(r"^\| `(tinymq_\w+)` \| (\w+) \|([^|]*)\|[^|]+\|[^|]*\|$", re.MULTILINE)
S_US = 1_000_000
IDLE = RelayFigures("standby", "outbox-1", sent=0, recovered=0, transactions=0, failures=0, pending=0, oldest_us=None)
BUSY = RelayFigures("working", "outbox-1", 500, 4, 2, 3, pending=17, oldest_us=10 * S_US)


def shown(figures: RelayFigures, now_us: int = 72 * S_US) -> Families:
    registry = CollectorRegistry()
    registry.register(RelayCollector(lambda: figures, lambda: now_us))
    return parsed(generate_latest(registry).decode())


def test_what_a_relay_has_counted() -> None:
    page = shown(BUSY)
    counted = {"sent_records": 500, "recovered_records": 4, "transactions": 2, "failures": 3}
    assert {name: value(page, f"tinymq_outbox_{name}_total") for name in counted} == counted
    assert value(page, "tinymq_outbox_pending_records") == 17
    assert value(page, "tinymq_outbox_oldest_seconds") == 62
    assert {state: value(page, "tinymq_outbox_state", state=state) for state in STATES} == {
        "starting": 0, "standby": 0, "working": 1, "retrying": 0, "stopped": 0,
    }  # fmt: skip
    assert value(page, "tinymq_outbox_info", transactional_id="outbox-1") == 1


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (IDLE, [0.0]),
        (BUSY, [62.0]),
        (replace(BUSY, oldest_us=100 * S_US), [0.0]),  # the clock of the writer is ahead
        (replace(BUSY, oldest_us=None), []),  # rows of writers that have not said when: unknown is not 0
    ],
)
def test_the_age_of_the_oldest_row(figures: RelayFigures, expected: list[float]) -> None:
    assert values(shown(figures), "tinymq_outbox_oldest_seconds") == expected


def test_the_page_names_exactly_what_is_shown() -> None:
    exposed = {
        (f"{family.name}_total" if family.type == "counter" else family.name, family.type, label)
        for family in shown(BUSY).values()
        for sample in family.samples
        for label in sample.labels or [""]
    }
    documented = {
        (name, type_, label)
        for name, type_, labels in ROW.findall(PAGE.read_text())
        for label in re.findall(r"`(\w+)`", labels) or [""]
    }
    assert documented == exposed
    assert len(documented) == 9


def test_the_port_serves_while_the_block_runs() -> None:
    figures = [BUSY]
    with RelayPort("127.0.0.1:0", lambda: figures[0], "--metrics") as port:
        status, content_type, body = get(port.address, "/metrics")
        assert (status, value(parsed(body, content_type), "tinymq_outbox_sent_records_total")) == (200, 500)
        figures[0] = replace(BUSY, sent=501)
        status, content_type, body = get(port.address, "/metrics", OPENMETRICS)
        assert value(parsed(body, content_type), "tinymq_outbox_sent_records_total") == 501
        assert "process_cpu_seconds_total" in body
        assert get(port.address, "/status")[0] == 404
        with pytest.raises(PortInUse, match="--metrics"), RelayPort(port.address, lambda: BUSY, "--metrics"):
            pass
    with RelayPort(port.address, lambda: BUSY, "--metrics"):
        pass
    with pytest.raises(InvalidConfig):
        RelayPort("9471", lambda: BUSY, "--metrics")

"""The metrics page is rendered in the requested format, one family at a time."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tests.metrics.pages import OPENMETRICS, parsed, value
from tinymq.metrics.page import render


@pytest.fixture
def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("cats", "Cats.", ("colour",), registry=made).labels('bl"a\nck').inc(3)
    Gauge("dogs_bytes", "Dogs.", registry=made).set(2)
    Histogram("birds_seconds", "Birds.", registry=made, buckets=(1, 2)).observe(1.5)
    return made


def page(registry: CollectorRegistry, accept: str) -> tuple[str, str]:
    async def no_pause() -> None:
        pass

    body, content_type = asyncio.run(render(registry, accept, no_pause))
    return body.decode(), content_type


@pytest.mark.parametrize(
    ("accept", "begins"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        ("text/html,application/xhtml+xml", "text/plain; version=0.0.4"),
        (OPENMETRICS, "application/openmetrics-text; version=1.0.0"),
        (f"text/plain;q=0.1, {OPENMETRICS};q=0.9", "application/openmetrics-text; version=1.0.0"),
    ],
)
def test_the_format_that_is_asked_for(registry: CollectorRegistry, accept: str, begins: str) -> None:
    body, content_type = page(registry, accept)
    assert content_type.startswith(begins)
    families = parsed(body, content_type)
    assert sorted(families) == ["birds_seconds", "cats", "dogs_bytes"]
    assert value(families, "cats_total", colour='bl"a\nck') == 3
    assert value(families, "birds_seconds_bucket", le="2.0") == 1
    assert "_created" not in body
    assert body.count("# EOF") == (1 if "openmetrics" in begins else 0)


def test_others_have_their_turn_between_two_families(registry: CollectorRegistry) -> None:
    paused = 0

    async def pause() -> None:
        nonlocal paused
        paused += 1

    asyncio.run(render(registry, "", pause))
    assert paused == 3

"""Families rendered in slices, and the pages that they form."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from tests.metrics.pages import OPENMETRICS, parsed
from tinymq.metrics import families
from tinymq.metrics.families import Family, Sample
from tinymq.metrics.page import render

FEW = Family("few", "A few.", ("n",))
MANY = Family("many", "Many.", ("n",), CounterMetricFamily)


class Some(Collector):
    """Few, many, and few of another name; `read` says how many samples were read."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.read = 0

    def _samples(self) -> Iterator[Sample]:
        for n in range(self._count):
            self.read += 1
            yield (str(n),), n

    def collect(self) -> Iterator[Metric]:
        yield from FEW.of([(("a",), 1)])
        yield from MANY.of(self._samples())
        yield from Family("none", "None.").of([])


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 25, 30])
def test_slices_are_one_family_on_the_page(monkeypatch: pytest.MonkeyPatch, accept: str, count: int) -> None:
    monkeypatch.setattr(families, "SLICE", 10)
    some, registry = Some(count), CollectorRegistry()
    registry.register(some)
    read: list[int] = []

    async def pause() -> None:
        read.append(some.read)

    body, content_type = asyncio.run(render(registry, accept, pause))
    page = body.decode()
    assert page.count("# HELP") == page.count("# TYPE") == 3
    assert page.count("# EOF") == bool(accept)
    found = parsed(page, content_type)
    assert {s.labels["n"]: s.value for s in found["many"].samples} == {str(n): n for n in range(count)}
    assert found["none"].samples == []
    steps = [min(count, 10 * slice_) for slice_ in range(1, 2 + max(0, count - 1) // 10)]
    assert read == [0, *steps, count], "each sample is read in its turn, and the loop runs in between"

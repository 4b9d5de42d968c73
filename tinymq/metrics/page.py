"""Renders the page for Prometheus family by family, so that the broker's loop runs other tasks in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

_END = b"# EOF\n"  # of an OpenMetrics page


async def render(registry: CollectorRegistry, accept: str, pause: Callable[[], Awaitable[None]]) -> tuple[bytes, str]:
    """Return the page and its content type, in the format that an Accept header requests. `pause` is awaited between
    families. Consecutive families with one name are slices of one family. The creation times of counters are left out,
    because Prometheus would store each as another metric.
    """
    encode, content_type = choose_encoder(accept)
    parts, name = [], ""
    for family in registry.collect():
        samples, family.samples = family.samples, []
        head = encode(_One(family)).removesuffix(_END)
        family.samples = [sample for sample in samples if not sample.name.endswith("_created")]
        part = encode(_One(family)).removesuffix(_END)
        parts.append(part.removeprefix(head) if family.name == name else part)
        name = family.name
        await pause()
    if content_type.startswith("application/openmetrics-text"):
        parts.append(_END)
    return b"".join(parts), content_type


class _One(Collector):
    """An encoder's view of a single family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family

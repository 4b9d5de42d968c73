"""The page that Prometheus reads, made family by family, so that the broker's loop goes on in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

_END = b"# EOF\n"  # of an OpenMetrics page


async def render(registry: CollectorRegistry, accept: str, pause: Callable[[], Awaitable[None]]) -> tuple[bytes, str]:
    """The page and its content type, in the format that an Accept header asks for. `pause` is awaited in between.

    When a counter was made is left out: Prometheus takes each for one more metric.
    """
    encode, content_type = choose_encoder(accept)
    parts = []
    for family in registry.collect():
        family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        parts.append(encode(_One(family)).removesuffix(_END))
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

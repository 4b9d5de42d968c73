"""The metrics of a relay of the outbox, and the port that serves them. docs/outbox.md explains them to operators.

The relay counts, and a page reads what it has counted: a scrape never waits for the database.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, TypeVar

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from tinymq.base.clock import SystemClock
from tinymq.base.config import format_address, parse_address
from tinymq.base.version import VERSION
from tinymq.metrics.families import Family
from tinymq.metrics.http import HttpServer, Response
from tinymq.metrics.page import render

STATES = ("starting", "standby", "working", "retrying", "stopped")

T = TypeVar("T")

INFO = Family("tinymq_outbox_info", "The relay, as labels; always 1.", ("transactional_id", "version"))
STATE = Family("tinymq_outbox_state", "1 for the present state of the relay.", ("state",))
SENT = Family("tinymq_outbox_sent_records", "Rows that this relay has sent.", (), CounterMetricFamily)
RECOVERED = Family(
    "tinymq_outbox_recovered_records",
    "Rows that an earlier relay had sent, and that this one has removed.",
    (),
    CounterMetricFamily,
)
TRANSACTIONS = Family(
    "tinymq_outbox_transactions", "Transactions of the log that this relay has committed.", (), CounterMetricFamily
)
FAILURES = Family("tinymq_outbox_failures", "Errors after which this relay began again.", (), CounterMetricFamily)
PENDING = Family("tinymq_outbox_pending_records", "Rows that wait, at the relay's newest count.")
OLDEST = Family("tinymq_outbox_oldest_seconds", "Age of the oldest row that waits; 0: none does.")


@dataclass(frozen=True, slots=True)
class RelayFigures:
    """The figures of one relay."""

    state: str  # one of STATES
    transactional_id: str
    sent: int
    recovered: int
    transactions: int
    failures: int
    pending: int
    oldest_us: int | None  # since 1970 UTC; None: nothing waits, or nobody said when it was written


class RelayCollector(Collector):
    """Renders the present figures of a relay."""

    def __init__(self, read: Callable[[], RelayFigures], wall_us: Callable[[], int]) -> None:
        self._read = read
        self._wall_us = wall_us

    def collect(self) -> Iterator[Metric]:
        figures = self._read()
        yield from INFO.of([((figures.transactional_id, VERSION), 1)])
        yield from STATE.of(((state,), state == figures.state) for state in STATES)
        yield from SENT.only(figures.sent)
        yield from RECOVERED.only(figures.recovered)
        yield from TRANSACTIONS.only(figures.transactions)
        yield from FAILURES.only(figures.failures)
        yield from PENDING.only(figures.pending)
        if figures.oldest_us is not None:
            yield from OLDEST.only(max(0.0, (self._wall_us() - figures.oldest_us) / 1e6))
        elif not figures.pending:
            yield from OLDEST.only(0)
        # else: rows wait, and it is not known for how long. 0 would say that all is well.


class RelayPort:
    """Serves /metrics of one relay from a thread of its own, while the block runs. `read` is called in that thread."""

    def __init__(self, listen: str, read: Callable[[], RelayFigures], setting: str) -> None:
        """`listen`: "host:port". `setting`: where it is configured, for errors. Raises InvalidConfig."""
        self.address = ""  # that is really bound, once it listens
        self._host, self._port = parse_address(listen)
        clock = SystemClock()
        self._registry = CollectorRegistry()
        self._registry.register(RelayCollector(read, clock.wall_us))
        ProcessCollector(registry=self._registry)
        self._in_turn = asyncio.Lock()  # the port renders one page at a time
        self._server = HttpServer({"/metrics": self._metrics}, clock, setting=setting)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tinymq-relay-metrics", daemon=True)

    def __enter__(self) -> Self:
        """Listen. Raises PortInUse, InvalidConfig."""
        self._thread.start()
        try:
            self.address = format_address(self._host, self._run(self._server.start(self._host, self._port)))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._server.stop())
        self._end()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _metrics(self, headers: Mapping[str, str]) -> Response:
        async with self._in_turn:
            body, content_type = await render(self._registry, headers.get("accept", ""), lambda: asyncio.sleep(0))
        return Response(HTTPStatus.OK, body, content_type)

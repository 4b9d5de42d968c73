"""`Network` by Toxiproxy: for each ordered pair of places a server process of its own, with a door for each port there.

One server could hold all proxies. Each pair has its own, because a proxy can hang for good when a connection ends while
a toxic is added or removed (Toxiproxy's issues 412 and 558: it holds a lock while the toxic waits for a writer that is
gone). Only the end of its process helps, and that must not break the connections of other directions. So a proxy that
has not answered for `PATIENCE_S` restarts with its toxics, and its connections are closed: most likely a paused process
did not read from them. toxiproxy-python keeps the server's address in attributes of a class, so each server has a
subclass here.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from tinymq.net.loopback_ports import HOST, PortReservation
from tinymq_chaos.real.net.network import TOXICS, Direction
from tinymq_chaos.real.net.probe_connections import ProbeConnection, ProbeServer
from tinymq_chaos.real.processes import setup
from tinymq_chaos.real.processes.children import POLL_S, Child, end, spawn

PATIENCE_S = 1.0  # for an answer of a server, which takes milliseconds
START_S_MAX = 20.0
AT_ONCE = 16  # servers that are asked at the same time
UPSTREAM, DOWNSTREAM = "upstream", "downstream"
REFUSALS = (InvalidToxic, NotFound, ProxyExists)


@dataclass(frozen=True, slots=True)
class Toxic:
    """One toxic on one stream of one proxy."""

    why: str
    kind: str
    stream: str
    toxicity: float
    attributes: tuple[tuple[str, int], ...]

    def as_json(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "type": self.kind,
            "stream": self.stream,
            "toxicity": self.toxicity,
            "attributes": dict(self.attributes),
        }


class Proxy:
    """A proxy from one place to another, in a server process of its own. `doors`: (listening address, target address).

    Any thread may call. The calls take effect in order, and none after `close`.
    """

    def __init__(self, name: str, doors: Sequence[tuple[str, str]], api_port: int, log: Path) -> None:
        self.name = name
        self.doors = tuple(doors)
        self.begun = 0  # starts; 1: it never had to restart
        self._log = log
        self._toxics: dict[str, Toxic] = {}  # by name: the toxics that it should have
        self._names = itertools.count(1)
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._closed = False
        self._api: type[APIConsumer] = type("Api", (APIConsumer,), {"host": HOST, "port": api_port})
        self._command = [str(setup.toxiproxy()), "-host", HOST, "-port", str(api_port)]

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    def begin(self) -> None:
        """Start the server. Raises RuntimeError if it does not come up."""
        with self._lock:
            self._begin()

    def add(self, toxic: Toxic) -> None:
        with self._lock:
            name = str(next(self._names))
            self._toxics[name] = toxic
            try:
                self._ask_each(self._api.post, "/toxics", json=toxic.as_json(name))
            except REFUSALS as error:
                del self._toxics[name]
                raise ValueError(f"the proxy {self.name} refuses {toxic}: {error}") from error

    def mend(self, why: str | None) -> None:
        """Remove the toxics of this fault; None: all of them.

        Those that close connections go last: a proxy hangs more easily when more happens to it while connections end.
        """
        with self._lock:
            names = [name for name, toxic in self._toxics.items() if why in (None, toxic.why)]
            for name in sorted(names, key=lambda name: self._toxics[name].kind == "timeout"):
                del self._toxics[name]
                self._ask_each(self._api.delete, f"/toxics/{name}")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._child is not None:
                end(self._child)

    def _ask_each(self, method: Callable[..., requests.Response], path: str, **more: Any) -> None:
        """Send a request to each door; restart the server with its toxics if one does not answer in time."""
        if self._closed:
            return
        try:
            for door in self._names_of_doors():
                method(f"/proxies/{door}{path}", timeout=PATIENCE_S, **more).raise_for_status()
        except requests.RequestException:
            self._begin()

    def _names_of_doors(self) -> list[str]:
        return [f"{self.name}.{n}" for n in range(len(self.doors))]

    def _begin(self) -> None:
        """Start the server. It opens its ports last, so that no connection passes before the toxics are there."""
        if self._child is not None:
            end(self._child)
        self.begun += 1
        self._child = spawn(self._command, self._log, {**os.environ, "LOG_LEVEL": "warn"})
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            if time.monotonic() >= deadline or not self._child.alive:
                raise RuntimeError(f"the Toxiproxy server of {self.name} does not come up: see {self._log}")
            time.sleep(POLL_S)
        for door, (listen, upstream) in zip(self._names_of_doors(), self.doors, strict=True):
            self._configure("/proxies", name=door, listen=listen, upstream=upstream, enabled=False)
            for name, toxic in self._toxics.items():
                self._configure(f"/proxies/{door}/toxics", **toxic.as_json(name))
            self._configure(f"/proxies/{door}", enabled=True)

    def _answers(self) -> bool:
        try:
            return bool(self._api.get("/version", timeout=PATIENCE_S).ok)
        except requests.RequestException:
            return False

    def _configure(self, path: str, **values: Any) -> None:
        """Send a request to a server without connections, in which nothing can hang."""
        answer = self._api.post(path, json=values, timeout=START_S_MAX)
        if not answer.ok:
            raise RuntimeError(f"the Toxiproxy server of {self.name} answers {answer.status_code}: {answer.text[:300]}")


class Proxies:
    """The network of one cluster. `upstreams`: the addresses at which b really listens for a, by (a, b)."""

    def __init__(
        self, folder: Path, upstreams: Mapping[Direction, str | Sequence[str]], ports: PortReservation | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._ports = PortReservation() if ports is None else ports
        self._own_ports = ports is None
        self._far_end = ProbeServer()  # behind the last door of each proxy
        self._proxies = {
            (a, b): self._proxy(f"{a}-{b}", [leads_to] if isinstance(leads_to, str) else leads_to, folder)
            for (a, b), leads_to in upstreams.items()
        }
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="proxies")
        self._closed = False
        try:
            self._each(self._proxies.values(), lambda proxy: proxy.begin())
        except BaseException:
            self.close()
            raise

    def _proxy(self, name: str, upstreams: Sequence[str], folder: Path) -> Proxy:
        api_port, *taken = self._ports.take(2 + len(upstreams))
        leads_to = [*upstreams, self._far_end.address]
        doors = [(f"{HOST}:{port}", upstream) for port, upstream in zip(taken, leads_to, strict=True)]
        return Proxy(name, doors, api_port, folder / f"proxy-{name}.log")

    def address(self, a: int, b: int, which: int = 0) -> str:
        """Return the host:port at which a reaches b; `which` of the addresses at which b listens for a."""
        return self._proxies[a, b].doors[which][0]

    @property
    def restarts(self) -> int:
        """Return how often a proxy hung and was replaced, which closed its connections."""
        return sum(proxy.begun - 1 for proxy in self._proxies.values())

    def unhealthy(self) -> str:
        """Return which proxies are gone, in words; "" when none is."""
        gone = [f"{a} to {b}" for (a, b), proxy in self._proxies.items() if not proxy.alive]
        return f"the proxies from {', '.join(gone)} are gone" if gone else ""

    def cut(self, why: str, directions: Iterable[Direction]) -> None:
        self.toxic(why, directions, "timeout", timeout=0)

    def toxic(
        self, why: str, directions: Iterable[Direction], kind: str, toxicity: float = 1.0, **attributes: float
    ) -> None:
        check(kind, toxicity, attributes)
        values = tuple((name, round(value)) for name, value in attributes.items())
        wanted = [
            (proxy, Toxic(why, kind, stream, toxicity, values))
            for direction in dict.fromkeys(directions)
            for proxy, stream in self._streams(direction)
        ]
        self._each(wanted, lambda each: each[0].add(each[1]))

    def mend(self, why: str) -> None:
        self._each(self._proxies.values(), lambda proxy: proxy.mend(why))

    def mend_all(self) -> None:
        self._each(self._proxies.values(), lambda proxy: proxy.mend(None))

    def line(self, direction: Direction) -> ProbeConnection:
        """Open a connection through a door of its own, with the toxics of the other doors of that proxy."""
        proxy, stream = self._streams(direction)[0]
        return self._far_end.line(proxy.doors[-1][0], back=stream == DOWNSTREAM)

    def close(self) -> None:
        """End all proxies. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._far_end.close()
            self._each(self._proxies.values(), lambda proxy: proxy.close())
            self._pool.shutdown()
            if self._own_ports:
                self._ports.release()

    def _streams(self, direction: Direction) -> list[tuple[Proxy, str]]:
        """Return the streams from a to b: one direction of connections that a opened, and the other of those that b
        opened.
        """
        a, b = direction
        found = [(self._proxies.get((a, b)), UPSTREAM), (self._proxies.get((b, a)), DOWNSTREAM)]
        streams = [(proxy, stream) for proxy, stream in found if proxy is not None]
        if not streams:
            raise ValueError(f"nothing goes from {a} to {b}")
        return streams

    def _each(self, things: Iterable[Any], do: Callable[[Any], None]) -> None:
        """Call all at once; raise the first error when all have ended."""
        asked = [self._pool.submit(do, thing) for thing in things]
        wait(asked)
        for done in asked:
            done.result()


def check(kind: str, toxicity: float, attributes: Mapping[str, float]) -> None:
    """Check a toxic's attributes. Toxiproxy ignores unknown ones, and a slicer of size 0 ends it. Raises ValueError."""
    if kind not in TOXICS:
        raise ValueError(f"{kind!r} is no toxic: {', '.join(TOXICS)}")
    unknown = [name for name in attributes if name not in TOXICS[kind]]
    if unknown:
        raise ValueError(f"{kind} has no attribute {unknown[0]!r}: {', '.join(TOXICS[kind])}")
    if not 0 <= toxicity <= 1 or any(round(value) < 0 for value in attributes.values()):
        raise ValueError(f"{kind}: toxicity is from 0 to 1, attributes are at least 0")
    if kind == "slicer" and round(attributes.get("average_size", 0)) <= round(attributes.get("size_variation", 0)):
        raise ValueError("slicer: average_size must be above size_variation")

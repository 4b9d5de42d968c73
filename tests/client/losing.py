"""A connector before the real one that loses answers: what was asked is done, and nobody hears of it."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import suppress
from typing import Any

from tinymq.base.config import Limits
from tinymq.base.errors import OutcomeUnknown
from tinymq.client.net.grpc_transport import GrpcConnector, GrpcLink
from tinymq.client.net.ports import Method


class LosingLink:
    """A link whose unary answers get lost as often as the connector says."""

    def __init__(self, losing: Losing, link: GrpcLink) -> None:
        self._losing = losing
        self._link = link
        self.address = link.address
        self.open_produce = link.open_produce
        self.open_fetch = link.open_fetch
        self.open_blocking = link.open_blocking
        self.close = link.close

    async def call(self, method: Method, request: Any, timeout_s: float) -> Any:
        if self._losing.instead[method]:
            self._losing.given_s.append(timeout_s)
            return self._losing.instead[method].pop(0)
        reply = await self._link.call(method, request, timeout_s)
        self._losing.answered[method] += 1
        if self._losing.left[method] > 0:
            self._losing.left[method] -= 1
            if method in self._losing.patient:
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.Event().wait(), timeout_s)
            raise OutcomeUnknown(f"{self.address}: the answer was lost")
        return reply


class Losing:
    """`left[method]` answers are lost from now on; `answered` counts them all. What is `instead` is answered in place
    of asking anybody, and the seconds that the client would have waited are noted."""

    def __init__(self) -> None:
        self.left: Counter[Method] = Counter()
        self.answered: Counter[Method] = Counter()
        self.instead: defaultdict[Method, list[Any]] = defaultdict(list)
        self.given_s: list[float] = []
        self.patient: set[Method] = set()  # whose lost answers are waited for, as long as the client will
        self._real = GrpcConnector(Limits())

    def link(self, address: str) -> LosingLink:
        return LosingLink(self, self._real.link(address))

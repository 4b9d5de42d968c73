"""A connector around the real one that loses answers: the request is carried out, and the client gets no answer."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import suppress
from typing import Any

from google.protobuf.message import Message

from tinymq.base.config import Limits
from tinymq.base.errors import OutcomeUnknown
from tinymq.client.net.grpc_transport import GrpcConnector, GrpcLink


class LosingLink:
    """A link that loses as many unary answers as the connector tells it."""

    def __init__(self, losing: Losing, link: GrpcLink) -> None:
        self._losing = losing
        self._link = link
        self.address = link.address
        self.open_produce = link.open_produce
        self.open_fetch = link.open_fetch
        self.open_blocking = link.open_blocking
        self.close = link.close

    async def call(self, request: Message, timeout_s: float) -> Any:
        kind = type(request)
        if self._losing.instead[kind]:
            self._losing.given_s.append(timeout_s)
            return self._losing.instead[kind].pop(0)
        reply = await self._link.call(request, timeout_s)
        self._losing.answered[kind] += 1
        if self._losing.left[kind] > 0:
            self._losing.left[kind] -= 1
            if kind in self._losing.patient:
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.Event().wait(), timeout_s)
            raise OutcomeUnknown(f"{self.address}: the answer was lost")
        return reply


class Losing:
    """Loses the next `left[kind]` answers to requests of a kind. `answered` counts all answers.

    For a kind in `instead`, that reply is returned without a request, and `given_s` notes the client's timeout.
    """

    def __init__(self) -> None:
        self.left: Counter[type[Message]] = Counter()
        self.answered: Counter[type[Message]] = Counter()
        self.instead: defaultdict[type[Message], list[Any]] = defaultdict(list)
        self.given_s: list[float] = []
        # After a lost answer to a request of these kinds, the client waits until its timeout.
        self.patient: set[type[Message]] = set()
        self._real = GrpcConnector(Limits())

    def link(self, address: str) -> LosingLink:
        return LosingLink(self, self._real.link(address))

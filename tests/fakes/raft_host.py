"""Raft hosts of several brokers in one process. The test names the leader; requests are direct calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tinymq.base.errors import BrokerUnreachable
from tinymq.base.types import GroupId


class FakeHosts:
    """Shared by all brokers of a test."""

    def __init__(self) -> None:
        self.leaders: dict[GroupId, tuple[int, int]] = {}
        self.hosts: dict[int, FakeHost] = {}
        self.lose_replies = 0  # so many of the next requests are done, but their replies lost

    def host(self, broker_id: int) -> FakeHost:
        return self.hosts.setdefault(broker_id, FakeHost(self))


class FakeHost:
    """One broker's."""

    def __init__(self, hosts: FakeHosts) -> None:
        self._hosts = hosts
        self._served: dict[str, Callable[[bytes], Awaitable[bytes]]] = {}

    def leader_of(self, group: GroupId) -> tuple[int, int] | None:
        return self._hosts.leaders.get(group)

    def serve(self, method: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._served[method] = answer

    async def request(self, broker_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        peer = self._hosts.hosts.get(broker_id)
        if peer is None:
            raise BrokerUnreachable(f"no broker {broker_id}")
        reply = await peer._served[method](body)
        if self._hosts.lose_replies:
            self._hosts.lose_replies -= 1
            raise BrokerUnreachable("the reply was lost")
        return reply

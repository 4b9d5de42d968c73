"""Stand-ins for the parts that `Upgrade` uses, without a Raft host and a disk."""

from __future__ import annotations

from dataclasses import replace

from tinymq.format.feature_level import FIRST_LEVEL
from tinymq.log.broker_files.broker_identity import BrokerIdentity


class FakePeers:
    """The other brokers, by their announcements on connections."""

    def __init__(self) -> None:
        self.feature_level = FIRST_LEVEL
        self.known: dict[int, int] = {}
        self.entered: list[int] = []

    def known_levels(self) -> dict[int, int]:
        return dict(self.known)

    async def enter_level(self, level: int) -> None:
        self.feature_level = level
        self.entered.append(level)
        self.known = {peer: known for peer, known in self.known.items() if known >= level}


class FakeStore:
    """A data directory that stores only its identity."""

    def __init__(self, broker_id: int) -> None:
        self.identity = BrokerIdentity(broker_id, bytes([broker_id]) * 16)

    async def hold_feature_level(self, level: int) -> None:
        self.identity = replace(self.identity, held_level=level)

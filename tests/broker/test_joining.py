"""Which cluster a broker with an empty folder joins, from what its voters say; and who is let in."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from tests.fakes.manual_clock import ManualClock
from tinymq.broker import joining
from tinymq.broker.formation import Formation
from tinymq.broker.joining import Joining, decide, invite
from tinymq.config import Limits
from tinymq.errors import BrokerUnreachable, NotReady, TinymqError, WrongBroker, WrongCluster, WrongSecret
from tinymq.log.runner import InlineRunner
from tinymq.log.store import Store
from tinymq.raft import Replica, make_first_entry
from tinymq.raft.transport import Invitation, PeerIdentity
from tinymq.testing.faulty_files import FaultyFiles
from tinymq.types import METADATA_GROUP

CLUSTER = b"c" * 16
ENTRY = make_first_entry(METADATA_GROUP, [Replica(n, bytes([n]) * 16) for n in (1, 2, 3)], 5)
FIRST = ENTRY.head + ENTRY.payload
THIS = Invitation(CLUSTER, FIRST)
OTHER = Invitation(b"o" * 16, FIRST)


@pytest.mark.parametrize(
    ("told", "decided"),
    [
        ({}, NotReady),
        ({2: THIS}, NotReady),  # broker 3 may belong to another
        ({2: THIS, 3: THIS}, THIS),
        ({2: THIS, 3: NotReady("no")}, THIS),
        ({2: THIS, 3: BrokerUnreachable("gone")}, THIS),
        ({2: THIS, 3: WrongSecret("no")}, THIS),
        ({2: THIS, 3: OTHER}, WrongCluster),
        ({2: THIS, 3: Invitation(CLUSTER, b"another")}, WrongCluster),
        ({2: NotReady("no"), 3: BrokerUnreachable("gone")}, NotReady),
        ({2: NotReady("no"), 3: WrongSecret("no")}, WrongSecret),
        ({3: WrongSecret("no")}, WrongSecret),
    ],
)
def test_what_to_join(told: dict[int, Invitation | TinymqError], decided: object) -> None:
    decision = decide([2, 3], told)
    assert (decision if isinstance(decided, Invitation) else type(decision)) == decided


def test_voters_of_two_clusters_are_named() -> None:
    decision = decide([2, 3], {2: THIS, 3: OTHER})
    assert isinstance(decision, WrongCluster)
    assert f"broker 2: {CLUSTER.hex()}, broker 3: {'6f' * 16}" in decision.message


async def open_broker(broker_id: int) -> Formation:
    files = FaultyFiles(random.Random(broker_id))
    store = await Store.open(
        files, InlineRunner(), ManualClock(), broker_id=broker_id, limits=Limits(), rng=random.Random(broker_id)
    )
    return Formation(broker_id, [1, 2, 3], store, files, InlineRunner())


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[structlog.typing.EventDict]:
    """What joining logs. A logger of its own: the module's may be bound for good by a test before this one."""
    capture = LogCapture()
    monkeypatch.setattr(joining, "logger", structlog.wrap_logger(None, processors=[capture]))
    return capture.entries


def test_asking_until_it_has_joined_and_why_not_before(logged: list[structlog.typing.EventDict]) -> None:
    async def main() -> None:
        formation = await open_broker(1)
        work: list[Coroutine[Any, Any, None]] = []
        asking = Joining(formation, [1, 2, 3], work.append)
        assert asking.reason == ""
        asking.heard(3, NotReady("no cluster"))
        for _ in range(3):
            asking.heard(2, WrongSecret("it does not prove it"))
        assert [(log["log_level"], log["code"]) for log in logged if log["code"] == "WrongSecret"] == [
            ("warning", "WrongSecret")
        ], "said once"
        assert asking.reason == "WrongSecret: it does not prove it"
        asking.heard(2, THIS)
        asking.heard(2, THIS)
        assert len(work) == 1
        await work[0]
        assert (formation.cluster_id, asking.reason) == (CLUSTER, "")
        asking.heard(2, THIS)
        assert len(work) == 1

    asyncio.run(main())


def test_what_it_cannot_join_is_a_reason_not_the_end() -> None:
    async def main() -> None:
        formation = await open_broker(4)
        work: list[Coroutine[Any, Any, None]] = []
        asking = Joining(formation, [2], work.append)
        asking.heard(2, THIS)
        await work.pop()
        assert asking.reason.startswith("WrongBroker: the first entry does not list broker 4")
        asking.heard(2, THIS)
        assert len(work) == 1, "it goes on asking"
        work[0].close()

    asyncio.run(main())


class Living:
    def __init__(self, *alive: int) -> None:
        self._alive = alive

    def alive(self, broker_id: int) -> bool:
        return broker_id in self._alive


def test_who_is_let_in() -> None:
    async def main() -> None:
        formation = await open_broker(1)
        new, old = PeerIdentity(2, b"n" * 16, 5), PeerIdentity(2, b"\x02" * 16, 4)
        with pytest.raises(NotReady):
            invite(formation, Living(), lambda _: None, new)
        await formation.join(CLUSTER, FIRST)
        assert invite(formation, Living(), lambda _: None, new) == FIRST
        assert invite(formation, Living(), lambda _: old, new) == FIRST
        assert invite(formation, Living(2), lambda _: old, old) == FIRST
        with pytest.raises(NotReady, match="alive with another data folder"):
            invite(formation, Living(2), lambda _: old, new)
        with pytest.raises(WrongBroker):
            invite(formation, Living(), lambda _: None, PeerIdentity(4, b"n" * 16, 5))

    asyncio.run(main())

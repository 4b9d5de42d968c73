"""Which cluster a broker with an empty data directory joins, by its voters' answers; and which brokers are let in."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from tests.fakes.manual_clock import ManualClock
from tinymq.base.config import Limits
from tinymq.base.errors import (
    BrokerUnreachable,
    CorruptData,
    DeadlineExceeded,
    InvalidFrame,
    NotReady,
    QuotaExceeded,
    TinymqError,
    WrongBroker,
    WrongCluster,
    WrongSecret,
)
from tinymq.base.types import METADATA_GROUP, PeerAddress
from tinymq.broker.cluster import join
from tinymq.broker.cluster.formation import Formation
from tinymq.broker.cluster.join import OTHERS_S, ClusterSearch, Join, choose, decide, invite
from tinymq.log.engine.store import Store
from tinymq.log.files.runner import InlineRunner
from tinymq.raft import Replica, make_first_entry
from tinymq.raft.net.transport import Invitation, PeerIdentity
from tinymq.simulation.faulty_files import FaultyFiles

CLUSTER = b"c" * 16
ENTRY = make_first_entry(METADATA_GROUP, [Replica(n, bytes([n]) * 16) for n in (1, 2, 3)], 5)
FIRST = ENTRY.head + ENTRY.payload
VOTERS = [PeerAddress(n, "127.0.0.1", 7169 + n) for n in (1, 2, 3)]
THIS = Invitation(CLUSTER, FIRST)
OTHER = Invitation(b"o" * 16, FIRST)


@pytest.mark.parametrize(
    ("messages", "decided"),
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
def test_the_cluster_to_join(messages: dict[int, Invitation | TinymqError], decided: object) -> None:
    decision = decide([2, 3], messages)
    assert (decision if isinstance(decided, Invitation) else type(decision)) == decided


def test_the_reason_of_each_voter_is_named_when_none_lets_a_broker_in() -> None:
    taken = NotReady("the peer refuses: broker 1 is alive with another data directory")
    decision = decide([2, 3], {2: taken, 3: NotReady("this broker belongs to no cluster yet")})
    assert isinstance(decision, NotReady)
    assert f"broker 2: {taken.message}; broker 3: this broker belongs to no cluster yet" in decision.message


def test_voters_of_two_clusters_are_named() -> None:
    decision = decide([2, 3], {2: THIS, 3: OTHER})
    assert isinstance(decision, WrongCluster)
    assert f"broker 2: {CLUSTER.hex()}, broker 3: {'6f' * 16}" in decision.message


async def open_broker(broker_id: int, files: FaultyFiles | None = None, voters: Sequence[int] = (1, 2, 3)) -> Formation:
    files = files or FaultyFiles(random.Random(broker_id))
    store = await Store.open(
        files, InlineRunner(), ManualClock(), broker_id=broker_id, limits=Limits(), rng=random.Random(broker_id)
    )
    return Formation(broker_id, voters, store, files, InlineRunner())


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[structlog.typing.EventDict]:
    """Collect the log events of joining. Uses a logger of its own: an earlier test may have bound the module's logger
    for good.
    """
    capture = LogCapture()
    monkeypatch.setattr(join, "logger", structlog.wrap_logger(None, processors=[capture]))
    return capture.entries


def test_a_broker_asks_until_it_joins_and_reports_why_it_waits(logged: list[structlog.typing.EventDict]) -> None:
    async def main() -> None:
        formation = await open_broker(1)
        work: list[Coroutine[Any, Any, None]] = []
        asking = Join(formation, [1, 2, 3], work.append)
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


def test_a_cluster_that_it_cannot_join_does_not_end_the_attempt() -> None:
    async def main() -> None:
        formation = await open_broker(4)
        work: list[Coroutine[Any, Any, None]] = []
        asking = Join(formation, [2], work.append)
        asking.heard(2, THIS)
        await work.pop()
        assert asking.reason.startswith("WrongBroker: the first entry does not list broker 4")
        asking.heard(2, THIS)
        assert len(work) == 1, "it keeps asking"
        work[0].close()

    asyncio.run(main())


class Living:
    def __init__(self, *alive: int) -> None:
        self._alive = alive

    def alive(self, broker_id: int) -> bool:
        return broker_id in self._alive


def test_the_brokers_that_are_let_in() -> None:
    async def main() -> None:
        formation = await open_broker(1)
        new, old = PeerIdentity(2, b"n" * 16, 5), PeerIdentity(2, b"\x02" * 16, 4)

        def let_in(living: Living, known: PeerIdentity | None, who: PeerIdentity) -> Invitation:
            return invite(formation, living, lambda _: known, VOTERS, lambda broker_id: broker_id != 5, who)

        with pytest.raises(NotReady):
            let_in(Living(), None, new)
        await formation.join(CLUSTER, FIRST)
        messages = Invitation(CLUSTER, FIRST, tuple(VOTERS))
        assert let_in(Living(), None, new) == messages
        assert let_in(Living(), old, new) == messages
        assert let_in(Living(2), old, old) == messages
        with pytest.raises(NotReady, match="alive with another data directory"):
            let_in(Living(2), old, new)
        assert let_in(Living(), None, PeerIdentity(4, b"n" * 16, 5)) == messages, "beyond the voters"
        with pytest.raises(QuotaExceeded):
            let_in(Living(), None, PeerIdentity(5, b"n" * 16, 5))

    asyncio.run(main())


# ---- beyond the voters -------------------------------------------------------------------------------------------

ALL = Invitation(CLUSTER, FIRST, tuple(VOTERS))
GONE = BrokerUnreachable("a:1: connection refused")


@pytest.mark.parametrize(
    ("messages", "chosen"),
    [
        ({"a:1": ALL}, ALL),
        ({"a:1": GONE, "b:1": ALL}, ALL),
        ({"a:1": NotReady("forms no cluster"), "b:1": ALL}, ALL),
        ({"a:1": ALL, "b:1": OTHER}, WrongCluster),
        ({"a:1": GONE}, BrokerUnreachable),
        ({"a:1": GONE, "b:1": DeadlineExceeded("silence")}, BrokerUnreachable),
        ({"a:1": GONE, "b:1": NotReady("broker 4 is alive with another data directory")}, NotReady),
        ({"a:1": NotReady("no"), "b:1": WrongSecret("no")}, WrongSecret),
        ({"a:1": InvalidFrame("closed")}, InvalidFrame),
        ({"a:1": WrongBroker("this is broker 4")}, WrongBroker),
    ],
)
def test_the_cluster_to_join_from_the_answers_of_addresses(
    messages: dict[str, Invitation | TinymqError], chosen: object
) -> None:
    decision = choose(messages)
    assert (decision if isinstance(chosen, Invitation) else type(decision)) == chosen


def test_the_reason_names_every_address_once_with_a_hint() -> None:
    decision = choose({"a:1": GONE, "b:1": DeadlineExceeded("silence")})
    assert isinstance(decision, TinymqError)
    assert decision.message == "no broker tells of its cluster: a:1: connection refused; b:1: silence"
    assert "peer_listen" in decision.hint
    wrong_port = choose({"a:1": InvalidFrame("closed")})
    assert isinstance(wrong_port, TinymqError)
    assert "no port between brokers" in wrong_port.hint


class Answers:
    """Answers to `ask`, in order; the last answer repeats."""

    def __init__(self, *answers: Invitation | TinymqError) -> None:
        self.left = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def ask(self, host: str, port: int) -> Invitation:
        self.asked.append((host, port))
        answer = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(answer, TinymqError):
            raise answer
        return answer


async def seek(formation: Formation, answers: Answers) -> tuple[PeerAddress, ...]:
    clock = ManualClock()
    work = asyncio.ensure_future(ClusterSearch(formation, answers.ask, ["a:1"], clock, patience_s=2.0).run())
    while not work.done():
        for _ in range(5):  # until it waits for the clock or ends
            await asyncio.sleep(0)
        clock.advance(0.5)
    return work.result()


def test_a_broker_beyond_the_voters_joins_and_remembers_them() -> None:
    async def main() -> None:
        files = FaultyFiles(random.Random(4))
        formation = await open_broker(4, files, voters=())
        answers = Answers(GONE, NotReady("starting"), ALL)
        assert await seek(formation, answers) == tuple(VOTERS)
        assert (formation.cluster_id, len(answers.asked)) == (CLUSTER, 3)
        again = Formation(4, (), formation._store, files, InlineRunner())
        entry = await again.load()
        assert entry is not None
        assert (entry.head + entry.payload, again.known_voters) == (FIRST, tuple(VOTERS))
        moved = Invitation(CLUSTER, FIRST, (PeerAddress(1, "::1", 1), *VOTERS[1:]))
        assert await seek(again, Answers(moved)) == moved.voters, "they have moved"
        third = Formation(4, (), formation._store, files, InlineRunner())
        await third.load()
        assert third.known_voters == moved.voters

    asyncio.run(main())


@pytest.mark.parametrize("hung", ["a:1", "b:1"])
def test_an_address_that_hangs_does_not_hold_up_an_invited_broker(hung: str) -> None:
    async def main() -> None:
        formation, clock = await open_broker(4, voters=()), ManualClock()
        ended: list[str] = []

        async def ask(host: str, port: int) -> Invitation:
            if f"{host}:{port}" != hung:
                return ALL
            try:
                return await asyncio.get_running_loop().create_future()
            finally:
                ended.append(hung)

        search = ClusterSearch(formation, ask, ["a:1", "b:1"], clock, patience_s=60.0)
        work = asyncio.ensure_future(search.run())
        for passed_s in (0.0, OTHERS_S / 2, OTHERS_S / 2):
            assert not work.done(), "the other address may belong to another cluster"
            clock.advance(passed_s)
            for _ in range(20):
                await asyncio.sleep(0)
        assert (work.result(), ended) == (tuple(VOTERS), [hung])

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "error", "asked"),
    [
        (WrongSecret("no"), WrongSecret, 1),
        (WrongBroker("this is broker 4"), WrongBroker, 1),
        (InvalidFrame("closed"), InvalidFrame, 1),
        (NotReady("broker 4 is alive with another data directory"), NotReady, 5),
        (GONE, BrokerUnreachable, 5),
    ],
)
def test_a_refused_broker_gives_up_by_its_deadline(answer: TinymqError, error: type[TinymqError], asked: int) -> None:
    async def main() -> None:
        formation, answers = await open_broker(4, voters=()), Answers(answer)
        with pytest.raises(error):
            await seek(formation, answers)
        assert (formation.first_entry, len(answers.asked)) == (None, asked)

    asyncio.run(main())


def test_a_data_directory_of_another_cluster_is_refused_and_unchanged() -> None:
    async def main() -> None:
        formation = await open_broker(4, voters=())
        await formation.observe(ALL)
        with pytest.raises(WrongCluster, match="the data directory of broker 4 belongs to another cluster"):
            await seek(formation, Answers(Invitation(b"o" * 16, FIRST, tuple(VOTERS))))
        assert (formation.cluster_id, formation.known_voters) == (CLUSTER, tuple(VOTERS))

    asyncio.run(main())


def test_no_voter_joins_by_address() -> None:
    async def main() -> None:
        formation = await open_broker(3, voters=())
        with pytest.raises(WrongBroker, match="one of this cluster's voters"):
            await formation.observe(ALL)
        assert formation.first_entry is None

    asyncio.run(main())


@pytest.mark.parametrize("text", [b"1@127.0.0.1\n", b"\xff\n", b"one\n"])
def test_a_damaged_list_of_voters_is_named_with_a_hint(text: bytes) -> None:
    async def main() -> None:
        files = FaultyFiles(random.Random(4))
        formation = await open_broker(4, files, voters=())
        await formation.observe(ALL)
        formation._write("voters", text)
        with pytest.raises(CorruptData, match="voters is damaged") as raised:
            await Formation(4, (), formation._store, files, InlineRunner()).load()
        assert "id@host:port" in raised.value.hint

    asyncio.run(main())

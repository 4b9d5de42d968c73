"""A mark is valid for one call at one broker, once, and only the cluster's secret can create it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.queue_client import QueueClient
from tinymq.base.config import Limits
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.common import forward_mark
from tinymq.rpc.common.forward_mark import FORWARDED, ForwardMarks
from tinymq.testing.cluster import Cluster

SECRET = b"s" * 16
WINDOW = 100
REQUEST = pb.ProduceMessageRequest(topic="t", value=b"v")


class Registered:
    """Stands in for a Broker whose registry knows brokers and their sessions."""

    def __init__(self, broker_id: int, cluster_id: bytes = b"c" * 16, **sessions: int) -> None:
        self.env = SimpleNamespace(broker_id=broker_id, cluster_id=cluster_id)
        self.registry = self
        self.sessions = {1: 11, 2: 22, 3: 33} | {int(name[1:]): session for name, session in sessions.items()}

    def get_broker(self, broker_id: int) -> Any:
        session = self.sessions.get(broker_id)
        return SimpleNamespace(session=session) if session else None


ONE: Any = Registered(1)
TWO: Any = Registered(2)


def holds(
    mark: str, at: Any = TWO, method: str = "M", client: str = "me", request: Any = REQUEST, secret: bytes = SECRET
) -> bool:
    return ForwardMarks(secret).holds(at, mark, method, client, request)


def test_a_mark_holds_for_its_own_call_alone() -> None:
    mark = ForwardMarks(SECRET).sign(ONE, 2, "M", "me", REQUEST)
    assert holds(mark)
    others: list[dict[str, Any]] = [
        {"secret": b"t" * 16},
        {"method": "N"},
        {"client": "you"},
        {"request": pb.ProduceMessageRequest(topic="t", value=b"w")},
        {"at": Registered(3)},
        {"at": Registered(2, b"d" * 16)},
        {"at": Registered(2, b1=12)},  # the sender was started again
        {"at": Registered(2, b2=23)},  # the receiver was
        {"at": Registered(2, b1=0)},  # the sender is not registered
        {"method": "Mm", "client": "e"},  # where one ends and the next one begins is covered
    ]
    for other in others:
        assert not holds(mark, **other), other


@pytest.mark.parametrize(
    "mark", ["1", "", "1.1", "1.1.", "a.1.00", "1.-1.00", "1.1.é", "1.1.00.00", "9" * 10_000, ".."]
)
def test_invalid_marks_are_ignored(mark: str) -> None:
    assert not holds(mark)


def test_a_mark_holds_once_and_calls_may_overtake_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_mark, "WINDOW", WINDOW)
    marks, seen = ForwardMarks(SECRET), ForwardMarks(SECRET)
    given = [marks.sign(ONE, 2, "M", "me", REQUEST) for _ in range(3 * WINDOW)]

    def held(mark: str) -> bool:
        return seen.holds(TWO, mark, "M", "me", REQUEST)

    assert held(given[5])
    assert held(given[2])
    assert not held(given[5])
    assert all(held(mark) for mark in given[6:])
    assert not any(held(mark) for mark in given[2:]), "each mark came before, or is too old to check"
    again = ForwardMarks(SECRET).sign(Registered(1, b1=12), 2, "M", "me", REQUEST)  # type: ignore[arg-type]
    # type: ignore[arg-type]
    assert seen.holds(Registered(2, b1=12), again, "M", "me", REQUEST), "a restarted process counts from the beginning"
    assert not held(given[-1].replace(given[-1].split(".")[1], "1", 1))


LIMITS = Limits(client_produce_bytes_per_s=3000)


def test_a_client_that_claims_to_be_passed_on_has_its_quota_and_a_passed_on_call_counts_once() -> None:
    with Cluster(nodes=3, limits=LIMITS) as cluster:

        async def main() -> None:
            async with QueueClient([cluster.address(n) for n in (1, 2, 3)], "me") as client:
                await client.call("CreateQueue", pb.CreateQueueRequest(topic="t"))
                leader = await asyncio.to_thread(cluster.wait_leader, "t")
                other = leader % 3
                request = pb.ProduceMessageRequest(topic="t", queue=0, value=b"x" * 2500)
                await client.call("ProduceMessage", request, at=other)
                owed = [cluster.brokers[n].quotas.produce for n in (other + 1, leader)]
                assert [len(rate) for rate in owed] == [1, 0], "the leader did not count it again"

            metadata = ((FORWARDED, "1"),)
            async with QueueClient([cluster.address(leader)], "sly") as sly:
                sly._metadata = (*sly._metadata, *metadata)
                large = pb.ProduceMessageRequest(topic="t", queue=0, value=b"x" * 9000)
                await sly.call("ProduceMessage", large)
                _, error = await sly.refused("ProduceMessage", request, timeout_s=0.5)
                assert error.code == "QuotaExceeded"

        asyncio.run(main())
